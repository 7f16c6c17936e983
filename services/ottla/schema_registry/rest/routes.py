"""Every path of the registry's API: the one table that the router, OpenAPI and docs/schema-registry.md are made of.

Each path is also there behind `/contexts/{context}`. A path that is not here is answered with 404, as `/associations`, `/exporters` and
`/dek-registry` are: clients look there first and take that for "not in use".

Source: `schema-registry-api-spec.yaml` in confluentinc/schema-registry. What is Ottla's own says so in its summary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal
from urllib.parse import unquote

from ottla.schema_registry.state import errors as e
from ottla.schema_registry.state.errors import MethodNotAllowed, NotFound, RegistryError

Kind = Literal["boolean", "integer", "string", "list"]


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of the query."""

    name: str
    kind: Kind
    doc: str
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Route:
    """One method of one path.

    Attributes:
        name: of the method of `Api` that answers, and of the operation in OpenAPI.
        writes: whether the leader has to carry it out.
        body: what is sent, as `BODIES` has it.
        answer: what comes back, in words.
        errors: beside those that every path may answer with.
        status: of an answer that is no error.
    """

    method: str
    path: str
    name: str
    summary: str
    answer: str
    parameters: tuple[Parameter, ...] = ()
    errors: tuple[type[RegistryError], ...] = ()
    body: str = ""
    writes: bool = False
    status: int = 200
    segments: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "segments", tuple(self.path.strip("/").split("/")) if self.path != "/" else ())


# What bodies hold, for OpenAPI: by field its type, and whether it has to be there.
BODIES: Final[Mapping[str, Mapping[str, str]]] = {
    "schema": {
        "schema": "string",
        "schemaType": "string",
        "references": "array",
        "metadata": "object",
        "ruleSet": "object",
        "id": "integer",
        "version": "integer",
        "schemaTagsToAdd": "array",
        "schemaTagsToRemove": "array",
        "propagateSchemaTags": "boolean",
    },
    "config": {
        "compatibility": "string",
        "alias": "string",
        "normalize": "boolean",
        "validateFields": "boolean",
        "validateNewSchemas": "boolean",
        "validateRules": "boolean",
        "compatibilityPolicy": "string",
        "compatibilityGroup": "string",
        "defaultMetadata": "object",
        "overrideMetadata": "object",
        "defaultRuleSet": "object",
        "overrideRuleSet": "object",
    },
    "mode": {"mode": "string"},
    "tags": {
        "newVersion": "integer",
        "tagsToAdd": "array",
        "tagsToRemove": "array",
        "metadata": "object",
        "ruleSet": "object",
        "rulesToMerge": "object",
        "rulesToRemove": "array",
    },
}


def _flag(name: str, doc: str) -> Parameter:
    return Parameter(name, "boolean", doc)


DELETED: Final = _flag("deleted", "Softly deleted ones too.")
DELETED_ONLY: Final = _flag("deletedOnly", "Softly deleted ones and no others.")
OFFSET: Final = Parameter("offset", "integer", "How many to leave out.")
LIMIT: Final = Parameter("limit", "integer", "How many at most; the settings have a bound.")
PAGE: Final = (OFFSET, LIMIT)
FORMAT: Final = Parameter("format", "string", "`resolved` (Avro, JSON), `serialized` or `ignore_extensions` (Protobuf).")
REFERENCE_FORMAT: Final = Parameter("referenceFormat", "string", "`qualified`: references with their contexts.", ("reference_format",))
FIND_TAGS: Final = Parameter("findTags", "list", "Where these tags stand in the schema; `*` is any.")
SUBJECT: Final = Parameter("subject", "string", "The subject, or the context, in which the id is looked for.")
NORMALIZE: Final = _flag("normalize", "In the normal form, in which schemas that differ in order only are the same.")
PERMANENT: Final = _flag("permanent", "For good, which takes a soft delete before.")
DEFAULT_TO_GLOBAL: Final = _flag("defaultToGlobal", "What holds, where nothing is set here.")
FORCE: Final = _flag("force", "Also where that is dangerous.")
RECURSIVE: Final = _flag("recursive", "Of all subjects of the context, too.")
SUBJECT_PREFIX: Final = Parameter("subjectPrefix", "string", "Only subjects that begin so; `:*:` before it looks in every context.")
VERBOSE: Final = _flag("verbose", "Say why, with the rule, the path and how to mend it.")
DRY_RUN: Final = _flag("dryRun", "Write nothing, and answer what would be. Ottla's own.")

_READ: Final = (e.SubjectNotFound, e.VersionNotFound, e.InvalidVersion)
_WRITE: Final = (e.OperationNotPermitted, e.StoreFailed, e.StoreTimedOut, e.ForwardingFailed, e.LeaderUnknown)
_SCHEMA: Final = (e.InvalidSchema, e.SchemaTooLarge)

ROUTES: Final[tuple[Route, ...]] = (
    Route("GET", "/", "root", "Whether someone is there", "`{}`"),
    Route("POST", "/", "root", "Whether someone is there", "`{}`"),
    Route(
        "GET",
        "/schemas",
        "schemas",
        "Schemas, by subject and version",
        "a list of versions",
        (
            SUBJECT_PREFIX,
            _flag("aliases", "With names that stand for others."),
            DELETED,
            _flag("latestOnly", "Of each subject the latest."),
            Parameter("ruleType", "string", "Only those with a rule of this type."),
            *PAGE,
        ),
    ),
    Route("GET", "/schemas/types", "schema_types", "The types of schemas", '`["JSON","PROTOBUF","AVRO"]`'),
    Route(
        "GET",
        "/schemas/ids/{id}",
        "schema_by_id",
        "A schema by its id",
        "the schema",
        (SUBJECT, FORMAT, REFERENCE_FORMAT, FIND_TAGS, _flag("fetchMaxId", "With the highest id as `maxId`.")),
        (e.SchemaNotFound,),
    ),
    Route(
        "GET",
        "/schemas/ids/{id}/schema",
        "schema_text_by_id",
        "The text of a schema alone",
        "the text",
        (SUBJECT, FORMAT),
        (e.SchemaNotFound,),
    ),
    Route(
        "GET",
        "/schemas/ids/{id}/subjects",
        "subjects_by_id",
        "The subjects that have an id",
        "a list of names",
        (SUBJECT, DELETED, *PAGE),
        (e.SchemaNotFound,),
    ),
    Route(
        "GET",
        "/schemas/ids/{id}/versions",
        "versions_by_id",
        "The versions that have an id",
        "a list of subject and version",
        (SUBJECT, DELETED, *PAGE),
        (e.SchemaNotFound,),
    ),
    Route("GET", "/schemas/guids/{guid}", "schema_by_guid", "A schema by its guid", "the schema", (FORMAT,), (e.SchemaNotFound,)),
    Route("GET", "/schemas/guids/{guid}/ids", "ids_by_guid", "The ids that a guid has, by context", "a list of context and id"),
    Route(
        "GET",
        "/subjects",
        "subjects",
        "The subjects",
        "a list of names",
        (SUBJECT_PREFIX, DELETED, DELETED_ONLY, *PAGE),
    ),
    Route(
        "POST",
        "/subjects/{subject}",
        "look_up",
        "Whether a subject has a schema, and as which version",
        "the version",
        (NORMALIZE, FORMAT, DELETED),
        (e.SubjectNotFound, e.SchemaNotFound, *_SCHEMA),
        "schema",
    ),
    Route(
        "DELETE",
        "/subjects/{subject}",
        "delete_subject",
        "Delete a subject",
        "the numbers of the versions",
        (PERMANENT,),
        (e.SubjectNotFound, e.SubjectSoftDeleted, e.SubjectNotSoftDeleted, e.ReferenceExists, *_WRITE),
        writes=True,
    ),
    Route(
        "POST",
        "/subjects/{subject}/undelete",
        "undelete_subject",
        "Take the soft deletion of a subject back. Ottla's own",
        "the numbers of the versions",
        (),
        (e.SubjectNotFound, *_WRITE),
        writes=True,
    ),
    Route(
        "GET",
        "/subjects/{subject}/metadata",
        "latest_with_metadata",
        "The latest version with these properties",
        "the version",
        (
            Parameter("key", "list", "The names of the properties."),
            Parameter("value", "list", "Their values, in the same order."),
            FORMAT,
            DELETED,
        ),
        (e.SubjectNotFound, e.SchemaNotFound),
    ),
    Route(
        "GET",
        "/subjects/{subject}/versions",
        "versions",
        "The versions of a subject",
        "a list of numbers",
        (DELETED, DELETED_ONLY, _flag("deletedAsNegative", "Softly deleted ones as negative numbers."), *PAGE),
        (e.SubjectNotFound,),
    ),
    Route(
        "POST",
        "/subjects/{subject}/versions",
        "register",
        "Register a schema under a subject",
        "id, version and schema",
        (NORMALIZE, FORMAT, FORCE, DRY_RUN),
        (e.Incompatible, e.InvalidSubject, e.InvalidRuleSet, *_SCHEMA, *_WRITE),
        "schema",
        writes=True,
    ),
    Route(
        "GET",
        "/subjects/{subject}/versions/{version}",
        "version",
        "A version of a subject: a number, `latest` or -1",
        "the version",
        (FORMAT, REFERENCE_FORMAT, DELETED, FIND_TAGS),
        _READ,
    ),
    Route(
        "DELETE",
        "/subjects/{subject}/versions/{version}",
        "delete_version",
        "Delete a version",
        "its number",
        (PERMANENT,),
        (*_READ, e.VersionSoftDeleted, e.VersionNotSoftDeleted, e.ReferenceExists, *_WRITE),
        writes=True,
    ),
    Route(
        "POST",
        "/subjects/{subject}/versions/{version}/undelete",
        "undelete_version",
        "Take the soft deletion of a version back. Ottla's own",
        "its number",
        (),
        (*_READ, e.VersionNotSoftDeleted, *_WRITE),
        writes=True,
    ),
    Route(
        "GET",
        "/subjects/{subject}/versions/{version}/schema",
        "version_text",
        "The text of a version alone",
        "the text",
        (FORMAT, DELETED),
        _READ,
    ),
    Route(
        "GET",
        "/subjects/{subject}/versions/{version}/referencedby",
        "referenced_by",
        "The schemas that refer to a version",
        "a list of ids",
        (DELETED, *PAGE),
        _READ,
    ),
    Route(
        "POST",
        "/subjects/{subject}/versions/{version}/tags",
        "modify_tags",
        "Change tags, metadata and rules; that makes another version",
        "id, version and schema",
        (),
        (*_READ, e.Incompatible, e.InvalidRuleSet, *_SCHEMA, *_WRITE),
        "tags",
        writes=True,
    ),
    Route(
        "GET",
        "/subjects/{subject}/versions/{version}/diff/{other}",
        "diff",
        "Where two versions differ. Ottla's own",
        "a list of kind, path, before and after",
        (),
        _READ,
    ),
    Route(
        "POST",
        "/compatibility/subjects/{subject}/versions",
        "check_all",
        "Whether a schema is compatible with a subject's versions",
        "`is_compatible`",
        (NORMALIZE, VERBOSE),
        _SCHEMA,
        "schema",
    ),
    Route(
        "POST",
        "/compatibility/subjects/{subject}/versions/{version}",
        "check_one",
        "Whether a schema is compatible with one version",
        "`is_compatible`",
        (NORMALIZE, VERBOSE),
        (e.VersionNotFound, e.InvalidVersion, *_SCHEMA),
        "schema",
    ),
    Route("GET", "/config", "top_config", "The config where nothing else is set", "the config", (DEFAULT_TO_GLOBAL,)),
    Route(
        "PUT",
        "/config",
        "put_top_config",
        "Set it",
        "what was set",
        (),
        (e.InvalidCompatibilityLevel, e.InvalidRuleSet, *_WRITE),
        "config",
        writes=True,
    ),
    Route("DELETE", "/config", "delete_top_config", "Take it away", "the former one", (), _WRITE, writes=True),
    Route(
        "GET",
        "/config/{subject}",
        "config",
        "The config of a subject or a context",
        "the config",
        (DEFAULT_TO_GLOBAL,),
        (e.SubjectConfigNotFound,),
    ),
    Route(
        "PUT",
        "/config/{subject}",
        "put_config",
        "Set it",
        "what was set",
        (),
        (e.InvalidCompatibilityLevel, e.InvalidSubject, e.InvalidRuleSet, *_WRITE),
        "config",
        writes=True,
    ),
    Route("DELETE", "/config/{subject}", "delete_config", "Take it away", "the former one", (), (e.SubjectNotFound, *_WRITE), writes=True),
    Route("GET", "/mode", "top_mode", "The mode where no other is set", "the mode", (DEFAULT_TO_GLOBAL,)),
    Route("PUT", "/mode", "put_top_mode", "Set it", "the mode", (FORCE,), (e.InvalidMode, e.ReferenceExists, *_WRITE), "mode", writes=True),
    Route("DELETE", "/mode", "delete_top_mode", "Take it away", "the former one", (RECURSIVE,), _WRITE, writes=True),
    Route(
        "GET", "/mode/{subject}", "mode", "The mode of a subject or a context", "the mode", (DEFAULT_TO_GLOBAL,), (e.SubjectModeNotFound,)
    ),
    Route(
        "PUT",
        "/mode/{subject}",
        "put_mode",
        "Set it",
        "the mode",
        (FORCE,),
        (e.InvalidMode, e.InvalidSubject, e.ReferenceExists, *_WRITE),
        "mode",
        writes=True,
    ),
    Route(
        "DELETE",
        "/mode/{subject}",
        "delete_mode",
        "Take it away",
        "the former one",
        (RECURSIVE,),
        (e.SubjectNotFound, *_WRITE),
        writes=True,
    ),
    Route(
        "GET",
        "/contexts",
        "contexts",
        "The contexts",
        "a list of names",
        (*PAGE, Parameter("contextPrefix", "string", "Only those that begin so.")),
    ),
    Route(
        "DELETE",
        "/contexts/{context}",
        "delete_context",
        "Remove a context without subjects",
        "nothing",
        (),
        (e.ContextNotEmpty, *_WRITE),
        writes=True,
        status=204,
    ),
    Route("GET", "/v1/metadata/id", "cluster_id", "Which cluster this is", "`id` and `scope`"),
    Route("GET", "/v1/metadata/version", "server_version", "Which release this is", "`version` and `commitId`"),
    Route("GET", "/v1/metadata/deployment", "deployment", "How it is deployed", "`attributes`"),
    Route("GET", "/openapi.json", "openapi", "This table as OpenAPI. Ottla's own", "an OpenAPI document"),
)


@dataclass(frozen=True, slots=True)
class Match:
    """A path that is there.

    Attributes:
        routes: by method.
        values: of the path's parameters.
        context: that stood before the path, as it was written; None for none.
    """

    routes: Mapping[str, Route]
    values: Mapping[str, str]
    context: str | None

    def route(self, method: str) -> Route:
        """The route of a method; HEAD is answered as GET is, without the body.

        Raises:
            MethodNotAllowed: the path has no such method.
        """
        found = self.routes.get("GET" if method == "HEAD" else method)
        if found is None:
            raise MethodNotAllowed("HTTP 405 Method Not Allowed")
        return found


class _Node:
    def __init__(self) -> None:
        self.literal: dict[str, _Node] = {}
        self.parameter: tuple[str, _Node] | None = None
        self.routes: dict[str, Route] = {}


class Router:
    """Finds the routes of a path."""

    def __init__(self, routes: Sequence[Route] = ROUTES) -> None:
        self._root = _Node()
        for route in routes:
            node = self._root
            for segment in route.segments:
                if segment.startswith("{"):
                    if node.parameter is None:
                        node.parameter = segment[1:-1], _Node()
                    node = node.parameter[1]
                else:
                    node = node.literal.setdefault(segment, _Node())
            node.routes[route.method] = route

    def find(self, path: str) -> Match:
        """What a path stands for. Slashes at its end, and two in a row, are as none; `%2F` is part of a name.

        Raises:
            NotFound: there is none.
        """
        segments = [unquote(segment) for segment in path.split("/") if segment]
        context = None
        if len(segments) > 2 and segments[0] == "contexts":
            context, segments = segments[1], segments[2:]
        node, values = self._root, {}
        for segment in segments:
            child = node.literal.get(segment)
            if child is None and node.parameter is not None:
                name, child = node.parameter
                values[name] = segment
            if child is None:
                raise NotFound("HTTP 404 Not Found")
            node = child
        if not node.routes:
            raise NotFound("HTTP 404 Not Found")
        return Match(node.routes, values, context)
