""".kafka_cleanshutdown: there after a clean stop, gone once a start has seen it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.storage.clean_shutdown import CLEAN_SHUTDOWN, take_clean_shutdown, write_clean_shutdown

FIXTURE = Path(__file__).parents[2] / "fixtures" / "on_disk" / "kafka_cleanshutdown.json"


def test_ours_is_kafkas_byte_for_byte(tmp_path: Path) -> None:
    """Fixture built from the definition of Kafka's CleanShutdownFileHandler, version 0 (KIP-966)."""
    write_clean_shutdown(tmp_path, 25)
    assert (tmp_path / ".kafka_cleanshutdown").read_bytes() == FIXTURE.read_bytes()


def test_it_counts_once(tmp_path: Path) -> None:
    """A crash after the start must find none."""
    assert take_clean_shutdown(tmp_path) is None
    write_clean_shutdown(tmp_path, 25)
    assert take_clean_shutdown(tmp_path) == 25
    assert take_clean_shutdown(tmp_path) is None


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b"null", b"\xff\xfe", b'{"version":0,"brokerEpoch":null}', b'{"version":0'])
def test_a_file_that_says_nothing_still_means_a_clean_stop(tmp_path: Path, content: bytes) -> None:
    """Brokers before Kafka 3.7 left an empty file, and its presence is what they look at."""
    (tmp_path / CLEAN_SHUTDOWN).write_bytes(content)
    assert take_clean_shutdown(tmp_path) == -1
