"""One way in for all formats: text to `ParsedSchema`.

Avro and JSON Schema are read in place, within counted steps; Protobuf's compiler may be a process, so reading is awaited.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ottla.schema_registry.formats import avro, json_schema, protobuf
from ottla.schema_registry.formats.interface import InvalidSchema, Limits, ParsedSchema, SchemaType
from ottla.schema_registry.formats.protobuf_compiler import Compiler, ProcessCompiler


class Formats:
    """Reads schemas of every format.

    Args:
        limits: bounds of a schema's text and of the work on it.
        compiler: of Protobuf; a process by default, which is started for the first schema.
    """

    def __init__(self, limits: Limits | None = None, compiler: Compiler | None = None) -> None:
        self.limits: Final = limits or Limits()
        self._compiler: Final = compiler or ProcessCompiler()

    async def parse(
        self, schema_type: SchemaType, text: str, references: Mapping[str, str], is_new: bool = True, normalize: bool = False
    ) -> ParsedSchema:
        """Reads a schema together with those that it references.

        Args:
            schema_type: its format.
            text: the schema.
            references: the texts of all schemas that it references, directly or not, by the name of the reference; each after those
                that it needs itself.
            is_new: whether a client sends it; what stands in a registry already is read less strictly.
            normalize: gives the schema of the normalised text instead.

        Raises:
            InvalidSchema: the schema, or one that it references, cannot be read.
        """
        parsed = await self._parse(schema_type, text, references, is_new)
        if normalize and parsed.normalized != parsed.canonical:
            return await self._parse(schema_type, parsed.normalized, references, is_new, is_normal=True)
        return parsed

    async def _parse(
        self, schema_type: SchemaType, text: str, references: Mapping[str, str], is_new: bool, is_normal: bool = False
    ) -> ParsedSchema:
        try:
            match schema_type:
                case SchemaType.AVRO:
                    return avro.parse(text, references, self.limits, is_new)
                case SchemaType.JSON:
                    return json_schema.parse(text, references, self.limits)
                case SchemaType.PROTOBUF:
                    return await protobuf.parse(text, references, self.limits, self._compiler, is_normal=is_normal)
        except RecursionError:
            raise InvalidSchema("the schema is nested too deep") from None

    async def close(self) -> None:
        """Ends what the formats have started."""
        await self._compiler.close()
