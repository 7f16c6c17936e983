"""How a command fails: one clear sentence on stderr and an exit code, never a traceback.

    1   it was tried and failed (no broker answers, no such topic, the counts differ)
    2   it was not tried, because the command line or a configuration file is wrong

Every module of this package raises these; `main.run` alone turns them into text and a code.
"""

from __future__ import annotations

from errno import EPIPE
from typing import ClassVar, Final

from ottla.errors import OttlaError

# Of the extras that whole commands need, the modules as they are imported.
_EXTRAS: Final = {
    "server": ("google", "grpc", "grpc_health", "grpc_reflection", "kazoo", "prometheus_client", "starlette", "uvicorn"),
    "registry": ("httptools", "jsonschema", "referencing"),
    "audit": ("fastavro", "numpy", "xxhash"),
}


class CommandFailed(OttlaError):
    """The command was understood and did not succeed."""

    exit_code: ClassVar[int] = 1


class UsageError(CommandFailed):
    """What was asked for cannot be meant; nothing was attempted."""

    exit_code = 2


class OutputFailed(CommandFailed):
    """Standard output takes nothing more. Whose reader has gone, as `head` or a pager, is not told of it."""

    def __init__(self, error: OSError) -> None:
        super().__init__(f"standard output: {error.strerror}")
        self.is_closed_pipe = error.errno == EPIPE


def not_installed(error: ModuleNotFoundError) -> CommandFailed | None:
    """What to say where a module of an extra is missing; None where it is of none, and a mistake of ours."""
    module = (error.name or "").partition(".")[0]
    extra = next((extra for extra, modules in _EXTRAS.items() if module in modules), None)
    return None if extra is None else CommandFailed(f"{module} is not installed: pip install 'ottla[{extra}]'")
