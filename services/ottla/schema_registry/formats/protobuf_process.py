"""The process that compiles Protobuf schemas: a request a line, an answer a line, started as `python -m` with this module's name.

It has a bound of memory, says nothing but answers, and ends when its input does. Only `protobuf_compiler.ProcessCompiler` starts it.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import resource
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from ottla.schema_registry.formats.interface import MIB, InvalidSchema
from ottla.schema_registry.formats.protobuf_compiler import compile_files

MEMORY_SIZE: Final = 512 * MIB  # on top of what the process has when it is ready


def main() -> None:
    """Compiles what it is sent until its input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the registry, which then ends this
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, sys.stderr.fileno())  # the compiler prints warnings
    directory = Path(json.loads(sys.stdin.buffer.readline())["directory"])
    compile_files("a.proto", {"a.proto": 'syntax = "proto3";'}, directory)  # what the compiler takes for itself is no schema's
    _bound_memory()
    _tell({})
    for line in sys.stdin.buffer:
        _tell(answer_to(json.loads(line), directory))


def _tell(answer: Mapping[str, str]) -> None:
    sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n")
    sys.stdout.buffer.flush()


def answer_to(request: Mapping[str, object], directory: Path) -> dict[str, str]:
    """What the process says to a request."""
    files = request["files"]
    assert isinstance(files, dict)
    try:
        return {"descriptors": base64.b64encode(compile_files(str(request["name"]), files, directory)).decode()}
    except InvalidSchema as error:
        return {"reason": error.reason, "place": error.place}
    except (MemoryError, OSError, RecursionError) as error:
        return {"reason": f"the compiler cannot take the schema: {error}", "place": ""}


def _bound_memory() -> None:
    """Lets the process have so much address space on top of what it has; where that cannot be said it is not."""
    with contextlib.suppress(OSError, ValueError):
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_SIZE, used + MEMORY_SIZE))


if __name__ == "__main__":
    main()
