"""Protobuf's own compiler, which says what a text means: `protoc`, as grpcio-tools has it.

It is C++ in the process that calls it, and texts come from strangers, so a registry runs it in a process of its own
(`protobuf_process.py`): one request a line, one answer a line. A request that takes too long, or
too much memory, costs that process and not the registry. `InlineCompiler` runs it in place, for commands and tests.

Files lie in a directory of the process for the time of one request, under names that cannot lead out of it. Well-known types come
with grpcio-tools, `google/type` with googleapis-common-protos where that is installed, `confluent/…` stands here.
"""

from __future__ import annotations

import ast
import asyncio
import atexit
import base64
import contextlib
import json
import logging
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import Final, Protocol

from ottla.lifecycle import ChildProcess
from ottla.schema_registry.formats.interface import MIB, InvalidSchema

log = logging.getLogger(__name__)

MODULE: Final = "ottla.schema_registry.formats.protobuf_process"
REQUEST_SECONDS: Final = 10.0
# Starting takes the import of two libraries; a machine may be busy.
START_SECONDS: Final = 30.0
# Descriptors with places are some times as large as the text, and a request may reference ten megabytes of it.
LINE_SIZE: Final = 256 * MIB
NAME_LENGTH: Final = 200
REASON_COUNT: Final = 10

# Facts of Confluent's interface: the options by which a schema carries documentation and tags, and its logical types.
META: Final = """syntax = "proto3";
package confluent;
import "google/protobuf/descriptor.proto";
option java_package = "io.confluent.protobuf";
option java_outer_classname = "MetaProto";
message Meta {
  string doc = 1;
  map<string, string> params = 2;
  repeated string tags = 3;
  repeated Rule rules = 4;
}
message Rule {
  string name = 1;
  string doc = 2;
  string expr = 3;
  string sql = 4;
}
extend google.protobuf.FileOptions { Meta file_meta = 1088; }
extend google.protobuf.MessageOptions { Meta message_meta = 1088; }
extend google.protobuf.FieldOptions { Meta field_meta = 1088; }
extend google.protobuf.EnumOptions { Meta enum_meta = 1088; }
extend google.protobuf.EnumValueOptions { Meta enum_value_meta = 1088; }
"""
DECIMAL: Final = """syntax = "proto3";
package confluent.type;
option java_package = "io.confluent.protobuf.type";
option java_multiple_files = true;
option java_outer_classname = "DecimalProto";
message Decimal {
  bytes value = 1;
  uint32 precision = 2;
  int32 scale = 3;
}
"""
VARIANT: Final = """syntax = "proto3";
package confluent.type;
option java_package = "io.confluent.protobuf.type";
option java_multiple_files = true;
option java_outer_classname = "VariantProto";
message Variant {
  bytes metadata = 1;
  bytes value = 2;
}
"""
BUILT_IN: Final[Mapping[str, str]] = {
    "confluent/meta.proto": META,
    "confluent/type/decimal.proto": DECIMAL,
    "confluent/types/decimal.proto": DECIMAL,  # as older clients of Confluent's name it
    "confluent/type/variant.proto": VARIANT,
}


class Compiler(Protocol):
    """Says what texts mean."""

    async def compile(self, name: str, files: Mapping[str, str]) -> bytes:
        """Compiles a file.

        Args:
            name: which of the files.
            files: texts by the names under which they import each other.

        Returns:
            A FileDescriptorSet: what the file imports, each before what imports it, and the file; with places in the text.

        Raises:
            InvalidSchema: it is wrong; `place` is a file, a line and a column.
        """
        ...

    async def close(self) -> None:
        """Ends everything."""
        ...


class InlineCompiler:
    """Compiles in place."""

    async def compile(self, name: str, files: Mapping[str, str]) -> bytes:
        return compile_files(name, files)

    async def close(self) -> None:
        """There is nothing to end."""


class ProcessCompiler:
    """Compiles in a process, which is started for the first file, and again after one that it did not survive.

    Args:
        seconds: how long one file may take.
    """

    def __init__(self, seconds: float = REQUEST_SECONDS) -> None:
        self._seconds: Final = seconds
        self._turn: Final = asyncio.Lock()
        self._process: ChildProcess | None = None
        self._directory: tempfile.TemporaryDirectory[str] | None = None  # the process's, which may not live to remove it

    async def compile(self, name: str, files: Mapping[str, str]) -> bytes:
        async with self._turn:
            process = await self._ready()
            try:
                answer = await self._ask(process, {"name": name, "files": dict(files)}, self._seconds)
            except BaseException:
                await self._end()
                raise
        if "descriptors" in answer:
            return base64.b64decode(answer["descriptors"])
        raise InvalidSchema(answer["reason"], answer["place"])

    @property
    def process_id(self) -> int | None:
        """The process there is."""
        return None if self._process is None else self._process.process_id

    async def close(self) -> None:
        async with self._turn:
            await self._end()

    async def _end(self) -> None:
        process, self._process = self._process, None
        directory, self._directory = self._directory, None
        if process is not None:
            await process.kill()
        if directory is not None:
            directory.cleanup()

    async def _ready(self) -> ChildProcess:
        if self._process is not None and self._process.exit_code is None:
            return self._process
        await self._end()
        self._directory = tempfile.TemporaryDirectory(prefix="ottla-protobuf-", ignore_cleanup_errors=True)
        self._process = process = await ChildProcess.start(MODULE, line_size=LINE_SIZE)
        try:
            await self._ask(process, {"directory": self._directory.name}, START_SECONDS)
        except BaseException:
            await self._end()
            raise
        log.info("the process %d compiles Protobuf schemas", process.process_id)
        return process

    async def _ask(self, process: ChildProcess, request: Mapping[str, object], seconds: float) -> dict[str, str]:
        try:
            async with asyncio.timeout(seconds):
                await process.write(json.dumps(request).encode() + b"\n")
                line = await process.read()
        except TimeoutError:
            log.warning("a Protobuf schema took the compiler more than %g s; its process %d is killed", seconds, process.process_id)
            raise InvalidSchema(f"the compiler did not end within {seconds:g} s") from None
        except (OSError, ValueError):
            line = b""
        if not line:
            log.warning("a Protobuf schema ended the compiler's process %d", process.process_id)
            raise InvalidSchema("the compiler did not survive the schema")
        answer: dict[str, str] = json.loads(line)
        return answer


def compile_files(name: str, files: Mapping[str, str], directory: Path | None = None) -> bytes:
    """As `Compiler.compile`, in this process and without a bound of time.

    Args:
        name: which of the files.
        files: texts by name.
        directory: is this process's own, and stays: to make one and remove it takes longer than to compile.
    """
    from grpc_tools import _protoc_compiler, protoc  # type: ignore[import-untyped]  # late: only who compiles needs it

    directory = directory or _own_directory()
    schemas, output = directory / "schemas", directory / "descriptors"
    well_known = [Path(protoc.__file__).parent / "_proto", *_common_types()]
    paths = [str(path) for path in (schemas, directory / "built-in", *well_known)]
    try:
        _write(directory / "built-in", BUILT_IN)
        _write(schemas, files)
        try:  # gives errors with places, where `run_main` prints them
            _protoc_compiler.get_protos(name.encode(), [path.encode() for path in paths])
        except _protoc_compiler.ProtocErrors as errors:
            raise _invalid(name, errors.errors()) from None
        options = ["--include_imports", "--include_source_info", f"--descriptor_set_out={output}"]
        arguments = ["protoc", *(f"-I{path}" for path in paths), *options, name]
        if _protoc_compiler.run_main([argument.encode() for argument in arguments]) != 0:
            raise InvalidSchema("the compiler refuses the schema", name)
        return output.read_bytes()
    finally:
        for path in schemas.iterdir() if schemas.exists() else ():
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _write(directory: Path, files: Mapping[str, str]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for path, text in files.items():
        target = directory / checked_path(path)
        if files is BUILT_IN and target.exists():
            continue
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
        except (OSError, UnicodeEncodeError) as error:  # a name that is also a directory's, half of a surrogate pair
            raise InvalidSchema(f"the file cannot be written: {error}", path) from None


@cache
def _own_directory() -> Path:
    """For as long as this process lives."""
    directory = tempfile.mkdtemp(prefix="ottla-protobuf-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return Path(directory)


def _common_types() -> list[Path]:
    """The directory with `google/type`, if it is installed."""
    with contextlib.suppress(ModuleNotFoundError):
        found = find_spec("google.type")
        return [Path(place).parents[1] for place in (found.submodule_search_locations or ())] if found else []
    return []


def checked_path(path: str) -> str:
    """The name of a file, which cannot lead out of a directory.

    Raises:
        InvalidSchema: it does, or is none.
    """
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts or len(path) > NAME_LENGTH or not path.isprintable() or "\\" in path:
        raise InvalidSchema(f"{path!r} cannot be the name of a Protobuf file")
    return path


def _invalid(name: str, errors: Iterable[object]) -> InvalidSchema:
    """Of grpcio-tools's errors, which have the text of Python's bytes and count lines from 0."""
    reasons: list[str] = []
    places: list[str] = []
    for error in list(errors)[:REASON_COUNT]:
        file, message = (_plain(getattr(error, attribute)) for attribute in ("filename", "message"))
        line, column = (getattr(error, attribute) + 1 for attribute in ("line", "column"))
        reasons.append(message)
        places.append((f"{file} " if file != name else "") + (f"line {line} column {column}" if line else ""))
    return InvalidSchema("; ".join(reasons), places[0].strip() if places else "")


def _plain(text: object) -> str:
    value = ast.literal_eval(str(text)) if str(text).startswith(("b'", 'b"')) else str(text)
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
