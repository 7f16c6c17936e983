"""What becomes of files while their broker is down: torn pages, bad sectors, a former version's crash.

Each damage is one that a start can see: of a text file whose last digit is missing no one can say that it is. All but a piece that
is cut off a log leaves on the machine what the damaged file said, so after it a start must find what it would have found without.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from random import Random
from typing import Final
from uuid import UUID

from tests.simulation.cluster import Cluster, Machine
from tests.simulation.faults import Damage

from ottla.model import TopicPartition
from ottla.record.batch import batches
from ottla.storage.file_names import deleted_directory_name, future_directory_name, partition_of_directory

MOST_GARBAGE_BYTES: Final = 700


def damage_files(cluster: Cluster, machine: Machine, damage: Damage | None, random: Random) -> None:
    """Damages one file of a machine that is down, if it has such a file.

    Args:
        damage: None stands for a move between two log directories that lost its first name to a crash.
    """
    for disk in machine.disks:
        disk.is_observed = True  # nothing of this fails
    try:
        done = _half_move(machine, random) if damage is None else _damaged(cluster, machine, damage, random)
    finally:
        for disk in machine.disks:
            disk.is_observed = False
    root = str(Path(machine.log_directories[0]).parents[1])  # another one in each run
    cluster.trace.tell(f"{machine.name} is down, and {done.replace(root, '…') or f'has no file for {damage}'}")


def _damaged(cluster: Cluster, machine: Machine, damage: Damage, random: Random) -> str:
    pattern = str(damage).rpartition(" ")[2]
    found = [path for directory in machine.log_directories for path in sorted(Path(directory).glob(pattern)) if _is_in_use(path)]
    if damage in (Damage.SNAPSHOT, Damage.TAIL, Damage.CUT):
        found = list({path.parent: path for path in found}.values())  # the last one of each log
    found = [path for path in found if path.stat().st_size or damage is Damage.TAIL]
    if not found:
        return ""
    path = random.choice(found)
    content = path.read_bytes()
    match damage:
        case Damage.TAIL:
            garbage = random.randint(1, MOST_GARBAGE_BYTES)
            spoilt = content + random.choice((bytes(garbage), random.randbytes(garbage)))
        case Damage.CUT:
            key, headers = partition_of_directory(path.parent.name), list(batches(content))
            if key is None or not headers or len(_directories_of(machine, key)) != 1:
                return ""
            at, header = random.choice(headers[-3:])
            spoilt = content[: at + random.randrange(header.size)]
            cluster.cut(machine, key, header.base_offset)
        case Damage.ABORTED:
            spoilt = random.randbytes(len(content))  # one that is empty says that nothing was aborted
        case _:
            torn = content[: random.randrange(len(content))]
            spoilt = random.choice((b"", bytes(len(content)), random.randbytes(len(content) + 16), torn + bytes(len(content) - len(torn))))
    with path.open("r+b") as file:
        file.write(spoilt)
        file.truncate(len(spoilt))
        file.flush()
        os.fsync(file.fileno())
    machine.spoilt[path] = spoilt
    return f"{path} is damaged: {len(content)} bytes, of which the first {_same(content, spoilt)} are left, and {len(spoilt)} now"


def _half_move(machine: Machine, random: Random) -> str:
    """A log has the name of one that is to be deleted, and its copy on another disk that of one that is not finished."""
    first, *others = machine.log_directories
    logs = [path for path in sorted(Path(first).glob("*")) if _is_in_use(path / "x") and any(path.glob("*.log"))]
    keys = [(path, partition_of_directory(path.name)) for path in logs]
    alone = [(path, key) for path, key in keys if key is not None and len(_directories_of(machine, key)) == 1]
    if not alone or not others or not Path(others[0]).exists() or any(disk.faults for disk in machine.disks):
        return ""  # a disk that fails now would leave the copy alone, which has less
    path, key = random.choice(alone)
    if not sum(file.stat().st_size for file in path.glob("*.log")):
        return ""  # a move of nothing is not looked for
    copy = Path(others[0]) / future_directory_name(key, UUID(int=random.getrandbits(128)))
    shutil.copytree(path, copy, ignore=shutil.ignore_patterns("*.deleted", "*.cleaned", "*.swap", "*.tmp"))
    last = max(copy.glob("*.log"))
    os.truncate(last, random.randint(0, last.stat().st_size))
    path.rename(path.with_name(deleted_directory_name(key, UUID(int=random.getrandbits(128)))))
    for synced in (*copy.iterdir(), copy, copy.parent, path.parent):
        descriptor = os.open(synced, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
    return f"the move of {key} to {others[0]} was interrupted"


def _directories_of(machine: Machine, key: TopicPartition) -> list[Path]:
    paths = (Path(directory) / f"{key.topic}-{key.partition}" for directory in machine.log_directories)
    return [path for path in paths if path.exists()]


def _is_in_use(path: Path) -> bool:
    """Whether it lies in a log directory itself, or in that of a partition."""
    return path.parent.name == "logs" or partition_of_directory(path.parent.name) is not None


def _same(one: bytes, other: bytes) -> int:
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
