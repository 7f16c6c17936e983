"""The formats of schemas: Avro, JSON Schema and Protobuf behind one interface (`interface.py`), opened by `Formats`.

A format parses the text of a schema with the texts that it references, writes it in its canonical and its normalised form, and
says whether one schema reads what another wrote. What differs between formats stays in the format's own module.

Nothing here knows a subject, a version or an id, and nothing opens a socket: references come as text.
"""

from __future__ import annotations

from ottla.schema_registry.formats.interface import (
    Change,
    CompatibilityLevel,
    CompatibilityPolicy,
    EntityType,
    Incompatibility,
    InvalidSchema,
    Limits,
    ParsedSchema,
    SchemaEntity,
    SchemaTooLarge,
    SchemaType,
    Tags,
    changes_between,
    check_compatibility,
)
from ottla.schema_registry.formats.parser import Formats
from ottla.schema_registry.formats.protobuf_compiler import InlineCompiler

__all__ = [
    "Change",
    "CompatibilityLevel",
    "CompatibilityPolicy",
    "EntityType",
    "Formats",
    "Incompatibility",
    "InlineCompiler",
    "InvalidSchema",
    "Limits",
    "ParsedSchema",
    "SchemaEntity",
    "SchemaTooLarge",
    "SchemaType",
    "Tags",
    "changes_between",
    "check_compatibility",
]
