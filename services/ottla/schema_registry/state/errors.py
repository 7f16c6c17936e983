"""What a request is refused with: an HTTP status and Confluent's code, one class for each, raised by decisions and answered as it is.

Source: `Errors.java` and the exceptions beside it in confluentinc/schema-registry.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final

from ottla.errors import OttlaError


class RegistryError(OttlaError):
    """A request that is not carried out.

    Attributes:
        code: of the body, `error_code`; its first three digits are the HTTP status.
    """

    code: ClassVar[int] = 500

    @property
    def status(self) -> int:
        """The HTTP status."""
        return self.code if self.code < 1000 else self.code // 100

    @property
    def message(self) -> str:
        """What is answered."""
        return str(self)


class MalformedRequest(RegistryError):
    """The body is not what the endpoint takes."""

    code = 400


class NotAuthenticated(RegistryError):
    """No one known, or the password is wrong."""

    code = 401


class Forbidden(RegistryError):
    """Known, and not allowed to."""

    code = 403


class NotFound(RegistryError):
    """There is no such path."""

    code = 404


class MethodNotAllowed(RegistryError):
    """The path is there and has no such method."""

    code = 405


class NotAcceptable(RegistryError):
    """None of the media types that the client accepts is answered."""

    code = 406


class Incompatible(RegistryError):
    """The schema is incompatible with an earlier one of its subject. `incompatible.schema.error.code` may make it 40901."""

    code = 409


class UnsupportedMediaType(RegistryError):
    """The body is of a type that is not read."""

    code = 415


class SubjectNotFound(RegistryError):
    """There is no such subject."""

    code = 40401


class VersionNotFound(RegistryError):
    """The subject has no such version."""

    code = 40402


class SchemaNotFound(RegistryError):
    """There is no such schema."""

    code = 40403


class SubjectSoftDeleted(RegistryError):
    """The subject was deleted already, softly."""

    code = 40404


class SubjectNotSoftDeleted(RegistryError):
    """A subject is deleted for good only after it was deleted softly."""

    code = 40405


class VersionSoftDeleted(RegistryError):
    """The version was deleted already, softly."""

    code = 40406


class VersionNotSoftDeleted(RegistryError):
    """A version is deleted for good only after it was deleted softly."""

    code = 40407


class SubjectConfigNotFound(RegistryError):
    """Nothing is configured for the subject."""

    code = 40408


class SubjectModeNotFound(RegistryError):
    """No mode is set for the subject."""

    code = 40409


class InvalidSchema(RegistryError):
    """The schema cannot be read, or refers to what is not there."""

    code = 42201


class InvalidVersion(RegistryError):
    """A version is a number from 1, `latest` or -1."""

    code = 42202


class InvalidCompatibilityLevel(RegistryError):
    """There is no such level."""

    code = 42203


class InvalidMode(RegistryError):
    """There is no such mode."""

    code = 42204


class OperationNotPermitted(RegistryError):
    """The mode of the subject does not permit it."""

    code = 42205


class ReferenceExists(RegistryError):
    """Other schemas refer to it."""

    code = 42206


class InvalidSubject(RegistryError):
    """No subject may be called so."""

    code = 42208


class SchemaTooLarge(RegistryError):
    """The schema, or the request, is larger than is allowed."""

    code = 42209


class InvalidRuleSet(RegistryError):
    """A rule is not one that could be run."""

    code = 42210


class ContextNotEmpty(RegistryError):
    """A context that has subjects is not deleted."""

    code = 42211


class StoreFailed(RegistryError):
    """The topic cannot be read or written."""

    code = 50001


class StoreTimedOut(RegistryError):
    """The topic did not take or give a record in time."""

    code = 50002


class ForwardingFailed(RegistryError):
    """The leader did not answer what was forwarded to it."""

    code = 50003


class LeaderUnknown(RegistryError):
    """No node leads, as far as this one knows."""

    code = 50004


BY_CODE: Final[Mapping[int, type[RegistryError]]] = {error.code: error for error in RegistryError.__subclasses__()}


def subject_not_found(subject: str) -> SubjectNotFound:
    """As Confluent words it."""
    return SubjectNotFound(f"Subject '{subject}' not found.")


def version_not_found(version: int) -> VersionNotFound:
    """As Confluent words it."""
    return VersionNotFound(f"Version {version} not found.")


def schema_not_found(id_or_guid: int | str | None = None) -> SchemaNotFound:
    """As Confluent words it."""
    return SchemaNotFound("Schema not found" if id_or_guid is None else f"Schema {id_or_guid} not found")
