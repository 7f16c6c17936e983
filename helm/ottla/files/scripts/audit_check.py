"""Is there an audit counter that has read `__audit`? `helm test` runs this in a pod.

audit_check.py URL SECONDS
"""

import json
import sys
import time
import urllib.request


def what_is_missing(status: dict[str, object]) -> str:
    """Why a counter is not well; empty if it is."""
    return "" if status["is_caught_up"] else f"{status['lag']} audit records are still to be read"


def check(url: str, seconds: float) -> None:
    """Asks until all is well.

    Raises:
        SystemExit: it is not within so many seconds; says why.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            with urllib.request.urlopen(f"{url}/v1/status", timeout=5) as answer:
                said = what_is_missing(json.load(answer))
        except (OSError, ValueError, KeyError) as error:
            said = f"{url} does not answer: {error}"
        if not said:
            sys.stdout.write(f"the audit counter at {url} has read all there is\n")
            return
        if time.monotonic() > deadline:
            raise SystemExit(said)
        time.sleep(1)


if __name__ == "__main__":
    check(sys.argv[1], float(sys.argv[2]))
