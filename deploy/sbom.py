"""`python -m deploy.sbom [FILE]`: what the images install, as a CycloneDX document (ECMA-424).

It is made of the pinned requirements with their hashes, which is what `pip` checks, and not of what lies in some environment. The same
requirements make the same document.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any, Final

_SERVICES: Final = Path(__file__).parents[1] / "services"
# By all images; by the schema registry's too; by Spark's too.
_INSTALLED: Final = ("requirements.txt", "requirements-registry.txt", "requirements-spark.txt")
_PINNED: Final = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^]]*\])?==([^\s;\\]+)((?:.*\\\n)*.*)", re.MULTILINE)
_HASH: Final = re.compile(r"--hash=sha256:([0-9a-f]{64})")


def document(requirements: str) -> dict[str, Any]:
    """The document, as JSON has it."""
    components = [
        {
            "type": "library",
            "name": name.lower(),
            "version": version,
            "purl": f"pkg:pypi/{name.lower()}@{version}",
            "hashes": [{"alg": "SHA-256", "content": found} for found in _HASH.findall(rest)],
        }
        for name, version, rest in _PINNED.findall(requirements)
    ]
    return {"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1, "components": components}


def main(arguments: list[str]) -> None:
    requirements = "".join((_SERVICES / name).read_text(encoding="utf-8") for name in _INSTALLED)
    text = json.dumps(document(requirements), indent=2) + "\n"
    if arguments:
        Path(arguments[0]).write_text(text, encoding="utf-8")
    else:
        sys.stdout.write(text)


if __name__ == "__main__":
    main(sys.argv[1:])
