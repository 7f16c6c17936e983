"""How a line becomes a message."""

import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from tests.waiting import until

from ottla.cli.errors import CommandFailed
from ottla.cli.main import run
from ottla.cli.produce import NewMessage, from_json, from_line, headers_of
from ottla.testing import EmbeddedCluster


@pytest.mark.parametrize(
    ("line", "delimiter", "null", "message"),
    [
        (b"hello", None, None, NewMessage(None, b"hello")),
        (b"ada:hello", None, None, NewMessage(None, b"ada:hello")),
        (b"ada:hello", b":", None, NewMessage(b"ada", b"hello")),
        (b"ada:a:b", b":", None, NewMessage(b"ada", b"a:b")),
        (b"hello", b":", None, NewMessage(None, b"hello")),
        (b":hello", b":", None, NewMessage(b"", b"hello")),
        (b":hello", b":", b"", NewMessage(None, b"hello")),
        (b"ada:", b":", None, NewMessage(b"ada", b"")),
        (b"ada:", b":", b"", NewMessage(b"ada", None)),
        (b"", None, None, NewMessage(None, b"")),
        (b"", None, b"", NewMessage(None, None)),
        (b"ada::hello", b"::", None, NewMessage(b"ada", b"hello")),
        (b"\xff\t\xfe", b"\t", None, NewMessage(b"\xff", b"\xfe")),
        (b"key\t", b"\t", b"<NULL>", NewMessage(b"key", b"")),
        (b"key\t<NULL>", b"\t", b"<NULL>", NewMessage(b"key", None)),
        (b"key\t<NULL>value", b"\t", b"<NULL>", NewMessage(b"key", b"<NULL>value")),
        (b"<NULL>\t<NULL>", b"\t", b"<NULL>", NewMessage(None, None)),
    ],
)
def test_key_and_value_of_a_line(line: bytes, delimiter: bytes | None, null: bytes | None, message: NewMessage) -> None:
    """With a marker of null as in Kafka's LineMessageReaderTest, testNullMarker."""
    assert from_line(line, delimiter, null) == message


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"h0:v0,h1:v1\tkey\tvalue", NewMessage(b"key", b"value", [("h0", b"v0"), ("h1", b"v1")])),
        (b"h0:v:0\t<NULL>\tvalue", NewMessage(None, b"value", [("h0", b"v:0")])),
        (b":\t\t", NewMessage(b"", b"", [("", b"")])),
        (b"\tkey\tvalue", NewMessage(b"key", b"value")),
        (b"<NULL>\tkey\t<NULL>", NewMessage(b"key", None)),
        (b"h0:<NULL>,h1:<NULL>value,h2:\tkey\tvalue", NewMessage(b"key", b"value", [("h0", None), ("h1", b"<NULL>value"), ("h2", b"")])),
        (b"key-val\tkey0\tvalue0", NewMessage(b"key0", b"value0", [("key-val", None)])),
        (b"h1:v1!key\tvalue", NewMessage(None, b"value", [("h1", b"v1!key")])),
        (b"h1:v1\tvalue", NewMessage(None, b"value", [("h1", b"v1")])),
        (b"h1:v1", NewMessage(None, b"h1:v1")),
        (b"\xff:v\tvalue", NewMessage(None, b"value", [("\ufffd", b"v")])),
    ],
)
def test_headers_of_a_line(line: bytes, message: NewMessage) -> None:
    """Kafka's LineMessageReaderTest with ignore.error=true: what has no delimiter is taken as it is."""
    assert from_line(line, b"\t", b"<NULL>", b"\t") == message


def test_a_header_may_have_no_value_or_an_empty_one() -> None:
    assert headers_of(["lang=en", "flag", "empty=", "sum=1=1"]) == [("lang", b"en"), ("flag", None), ("empty", b""), ("sum", b"1=1")]


def test_json_written_by_hand_may_leave_things_out_and_have_any_value() -> None:
    assert from_json(b'{"value": "hello"}', 1) == NewMessage(None, b"hello", [])
    assert from_json(b'{"key": 7, "value": {"a": [1]}}', 1) == NewMessage(b"7", b'{"a": [1]}', [])


@pytest.mark.parametrize(
    "line",
    [
        b"hello",
        b"[1]",
        b"[" * 100_000,
        b'{"value_base64": "!"}',
        b'{"headers": [{"value": "no name"}]}',
        b'{"headers": [{"name": "\\ud800"}]}',
        b'{"timestamp": "noon"}',
        b'{"timestamp": Infinity}',
        b'{"timestamp": 9223372036854775808}',
    ],
)
def test_a_line_that_is_no_message_is_refused_with_its_number(line: bytes) -> None:
    with pytest.raises(CommandFailed, match="line 12 "):
        from_json(line, 12)


def test_a_timestamp_that_would_become_the_present_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """librdkafka takes 0 for now, and so a copy by `ottla consume --json` had another time than what was copied."""
    lines = tmp_path / "lines"
    lines.write_text('{"value": "a", "timestamp": 0}\n')
    with socket.create_server(("127.0.0.1", 0)) as listener:
        where = ("-b", f"127.0.0.1:{listener.getsockname()[1]}")
        assert run(["produce", "clicks", str(lines), "--json", *where]) == 1
        assert capsys.readouterr().err.startswith("ottla: line 1: a timestamp of 0, or earlier, cannot be written")
        assert run(["produce", "clicks", str(lines), "--timestamp", "1970-01-01T00:00Z", *where]) == 2
        assert capsys.readouterr().err.startswith("ottla: --timestamp: a timestamp of 0")


def test_the_name_of_a_header_that_the_client_would_cut_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """librdkafka's names end at a NUL: the message was written with a header of another name."""
    lines = tmp_path / "lines"
    lines.write_text('{"value": "a", "headers": [{"name": "a\\u0000b", "value": "1"}]}\n')
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert run(["produce", "clicks", str(lines), "--json", "-b", f"127.0.0.1:{listener.getsockname()[1]}"]) == 1
    assert capsys.readouterr().err.startswith("ottla: line 1: the name of a header has a NUL, at which the client would cut it")


def test_what_was_read_is_delivered_before_sigterm_ends_the_command() -> None:
    """ConsoleProducer closes its producer by a shutdown hook.

    Method: it is to wait for more before it sends, and more is written than a pipe holds, so that much of it was read.
    """
    line = b"x" * 99 + b"\n"
    with EmbeddedCluster(topics={"clicks": 1}) as cluster:
        where = ("-b", cluster.bootstrap_servers)
        waiting = ("-X", "linger.ms=900000", "-X", "message.timeout.ms=1000000")
        words = [sys.executable, "-m", "ottla.cli.main", "produce", "clicks", *waiting, *where]
        with subprocess.Popen(words, stdin=subprocess.PIPE) as producing:
            assert producing.stdin is not None
            producing.stdin.write(line * 5000)
            producing.stdin.flush()
            producing.terminate()
            assert producing.wait(120) == 128 + signal.SIGTERM
        consumer = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": "none"})
        _, end = consumer.get_watermark_offsets(TopicPartition("clicks", 0), timeout=60) or (0, 0)
        consumer.close()
    assert end >= 4000


def test_a_cluster_that_takes_no_messages_is_not_said_to_be_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """librdkafka tries again what is refused for too few replicas, and reports a partition without a leader as a timeout."""
    monkeypatch.setattr("ottla.cli.produce.DELIVERY_MS", 6_000)
    lines = tmp_path / "lines"
    lines.write_text("a\n")
    with EmbeddedCluster(brokers=2, topics={"led": 2}) as cluster:
        gone = next(number for number in (1, 2) if number != cluster.controller_id)
        partition = next(number for number in (0, 1) if cluster.leader("led", number) == gone)
        cluster.create_topic("few", replication_factor=2, settings={"min.insync.replicas": "2"})
        cluster.kill(gone)
        until(lambda: cluster.leader("led", partition) == -1, "the partition has no leader")
        where = ("-b", cluster.bootstrap_servers.split(",")[2 - gone])
        assert run(["produce", "led", str(lines), "-p", str(partition), *where]) == 1
        assert f"trying for up to 6 s: partition {partition} has no leader\n" in capsys.readouterr().err
        until(lambda: len(cluster.isr("few")) == 1 and cluster.leader("few") != gone, "the ISR is too small")
        assert run(["produce", "few", str(lines), *where]) == 1
        assert "the cluster answers, and does not take them" in capsys.readouterr().err
