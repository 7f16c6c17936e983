"""`ottla schema`: the schemas of a registry, over its HTTP API; of Ottla's or of any that speaks Confluent's.

`doctor` asks Ottla's own gRPC. `export` writes, and `import` reads, a line of JSON for each version with its id, so that a registry is
copied with the ids that its messages carry.
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import quote, urlencode, urlsplit

import typer

from ottla.cli.connection import Json, RpcConfig, commands, pairs, rpc_tls
from ottla.cli.errors import CommandFailed, UsageError
from ottla.cli.output import count_of, fields_of, note, say, say_json, table
from ottla.errors import reason_of

DEFAULT_URL: Final = "http://127.0.0.1:8081"
DEFAULT_RPC: Final = "127.0.0.1:9095"
TIMEOUT_SECONDS: Final = 30.0
_IMPORT: Final = "IMPORT"
_OVERRIDE: Final = "READONLY_OVERRIDE"
_MEDIA_TYPE: Final = "application/vnd.schemaregistry.v1+json"
_TYPES_BY_SUFFIX: Final = {".avsc": "AVRO", ".avdl": "AVRO", ".json": "JSON", ".proto": "PROTOBUF"}

app = commands("List, register, check, compare and copy the schemas of a registry.")

Url = Annotated[str, typer.Option("--registry", "-r", metavar="URL", envvar="OTTLA_SCHEMA_REGISTRY", help="Where the registry answers.")]
UserInfo = Annotated[
    str | None, typer.Option("--user", "-u", metavar="NAME:PASSWORD", envvar="OTTLA_SCHEMA_REGISTRY_USER", help="Who asks.")
]
Subject = Annotated[str, typer.Argument(metavar="SUBJECT")]
Scope = Annotated[str | None, typer.Argument(metavar="[SUBJECT]", help="A subject, or a context as `:.name:`. [default: the top]")]
Version = Annotated[str, typer.Argument(metavar="[VERSION]", help="A number, or `latest`.")]
SchemaFile = Annotated[Path, typer.Argument(metavar="FILE", allow_dash=True, help="The schema; - is stdin.")]
SchemaType = Annotated[
    str | None, typer.Option("--type", "-t", help="AVRO, JSON or PROTOBUF. [default: by the file's name, else AVRO]", show_default=False)
]
References = Annotated[
    list[str] | None,
    typer.Option("--reference", metavar="NAME=SUBJECT:VERSION", help="A schema that this one uses; may be repeated."),
]
Normalize = Annotated[bool, typer.Option("--normalize", help="In the normal form.")]


class Refused(CommandFailed):
    """What a registry answered that is no success."""

    def __init__(self, status: int, code: int, message: str) -> None:
        super().__init__(f"{message} ({code})")
        self.status = status
        self.code = code


def connection_to(url: str, option: str) -> tuple[http.client.HTTPConnection, str]:
    """What a URL leads to, and its path; nothing is connected yet.

    Raises:
        UsageError: it is no URL of HTTP.
    """
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme == "https" and parts.hostname:
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(parts.hostname, parts.port, timeout=TIMEOUT_SECONDS, context=context), parts.path
        if parts.scheme == "http" and parts.hostname:
            return http.client.HTTPConnection(parts.hostname, parts.port, timeout=TIMEOUT_SECONDS), parts.path
    except (ValueError, http.client.InvalidURL):
        pass
    raise UsageError(f"{option} takes http://host:port, and {url!r} is not of that form")


class Registry:
    """A registry's API; one connection for all that a command asks."""

    def __init__(self, url: str, user: str | None) -> None:
        self.url = url
        self._connection, path = connection_to(url, "--registry")
        self._path = path.rstrip("/")
        self._headers = {"Accept": f"{_MEDIA_TYPE}, application/json"}
        if user is not None:
            self._headers["Authorization"] = "Basic " + base64.b64encode(user.encode()).decode()

    def ask(self, method: str, *path: str, body: Any = None, **query: object) -> Any:
        """The answer's JSON.

        Args:
            path: its segments, as they are meant.
            query: what is None is left out.

        Raises:
            Refused: the registry says no.
            CommandFailed: no registry answers.
        """
        asked = {name: str(value).lower() if isinstance(value, bool) else value for name, value in query.items() if value is not None}
        target = self._path + "".join(f"/{quote(segment, safe=':')}" for segment in path) + (f"?{urlencode(asked)}" if asked else "")
        content = None if body is None else json.dumps(body).encode()
        headers = self._headers if content is None else {**self._headers, "Content-Type": _MEDIA_TYPE}
        try:
            self._connection.request(method, target, content, headers)
            response = self._connection.getresponse()
            answer = response.read()
        except (OSError, http.client.HTTPException, UnicodeError) as error:
            raise CommandFailed(f"no schema registry answers at {self.url}: {reason_of(error)}") from None
        try:
            found = json.loads(answer) if answer else None
        except ValueError:
            raise CommandFailed(f"{self.url} answers {response.status} and no JSON: is it a schema registry?") from None
        if response.status >= 300:
            said = found if isinstance(found, dict) else {}
            raise Refused(response.status, said.get("error_code", response.status), said.get("message", response.reason))
        return found


def _text_of(file: Path) -> str:
    try:
        return sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} cannot be read: {error}") from None


def _body(file: Path, schema_type: str | None, references: Sequence[str] | None) -> dict[str, Any]:
    kind = (schema_type or _TYPES_BY_SUFFIX.get(file.suffix, "AVRO")).upper()
    if kind not in ("AVRO", "JSON", "PROTOBUF"):
        raise UsageError(f"--type takes AVRO, JSON or PROTOBUF, and not {schema_type!r}")
    found = []
    for reference in references or ():
        name, equals, target = reference.partition("=")
        subject, colon, version = target.rpartition(":")
        if not equals or not colon or not version.removeprefix("-").isdecimal():
            raise UsageError(f"--reference takes NAME=SUBJECT:VERSION, and {reference!r} is not of that form")
        found.append({"name": name, "subject": subject, "version": int(version)})
    return {"schema": _text_of(file), "schemaType": kind, "references": found}


@app.command("list")
def list_subjects(
    prefix: Annotated[str, typer.Option("--prefix", help="Only subjects that begin so.")] = ":*:",
    deleted: Annotated[bool, typer.Option("--deleted", help="Softly deleted ones too.")] = False,
    as_json: Json = False,
    registry: Url = DEFAULT_URL,
    user: UserInfo = None,
) -> None:
    """List the subjects with their latest versions."""
    asked = Registry(registry, user)
    subjects = asked.ask("GET", "subjects", subjectPrefix=prefix, deleted=deleted or None)
    rows = []
    for subject in subjects:
        try:
            latest = asked.ask("GET", "subjects", subject, "versions", "latest")
        except Refused as error:
            if error.status != 404:
                raise
            rows.append((subject, "deleted", None, None))
        else:
            rows.append((subject, latest.get("schemaType", "AVRO"), latest["version"], latest["id"]))
    if as_json:
        say_json([{"subject": name, "type": kind, "version": version, "id": number} for name, kind, version, number in rows])
    else:
        say(table(("subject", "type", "version", "id"), rows) if rows else f"No subjects on {registry}.")


@app.command()
def describe(
    subject: Subject,
    version: Version = "latest",
    as_json: Json = False,
    registry: Url = DEFAULT_URL,
    user: UserInfo = None,
) -> None:
    """Show a version of a subject, and its text."""
    found = Registry(registry, user).ask("GET", "subjects", subject, "versions", version)
    if as_json:
        say_json(found)
        return
    say(f"{found['subject']}, version {found['version']}, id {found['id']}, {found.get('schemaType', 'AVRO')}")
    for reference in found.get("references", ()):
        say(f"  uses {reference['name']}: {reference['subject']}, version {reference['version']}")
    for name, value in found.get("metadata", {}).get("properties", {}).items():
        say(f"  {name}: {value}")
    say(_shown(found["schema"]))


def _shown(text: str) -> str:
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except ValueError:
        return text.rstrip("\n")


@app.command()
def register(
    subject: Subject,
    file: SchemaFile,
    schema_type: SchemaType = None,
    references: References = None,
    normalize: Normalize = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Write nothing, and say what would be.")] = False,
    registry: Url = DEFAULT_URL,
    user: UserInfo = None,
) -> None:
    """Register a schema under a subject, and print its id.

    Example: `ottla schema register clicks-value clicks.avsc`
    """
    body = _body(file, schema_type, references)
    query = {"normalize": normalize or None, "dryRun": dry_run or None}
    found = Registry(registry, user).ask("POST", "subjects", subject, "versions", body=body, **query)
    would = "would be " if dry_run else ""
    say(f"{subject} {would}version {found['version']}, id {found['id']}" if "version" in found else f"{subject} {would}id {found['id']}")


@app.command()
def check(
    subject: Subject,
    file: SchemaFile,
    schema_type: SchemaType = None,
    references: References = None,
    version: Annotated[str | None, typer.Option("--version", help="Against one version. [default: as a registration is]")] = None,
    registry: Url = DEFAULT_URL,
    user: UserInfo = None,
) -> None:
    """Say whether a schema is compatible with a subject, and why it is not; exit code 1 when it is not."""
    path = ["compatibility", "subjects", subject, "versions", *([version] if version else [])]
    found = Registry(registry, user).ask("POST", *path, body=_body(file, schema_type, references), verbose=True)
    if not found["is_compatible"]:
        raise CommandFailed("\n".join([f"incompatible with {subject}:", *(f"  {message}" for message in found.get("messages", ()))]))
    say(f"compatible with {subject}")


@app.command()
def diff(
    subject: Subject,
    old: Annotated[str, typer.Argument(metavar="OLD")],
    new: Annotated[str, typer.Argument(metavar="[NEW]")] = "latest",
    as_json: Json = False,
    registry: Url = DEFAULT_URL,
    user: UserInfo = None,
) -> None:
    """Show where two versions of a subject differ."""
    changes = Registry(registry, user).ask("GET", "subjects", subject, "versions", old, "diff", new)
    if as_json:
        say_json(changes)
    elif not changes:
        say("no difference")
    for change in () if as_json else changes:
        mark = {"added": "+", "removed": "-", "changed": "~"}[change["kind"]]
        before, after = (json.dumps(change[side], ensure_ascii=False) for side in ("before", "after"))
        shown = {"added": after, "removed": before, "changed": f"{before} -> {after}"}[change["kind"]]
        say(f"{mark} {change['path']}  {shown}")


def _below(name: str, value: str | None, *path: str) -> list[str]:
    """What comes behind a path. One that is empty, as a script's variable may be, does not mean all there is."""
    if value is not None and not value.strip():
        raise UsageError(f"{name} is empty; leave it out if that is meant")
    return [] if value is None else [*path, value]


@app.command()
def delete(
    subject: Subject,
    version: Annotated[str | None, typer.Argument(metavar="[VERSION]", help="One version. [default: all]")] = None,
    permanent: Annotated[bool, typer.Option("--permanent", help="For good; softly before, if that was not done.")] = False,
    registry: Url = DEFAULT_URL,
    user: UserInfo = None,
) -> None:
    """Delete a subject or a version: softly, so that messages with its id can still be read, or for good."""
    asked = Registry(registry, user)
    path = ["subjects", subject, *_below("VERSION", version, "versions")]
    deleted: Any = None
    try:
        deleted = asked.ask("DELETE", *path)
    except Refused as error:
        if not permanent or error.code not in (40404, 40406):
            raise
    if permanent:
        if version is not None and deleted is not None:
            path[-1] = str(deleted)  # `latest` is the one before it by now
        deleted = asked.ask("DELETE", *path, permanent=True)
    numbers = deleted if isinstance(deleted, list) else [deleted]
    say(f"Deleted {count_of(len(numbers), 'version')} of {subject}{' for good' if permanent else ''}: {', '.join(map(str, numbers))}")


@app.command()
def undelete(
    subject: Subject,
    version: Annotated[str | None, typer.Argument(metavar="[VERSION]", help="One version. [default: all]")] = None,
    registry: Url = DEFAULT_URL,
    user: UserInfo = None,
) -> None:
    """Take a soft deletion back."""
    path = ["subjects", subject, *_below("VERSION", version, "versions"), "undelete"]
    found = Registry(registry, user).ask("POST", *path, body={})
    numbers = found if isinstance(found, list) else [found]
    say(f"{subject} has {count_of(len(numbers), 'version')} back: {', '.join(map(str, numbers)) or 'none was deleted'}")


@app.command()
def config(
    subject: Scope = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", "-s", metavar="KEY=VALUE", help="compatibility=FULL, normalize=true, alias=…")
    ] = None,
    delete_it: Annotated[bool, typer.Option("--delete", help="Take it away; what holds then is the next scope's.")] = False,
    registry: Url = DEFAULT_URL,
    user: UserInfo = None,
) -> None:
    """Show, set or delete a config: compatibility and what else there is."""
    asked = Registry(registry, user)
    path = ["config", *_below("SUBJECT", subject)]
    if delete_it:
        say_json(asked.ask("DELETE", *path))
    elif settings:
        body = {name: {"true": True, "false": False, "null": None}.get(text, text) for name, text in pairs(settings, "--set").items()}
        say_json(asked.ask("PUT", *path, body=body))
    else:
        say_json(asked.ask("GET", *path, defaultToGlobal=True))


@app.command()
def mode(
    subject: Scope = None,
    to: Annotated[
        str | None,
        typer.Option("--set", "-s", metavar="MODE", help="READWRITE, READONLY, READONLY_OVERRIDE, IMPORT; FORWARD of the top alone."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="IMPORT although there are subjects.")] = False,
    registry: Url = DEFAULT_URL,
    user: UserInfo = None,
) -> None:
    """Show or set a mode."""
    asked = Registry(registry, user)
    path = ["mode", *_below("SUBJECT", subject)]
    if to is None:
        found = asked.ask("GET", *path, defaultToGlobal=True)
    else:
        found = asked.ask("PUT", *path, body={"mode": to.upper()}, force=force or None)
    say(found["mode"])


@app.command()
def doctor(
    rpc: Annotated[str, typer.Option("--rpc", metavar="HOST:PORT", help="`rpc.listener` of a node.")] = DEFAULT_RPC,
    config: RpcConfig = None,
    as_json: Json = False,
) -> None:
    """Say where a node stands and what is wrong with its topic; exit code 1 when something is."""
    import asyncio

    from ottla.errors import ApiError
    from ottla.rpc.channel import RpcChannel  # it imports grpc, at a tenth of a second
    from ottla.rpc.v1 import schema_registry_pb2 as messages
    from ottla.rpc.v1 import schema_registry_pb2_grpc as services

    tls = rpc_tls(config)

    async def asked() -> tuple[messages.SchemaRegistryStatusResponse, messages.DoctorResponse]:
        channel = RpcChannel(rpc, tls=tls)
        try:
            stub = services.SchemaRegistryStub(channel.grpc_channel)
            status = await channel.call(stub.Status, messages.SchemaRegistryStatusRequest(), TIMEOUT_SECONDS)
            return status, await channel.call(stub.Doctor, messages.DoctorRequest(), TIMEOUT_SECONDS)
        finally:
            await channel.close()

    try:
        status, found = asyncio.run(asked())
    except ApiError as error:
        raise CommandFailed(
            f"no schema registry answers by gRPC (`rpc.listener`) at {rpc}: {str(error).removeprefix(f'{rpc}: ')}"
        ) from None
    complaints = [found.fault] if found.fault else []
    complaints += [f"{count_of(found.conflict_count, 'record')} with an id of another schema"] if found.conflict_count else []
    complaints += [f"{count_of(found.unreadable_count, 'unreadable record')}"] if found.unreadable_count else []
    complaints += [f"{count_of(len(found.dangling_references), 'reference')} that leads nowhere"] if found.dangling_references else []
    if as_json:
        say_json({"status": fields_of(status), "doctor": fields_of(found)})
    else:
        leader = "leads" if status.is_leader else f"follows {status.leader_url}" if status.leader_url else "knows no leader"
        say(f"{status.url} {leader}; epoch {status.epoch}, offset {status.next_offset}, {count_of(status.subject_count, 'subject')}")
        for conflict in found.conflicts:
            place = f"{conflict.subject}/{conflict.version}"
            say(f"  offset {conflict.offset}: {place} has id {conflict.id}, which is {conflict.holder}'s: {conflict.schema[:200]}")
        for reference in found.dangling_references:
            say(f"  {reference.subject}/{reference.version} refers to {reference.reference_subject}/{reference.reference_version}")
        if found.dropped_count:
            say(f"  {count_of(found.dropped_count, 'record')} of former leaders came late and was dropped, as it should be")
    if complaints:
        raise CommandFailed("; ".join(complaints))


@app.command("export")
def export(
    prefix: Annotated[str, typer.Option("--prefix", help="Only subjects that begin so.")] = ":*:",
    registry: Url = DEFAULT_URL,
    user: UserInfo = None,
) -> None:
    """Write all versions as lines of JSON, with their ids, softly deleted ones too; what others refer to comes first.

    Example: `ottla schema export -r http://old:8081 | ottla schema import -r http://new:8081`
    """
    asked = Registry(registry, user)
    versions = []
    for subject in asked.ask("GET", "subjects", subjectPrefix=prefix, deleted=True):
        path = ("subjects", subject, "versions")
        there = _versions_there(asked, *path)
        for number in asked.ask("GET", *path, deleted=True):
            version = asked.ask("GET", *path, str(number), deleted=True)
            versions.append(version if number in there else {**version, "deleted": True})
    for version in _in_order(versions):
        say(json.dumps({name: value for name, value in version.items() if name not in ("guid", "ts")}, ensure_ascii=False))


def _versions_there(asked: Registry, *path: str) -> list[int]:
    """Those that are not softly deleted: not every registry says of a version that it is."""
    try:
        found: list[int] = asked.ask("GET", *path)
        return found
    except Refused as error:
        if error.status != 404:
            raise
        return []


def _in_order(versions: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Each after those that it refers to, otherwise by id."""
    from ottla.schema_registry.state import names

    waiting = {(version["subject"], version["version"]): version for version in sorted(versions, key=lambda version: version["id"])}
    stack = list(reversed(waiting.values()))
    opened: set[tuple[str, int]] = set()
    while stack:
        version = stack[-1]
        key = version["subject"], version["version"]
        if key not in opened:
            opened.add(key)
            context = names.context_of(version["subject"])  # in which a reference is that names none
            named = [(reference["subject"], reference["version"]) for reference in version.get("references", ())]
            targets = [waiting.get((names.within(context, name), number)) for name, number in named]
            needed = [target for target in targets if target is not None and (target["subject"], target["version"]) not in opened]
            if needed:
                stack += needed
                continue
        stack.pop()
        if waiting.pop(key, None) is not None:
            yield version


@app.command("import")
def import_them(
    file: Annotated[Path, typer.Argument(metavar="[FILE]", allow_dash=True, help="What `export` wrote; - is stdin.")] = Path("-"),
    registry: Url = DEFAULT_URL,
    user: UserInfo = None,
) -> None:
    """Register versions with the ids that they had. Each subject is set to IMPORT for it, and back to the mode that it had."""
    asked = Registry(registry, user)
    count = 0
    modes: dict[str, str | None] = {}  # what is to be set again
    deleted: list[tuple[str, str]] = []
    try:
        for line in _text_of(file).splitlines():
            if not line.strip():
                continue
            try:
                version = json.loads(line)
                subject, number = version["subject"], str(version["version"])
            except (ValueError, KeyError, TypeError):
                raise UsageError(f"{file}: not a line that `export` writes: {line[:80]}") from None
            if subject not in modes:
                modes[subject] = _own_mode(asked, subject)
                try:
                    asked.ask("PUT", "mode", subject, body={"mode": _IMPORT}, force=True)
                except Refused as error:
                    if error.status < 500:  # else it may have been set
                        del modes[subject]
                    raise
            body = {name: value for name, value in version.items() if name not in ("subject", "deleted")}
            asked.ask("POST", "subjects", subject, "versions", body=body)
            if version.get("deleted"):
                deleted.append((subject, number))
            count += 1
        for subject, number in reversed(deleted):  # what refers to another is deleted before it
            asked.ask("DELETE", "subjects", subject, "versions", number)
    finally:
        for subject, mode in modes.items():
            try:
                if mode is None:
                    asked.ask("DELETE", "mode", subject)
                elif mode != _IMPORT:
                    asked.ask("PUT", "mode", subject, body={"mode": mode})
            except CommandFailed as error:
                note(f"ottla: {subject} is still in IMPORT mode: {error}")
    say(f"Imported {count_of(count, 'version')} of {count_of(len(modes), 'subject')}.")
    if left := [subject for subject, mode in modes.items() if mode == _IMPORT]:  # as by an import that was killed
        say(f"In IMPORT mode as before, in which clients can register nothing: {', '.join(left)}")


def _own_mode(asked: Registry, subject: str) -> str | None:
    """The mode that is set for the subject itself, if that of the whole registry does not hide it."""
    try:
        mode = str(asked.ask("GET", "mode", subject)["mode"])
    except Refused as error:
        if error.status != 404:
            raise
        return None
    if mode == _OVERRIDE and asked.ask("GET", "mode")["mode"] == mode:
        raise CommandFailed(f"the registry is in {mode} mode, in which nothing can be registered")
    return mode
