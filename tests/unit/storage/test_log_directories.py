"""Log directories: the lock, whose they are, and what happens when one of them fails."""

from __future__ import annotations

import asyncio
import errno
import logging
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ottla.errors import KafkaStorageError
from ottla.storage import log_directory
from ottla.storage.checkpoints import CLEANER_CHECKPOINT, HIGH_WATERMARK_CHECKPOINT, LOG_START_OFFSET_CHECKPOINT, RECOVERY_POINT_CHECKPOINT
from ottla.storage.log_directory import LOCK, ForeignLogDirectory, LogDirectoryInUse, load_logs
from ottla.storage.meta_properties import read_meta_properties

from .brokers import CLICKS, Broker, run
from .failing_calls import failing
from .logs import fill


async def test_a_directory_is_used_by_one_broker_at_a_time(tmp_path: Path) -> None:
    """Two processes on one data directory: the second is refused by the lock, and told which and why."""
    broker = Broker(tmp_path / "a")
    logs = broker.manager()
    await logs.start()
    with pytest.raises(LogDirectoryInUse, match=r"a is in use by another broker.*\.lock"):
        await broker.manager().start()
    await logs.shutdown()
    again = broker.manager()
    await again.start()
    await again.shutdown()


@pytest.mark.parametrize("is_kafka", [False, True], ids=["ottla", "kafka"])
def test_the_lock_is_seen_by_another_process_and_goes_with_its_holder(tmp_path: Path, is_kafka: bool) -> None:
    """A crash leaves no stale lock: the kernel drops it with the process.

    Java's `FileChannel.tryLock` takes a lock of POSIX, which is not that of flock: Kafka loads and cuts logs before it registers.
    """
    ours = f"from ottla.storage.log_directory import open_directory, Path; open_directory(Path({str(tmp_path)!r}), 0, None, 0)"
    kafkas = f"import fcntl; file = open({str(tmp_path / LOCK)!r}, 'w'); fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)"
    program = f"{kafkas if is_kafka else ours}; import sys; print('locked', flush=True); sys.stdin.read()"
    broker = Broker(tmp_path)
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"locked\n"
        with pytest.raises(LogDirectoryInUse):
            run(broker.manager().start)
        other.kill()

    async def scene() -> None:
        logs = broker.manager()
        await logs.start()
        tried = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stderr=subprocess.PIPE)
        _, said = await tried.communicate()
        await logs.shutdown()
        assert (b"BlockingIOError" if is_kafka else b"LogDirectoryInUse") in said

    run(scene)


async def test_another_brokers_directory_is_refused(tmp_path: Path) -> None:
    """meta.properties: it would serve a stranger's data. The lock is given back."""
    logs = Broker(tmp_path).manager()
    await logs.start("cluster-one")
    await logs.shutdown()
    with pytest.raises(ForeignLogDirectory, match=r"belongs to broker 0, and broker\.id is 5"):
        await Broker(tmp_path, broker_id="5").manager().start("cluster-one")
    with pytest.raises(ForeignLogDirectory, match="belongs to cluster cluster-one, and this is cluster cluster-two"):
        await Broker(tmp_path).manager().start("cluster-two")
    logs = Broker(tmp_path).manager()
    await logs.start("cluster-one")
    await logs.shutdown()


async def test_a_directory_that_was_used_without_a_cluster_id_gets_one(tmp_path: Path) -> None:
    """And keeps what it had."""
    for cluster_id in (None, "cluster-one", None):
        logs = Broker(tmp_path).manager()
        await logs.start(cluster_id)
        await logs.shutdown()
    meta = read_meta_properties(tmp_path)
    assert meta is not None
    assert (meta.broker_id, meta.cluster_id) == (0, "cluster-one")


async def test_a_directory_that_can_not_be_used_at_the_start_does_not_stop_the_others(tmp_path: Path) -> None:
    """S12: JBOD. New partitions go elsewhere, and one that may lie there is not made a second time."""
    (tmp_path / "broken").write_text("a file where a directory should be")
    broker = Broker(tmp_path / "broken", tmp_path / "b")
    logs = broker.manager()
    await logs.start()
    assert list(logs.offline_directories) == [tmp_path / "broken"]
    assert logs.create(CLICKS[0], None).directory == tmp_path / "b" / "clicks-0"
    with pytest.raises(KafkaStorageError, match="may lie in a directory that is offline"):
        logs.create(CLICKS[1], None, is_new=False)
    first, second = logs.describe_directories()
    assert (first.error is None, second.error is None) == (False, True)
    assert first.total_bytes == -1
    assert second.total_bytes >= second.usable_bytes > 0
    await logs.shutdown()


async def test_a_log_that_is_loaded_when_its_directory_has_failed_is_not_served(tmp_path: Path) -> None:
    """Two threads load logs; what one of them meets takes the directory offline, and then the other has its log."""
    broker = Broker(tmp_path / "a", tmp_path / "b", num_recovery_threads_per_data_dir="2")
    logs = broker.manager()
    await logs.start()
    logs.create(CLICKS[0], None)
    for key in CLICKS[1:3]:
        logs.want(key, tmp_path / "a")
        fill(logs.create(key, None), 1)
    await logs.shutdown(clean=False)

    async def offload(function: Callable[..., Any], /, *arguments: Any, **keywords: Any) -> Any:
        if function is load_logs and arguments[1][0][0] == CLICKS[2]:
            raise OSError(errno.EIO, "broken")
        result = function(*arguments, **keywords)
        for _ in range(9):
            await asyncio.sleep(0)
        return result

    logs = broker.manager(offload)
    await logs.start()
    assert list(logs.offline_directories) == [tmp_path / "a"]
    assert [log.topic_partition for log in logs.logs.values() if not log.is_offline] == []
    await logs.shutdown(clean=False)


def test_a_start_without_any_usable_directory_is_refused(tmp_path: Path) -> None:
    """There is nothing that it could serve."""
    (tmp_path / "broken").write_text("")
    with pytest.raises(KafkaStorageError, match=r"no log directory can be used.*broken"):
        run(Broker(tmp_path / "broken").manager().start)


@pytest.mark.parametrize("failing", ["writev", "fsync"])
async def test_a_directory_that_fails_later_takes_only_its_own_logs_down(tmp_path: Path, failing: str) -> None:
    """EIO: its logs raise KafkaStorageError from then on, the others continue, and it is not marked as closed cleanly."""
    broker = Broker(tmp_path / "a", tmp_path / "b")
    logs = broker.manager()
    told: list[Path] = []
    logs.directory_failed = lambda directory, reason: told.append(directory)
    await logs.start()
    for key in CLICKS[:4]:
        fill(logs.create(key, None), 1)
    bad = logs.logs[CLICKS[0]].directory.parent
    error = OSError(errno.EIO, "Input/output error")
    broker.files.fail_writev, broker.files.fail_fsync = (error, None) if failing == "writev" else (None, error)
    with pytest.raises(KafkaStorageError):
        if failing == "writev":
            fill(logs.logs[CLICKS[0]], 1)
        else:
            await logs.logs[CLICKS[0]].flush()
    broker.files.fail_writev = broker.files.fail_fsync = None
    assert (list(logs.offline_directories), told) == ([bad], [bad])
    for log in list(logs.logs.values()):
        if log.directory.parent == bad:
            with pytest.raises(KafkaStorageError, match="offline"):
                fill(log, 1)
            with pytest.raises(KafkaStorageError, match="offline"):
                log.read(0, 100, 1, True)
        else:
            fill(log, 1)
    assert logs.create(CLICKS[5], None).directory.parent != bad
    await logs.run_retention_once()
    await logs.write_checkpoints()
    await logs.shutdown()
    assert [(path / ".kafka_cleanshutdown").exists() for path in broker.directories] == [path != bad for path in broker.directories]


@pytest.mark.parametrize("removed", ["clicks-0", "."])
async def test_a_directory_that_is_removed_fails_when_its_log_needs_a_new_segment(tmp_path: Path, removed: str) -> None:
    """Others are to lead then: nothing could be written here before a start. Kafka's LogDirFailureTest.testIOExceptionDuringLogRoll."""
    broker = Broker(tmp_path / "a", tmp_path / "b")
    logs = broker.manager()
    await logs.start()
    log = logs.create(CLICKS[0], None)
    fill(log, 1)
    shutil.rmtree(log.directory.parent / removed)
    with pytest.raises(KafkaStorageError, match="No such file or directory"):
        log.appender.roll()
    assert list(logs.offline_directories) == [log.directory.parent]
    await logs.shutdown()


async def test_a_full_disk_takes_no_directory_down(tmp_path: Path) -> None:
    """The broker stays up for reads, and says so."""
    broker = Broker(tmp_path)
    logs = broker.manager()
    await logs.start()
    log = logs.create(CLICKS[0], None)
    filled = fill(log, 1)
    broker.files.fail_writev = OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(KafkaStorageError, match="No space left"):
        fill(log, 1)
    assert not logs.offline_directories
    region = log.read(0, 1 << 20, 1, True)
    assert region is not None
    assert region.read() == filled[0]
    broker.files.fail_writev = None
    fill(log, 1)
    await logs.shutdown()


async def test_directories_that_are_no_partitions_are_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A file system's lost+found, what an operator put there, and replicas that were renamed.

    The log names them, but not the directory of the embedded coordination: the broker has made it.
    """
    strangers = ["lost+found", "coordination", "my backup", "clicks", "clicks-0.00000000000000000000000000000007-stray"]
    for name in strangers:
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("kept")
    logs = Broker(tmp_path).manager()
    with caplog.at_level(logging.INFO, "ottla.storage"):
        await logs.start()
    assert not logs.logs
    await logs.shutdown()
    ignored = {record.getMessage() for record in caplog.records if "is not a partition directory" in record.msg}
    assert ignored == {f"{tmp_path / name} is not a partition directory and is ignored" for name in ("lost+found", "my backup", "clicks")}
    assert all((tmp_path / name / "file").read_text() == "kept" for name in strangers)


async def test_a_container_s_own_file_system_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Log segments on overlayfs append 18 times slower than on a volume (traps, 'Storage')."""
    monkeypatch.setattr(log_directory, "file_system_of", lambda path: "overlay")
    logs = Broker(tmp_path).manager()
    await logs.start()
    await logs.shutdown()
    assert "overlay" in caplog.text


@pytest.mark.parametrize("name", [RECOVERY_POINT_CHECKPOINT, LOG_START_OFFSET_CHECKPOINT, HIGH_WATERMARK_CHECKPOINT, CLEANER_CHECKPOINT])
async def test_a_damaged_checkpoint_is_kept_under_another_name_which_the_log_says(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The broker writes it again soon; what was in it is for a person to look at."""
    broker = Broker(tmp_path)
    for damage in ("0\n1\n", "no number"):
        (tmp_path / name).write_text(damage)
        logs = broker.manager()
        await logs.start()
        if CLICKS[0] not in logs.logs:
            logs.create(CLICKS[0], None)
        await logs.write_checkpoints()
        await logs.shutdown()
    assert [(tmp_path / f"{name}{suffix}").read_text() for suffix in (".damaged", ".2.damaged")] == ["0\n1\n", "no number"]
    assert f" to {name}.2.damaged" in caplog.text


async def test_a_damaged_checkpoint_that_cannot_be_renamed_on_a_full_disk_does_not_keep_a_broker_from_starting(tmp_path: Path) -> None:
    (tmp_path / RECOVERY_POINT_CHECKPOINT).write_text("no number")
    logs = Broker(tmp_path).manager()
    with failing("rename", lambda path: path.endswith(RECOVERY_POINT_CHECKPOINT)) as refused:
        await logs.start()
    assert len(refused) == 1 and not logs.offline_directories
    await logs.shutdown()
