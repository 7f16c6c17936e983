"""What a state was at an offset, in a file, so that a start reads the rest of the topic only.

The first line says what the file is of: format, cluster, topic, its id, the offset of the next record, the epoch, the highest ids, and the
SHA-256 of what follows. Then the records that would make the state, one a line: timestamp, tab, key, tab, value. JSON has no tab and no
newline in it. The last lines are the conflicts, which the head has the offsets of: they are remembered and not applied, as their ids may
be free by now. A file that does not fit is dropped, with the reason: then the topic is read from its beginning.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import json
import logging
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ottla.errors import OttlaError
from ottla.schema_registry.state.records import (
    SCHEMA_KEY_BEGIN,
    Change,
    PutConfig,
    PutContext,
    PutMode,
    PutVersion,
    decode,
    decode_version,
    encode,
)
from ottla.schema_registry.state.replay import DEFAULTS, HIGHEST_IDS_HEADER, Conflict, Image, State
from ottla.schema_registry.state.schemas import Json

log: Final = logging.getLogger(__name__)

FORMAT: Final = 2
MAX_BYTES: Final = 1 << 32
_WRITING: Final = threading.Lock()  # one that is asked for while another is written


class UnfitSnapshot(OttlaError):
    """The file is torn, or of another topic; it says how."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Which topic a snapshot is of."""

    cluster_id: str
    topic: str
    topic_id: str


def file_of(directory: Path, topic: str) -> Path:
    """Where the snapshot of a topic is."""
    return directory / f"{topic}.snapshot"


def write(path: Path, identity: Identity, image: Image) -> int:
    """Writes a snapshot in the place of the former one, and gives its size. To be called beside the loop.

    Raises:
        OSError: it cannot be written; the former one is still there.
    """
    changes: list[tuple[int, Change]] = [(0, PutContext(context, True)) for context in image.contexts]
    changes += [(0, PutConfig(scope, config)) for scope, config in image.configs.items()]
    changes += [(0, PutMode(scope, mode)) for scope, mode in image.modes.items()]
    changes += [(version.timestamp_ms, PutVersion(version)) for versions in image.subjects for version in versions]
    changes += [(conflict.version.timestamp_ms, PutVersion(conflict.version)) for conflict in image.conflicts]
    lines = []
    for timestamp_ms, change in changes:
        record = encode(change)
        lines.append(b"%d\t%s\t%s\n" % (timestamp_ms, record.key, record.value or b""))
    body = b"".join(lines)
    head = {
        "format": FORMAT,
        "cluster_id": identity.cluster_id,
        "topic": identity.topic,
        "topic_id": identity.topic_id,
        "next_offset": image.next_offset,
        "epoch": image.epoch,
        "highest_ids": image.highest_ids,
        "other_keys": [(own.decode(), key.decode()) for own, keys in image.other_keys.items() for key in keys],
        "conflicts": [(conflict.offset, conflict.holder) for conflict in image.conflicts],
        "sha256": hashlib.sha256(body).hexdigest(),
    }
    with _WRITING:
        _replace(path, json.dumps(head).encode() + b"\n", body)
    return len(body)


def _replace(path: Path, head: bytes, body: bytes) -> None:
    unfinished = path.with_name(f"{path.name}.{os.getpid()}")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with unfinished.open("wb") as file:
            file.write(head)
            file.write(body)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            unfinished.unlink()
        raise


def read(path: Path, identity: Identity, first_offset: int, next_offset: int, defaults: Json = DEFAULTS) -> State:
    """The state of a snapshot. To be called beside the loop.

    Args:
        first_offset, next_offset: where the topic begins and ends now.
        defaults: the config that holds where none is set.

    Raises:
        FileNotFoundError: there is none.
        UnfitSnapshot: it is not one of this topic, or not whole.
    """
    if path.stat().st_size > MAX_BYTES:
        raise UnfitSnapshot(f"it is larger than {MAX_BYTES} bytes")
    first, _, body = path.read_bytes().partition(b"\n")
    try:
        head: dict[str, Any] = json.loads(first)
        found = Identity(head["cluster_id"], head["topic"], head["topic_id"])
        offset, epoch, digest = int(head["next_offset"]), int(head["epoch"]), head["sha256"]
        is_known = head["format"] == FORMAT
        conflicts, other_keys = head.get("conflicts", []), head.get("other_keys", [])
    except (ValueError, KeyError, TypeError) as error:
        raise UnfitSnapshot(f"its first line cannot be read: {error!r}") from None
    if not is_known:
        raise UnfitSnapshot(f"it is of format {head['format']}")
    if found != identity:
        raise UnfitSnapshot(f"it is of {found}, and the topic is {identity}")
    if hashlib.sha256(body).hexdigest() != digest:
        raise UnfitSnapshot("its checksum is wrong: it is torn")
    if not first_offset <= offset <= next_offset:
        raise UnfitSnapshot(f"it goes to offset {offset}, and the topic has [{first_offset}, {next_offset})")
    state = State(defaults)
    highest = json.dumps(head["highest_ids"]).encode()
    for own_key, other_key in other_keys:
        state.note_other_key(own_key.encode(), other_key.encode(), is_there=True)
    lines = body.splitlines()
    first_conflict = len(lines) - len(conflicts)
    collects = gc.isenabled()
    gc.disable()  # nothing of what is made here is garbage
    try:
        for index, line in enumerate(lines[:first_conflict]):
            timestamp, key, value = line.split(b"\t")
            if key.startswith(SCHEMA_KEY_BEGIN):  # nearly all; the value says what the key does
                state.put(decode_version(value, int(timestamp)), index)
            else:
                state.apply(index, int(timestamp), key, value or None, {})
    except (ValueError, KeyError, TypeError) as error:
        raise UnfitSnapshot(f"a line of it cannot be read: {error!r}") from None
    finally:
        if collects:
            gc.enable()
    for line, (conflict_offset, holder) in zip(lines[first_conflict:], conflicts, strict=True):
        timestamp, key, value = line.split(b"\t")
        change = decode(key, value, int(timestamp))
        assert isinstance(change, PutVersion), "written above"
        state.add_conflict(Conflict(conflict_offset, change.version, holder))
    state.apply(offset - 1, 0, b'{"keytype":"NOOP","magic":0}', None, {HIGHEST_IDS_HEADER: highest})
    state.next_offset, state.epoch = offset, epoch
    return state


def read_or_none(path: Path, identity: Identity, first_offset: int, next_offset: int, defaults: Json = DEFAULTS) -> State | None:
    """As `read`; None, and a line in the log, where there is none that fits."""
    try:
        return read(path, identity, first_offset, next_offset, defaults)
    except FileNotFoundError:
        return None
    except (OSError, UnfitSnapshot, ValueError) as error:
        log.warning("%s is not used, and the topic is read from its beginning: %s", path, error)
        return None
