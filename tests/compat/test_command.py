"""The `ottla` command against a broker, run as a person runs it: as a program, with pipes."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ottla.broker.handlers import find_coordinator
from ottla.client.partitioners import murmur2_partition
from ottla.errors import GroupAuthorizationFailed
from ottla.testing import EmbeddedCluster

Ottla = Callable[..., "subprocess.CompletedProcess[str]"]
COMMAND = [sys.executable, "-m", "ottla.cli"]


@pytest.fixture
def ottla(ottla_bootstrap_servers: str) -> Ottla:
    """Runs the command and expects success, unless another code is given."""

    def call(*arguments: str, given: str = "", code: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [*COMMAND, *arguments],
            input=given,
            env={**os.environ, "OTTLA_BOOTSTRAP_SERVER": ottla_bootstrap_servers},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done

    return call


def test_lines_go_in_and_come_out(ottla: Ottla, ottla_topic: str) -> None:
    ottla("produce", ottla_topic, given="one\ntwo\n\nlast without a newline")
    assert ottla("consume", ottla_topic).stdout == "one\ntwo\n\nlast without a newline\n"


def test_keys_headers_timestamps_codecs_and_nulls(ottla: Ottla, ottla_topic: str) -> None:
    ottla(
        "produce",
        ottla_topic,
        "-K",
        ":",
        "-Z",
        "-H",
        "a=1",
        "-H",
        "b",
        "-z",
        "zstd",
        "--timestamp",
        "2013-07-04T12:00:00Z",
        given="k:v\nk:\n:v\n",
    )
    text = ottla("consume", ottla_topic, "--position", "--timestamp", "--headers", "--key", "--null", "NULL").stdout
    time_and_headers = "2013-07-04T12:00:00.000Z\ta=1,b=NULL"
    assert text.splitlines() == [
        f"{ottla_topic}-0@0\t{time_and_headers}\tk\tv",
        f"{ottla_topic}-0@1\t{time_and_headers}\tk\tNULL",
        f"{ottla_topic}-0@2\t{time_and_headers}\tNULL\tv",
    ]
    assert ottla("consume", ottla_topic, "-f", r"%o:%K:%S|").stdout == "0:1:1|1:1:-1|2:-1:1|"


def test_lines_of_kafka_s_console_producer_are_read(ottla: Ottla, ottla_topic: str) -> None:
    """parse.headers, parse.key and null.marker, with Kafka's separators."""
    options = ("--headers-delimiter", r"\t", "-K", r"\t", "--null-marker", "NULL", "-H", "c=3")
    ottla("produce", ottla_topic, *options, given="a:1,b:NULL\tk\tv\nNULL\tk\tNULL\n")
    read = ottla("consume", ottla_topic, "--headers", "--key", "--null", "null").stdout
    assert read == "a=1,b=null,c=3\tk\tv\nc=3\tk\tnull\n"
    for wrong in (
        ["--null", "--null-marker", "x"],
        ["--json", "--null-marker", "x"],
        ["--json", *options[:2]],
        ["--headers-delimiter", ""],
    ):
        ottla("produce", ottla_topic, *wrong, given="x\n", code=2)


def test_a_key_goes_where_java_s_producer_sends_it(ottla: Ottla) -> None:
    """A tombstone that lay in another partition would delete nothing."""
    ottla("topics", "create", "keyed-by-hand", "-p", "12")
    keys = [f"key-{number}" for number in range(40)]
    ottla("produce", "keyed-by-hand", "-K", ":", "-Z", given="".join(f"{key}:\n" for key in keys))
    printed = ottla("consume", "keyed-by-hand", "-f", r"%k %p\n").stdout.split()
    assert dict(zip(printed[::2], map(int, printed[1::2]), strict=True)) == {key: murmur2_partition(key.encode(), 12) for key in keys}


def test_each_start_and_end(ottla: Ottla, ottla_topic: str) -> None:
    for number in range(10):
        ottla("produce", ottla_topic, "--timestamp", str(1_000 + 10 * number), given=f"{number}\n")

    def read(*options: str) -> str:
        return "".join(ottla("consume", ottla_topic, *options).stdout.split())

    assert read() == "0123456789"
    assert read("-o", "7") == "789"
    assert read("-o", "-3") == "789"
    assert read("-o", "end") == ""
    assert read("-o", "3", "-c", "2") == "34"
    assert read("-o", "s@1035") == "456789"
    assert read("-o", "e@1035") == "0123"
    assert read("-o", "s@1020", "-o", "e@1040") == "23"
    assert read("-o", "s@99999") == ""
    assert read("-o", "4", "-e", "-p", "0", "--isolation", "read_committed") == "456789"
    assert read("-o", "8", "-p", "0", "-p", "0") == "89"


def test_a_topic_is_copied_by_a_pipe(ottla: Ottla, ottla_topic: str) -> None:
    ottla("produce", ottla_topic, "-K", ":", "-H", "h=1", "--timestamp", "1234", given="k:v\nnone\n")
    lines = ottla("consume", ottla_topic, "--json").stdout
    ottla("topics", "create", f"{ottla_topic}-copy", "-p", "1")
    ottla("produce", f"{ottla_topic}-copy", "--json", given=lines)
    copied = [json.loads(line) for line in ottla("consume", f"{ottla_topic}-copy", "--json").stdout.splitlines()]
    assert [{**message, "topic": ottla_topic} for message in copied] == [json.loads(line) for line in lines.splitlines()]


def test_follow_prints_what_comes_and_ends_quietly_at_ctrl_c(ottla: Ottla, ottla_topic: str, ottla_bootstrap_servers: str) -> None:
    ottla("produce", ottla_topic, given="before\n")
    command = [*COMMAND, "consume", ottla_topic, "--follow", "-o", "end", "-b", ottla_bootstrap_servers]
    follower = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert follower.stdout is not None
        while not select.select([follower.stdout], [], [], 0)[0]:  # of its following there is no other sign
            assert follower.poll() is None
            ottla("produce", ottla_topic, given="after\n")
        follower.send_signal(signal.SIGINT)
        out, err = follower.communicate(timeout=300)
        assert (follower.returncode, {*out.splitlines()}, err) == (0, {"after"}, "")
    finally:
        follower.kill()


def test_a_topic_is_read_by_who_may_use_no_group(ottla: Ottla, ottla_topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """librdkafka asks for a coordinator all the same, and gives the refusal as an error of no topic: it ended in a traceback."""

    def refuse(*_: object) -> None:
        raise GroupAuthorizationFailed("not allowed")

    monkeypatch.setattr(find_coordinator, "check_group", refuse)
    ottla("produce", ottla_topic, given="one\n")
    assert ottla("consume", ottla_topic, "--follow", "--timeout-ms", "2000").stdout == "one\n"
    refused = ottla("consume", ottla_topic, "--group", "billing", code=1)
    assert refused.stderr.startswith("ottla: group 'billing': ") and "not allowed" in refused.stderr


def test_topics_of_a_pattern_are_read_together(ottla: Ottla) -> None:
    """ConsoleConsumerTest with --include; internal topics only for a pattern that asks for them, as exclude.internal.topics has it."""
    for name, lines in (("like-one", "1\n2\n"), ("like-two", "3\n"), ("like-two-more", "4\n"), ("__like", "5\n")):
        ottla("topics", "create", name, "-p", "2")
        ottla("produce", name, given=lines)

    def read(pattern: str, *options: str) -> list[str]:
        return sorted(ottla("consume", "--include", pattern, *options).stdout.split())

    assert read("like-(one|two)") == ["1", "2", "3"] and read(".*like.*") == ["1", "2", "3", "4"] and read("__like") == ["5"]
    assert read("like-.*", "-f", r"%t=%s\n") == ["like-one=1", "like-one=2", "like-two-more=4", "like-two=3"]
    assert sorted(read("like-.*", "--group", "likers", "-c", "3") + read("like-.*", "--group", "likers")) == ["1", "2", "3", "4"]
    committed = json.loads(ottla("groups", "describe", "likers", "--json").stdout)["partitions"]
    assert {(partition["topic"], partition["lag"]) for partition in committed} == {("like-one", 0), ("like-two", 0), ("like-two-more", 0)}
    assert "no topic matches 'like'" in ottla("consume", "--include", "like", code=1).stderr
    for options in (["like-one", "--include", "like"], [], ["--include", "like-.*", "-p", "0"], ["--include", "like("]):
        ottla("consume", *options, code=2)


def test_follow_ends_when_nothing_has_come_for_so_long(ottla: Ottla, ottla_topic: str) -> None:
    """kafka-console-consumer --timeout-ms ends with code 0, too."""
    ottla("produce", ottla_topic, given="one\n")
    assert ottla("consume", ottla_topic, "--follow", "--timeout-ms", "2000").stdout == "one\n"
    assert ottla("consume", ottla_topic, "--follow", "--timeout-ms", "10000", "--group", "patient").stdout == "one\n"
    assert ottla("consume", ottla_topic, "--follow", "--timeout-ms", "0", "-o", "end").stdout == ""
    assert "--timeout-ms is for --follow" in ottla("consume", ottla_topic, "--timeout-ms", "1", code=2).stderr


def test_a_reader_that_has_seen_enough_ends_it_without_a_word(ottla: Ottla, ottla_topic: str, ottla_bootstrap_servers: str) -> None:
    ottla("produce", ottla_topic, given="0123456789\n" * 20_000)
    command = f"{' '.join(COMMAND)} consume {ottla_topic} -b {ottla_bootstrap_servers} | head -n 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=300, check=True)
    assert (done.stdout, done.stderr) == ("0123456789\n", "")


def test_topics_from_creation_to_deletion(ottla: Ottla) -> None:
    assert ottla("topics", "create", "made-by-hand", "-p", "3", "-c", "retention.ms=1000").stdout == "Created topic 'made-by-hand'.\n"
    again = ottla("topics", "create", "made-by-hand", code=1)
    assert again.stderr.startswith("ottla: topic 'made-by-hand' exists already on ")
    assert "exists already" in ottla("topics", "create", "made-by-hand", "--if-not-exists").stdout
    ottla("produce", "made-by-hand", "-p", "1", given="one\ntwo\n")
    (described,) = json.loads(ottla("topics", "describe", "made-by-hand", "--json").stdout)
    assert described["configs"] == {"retention.ms": "1000"}
    assert [(partition["partition"], partition["start_offset"], partition["end_offset"]) for partition in described["partitions"]] == [
        (0, 0, 0),
        (1, 0, 2),
        (2, 0, 0),
    ]
    assert described["partitions"][1]["size"] > 61 and described["partitions"][0]["size"] == 0
    ottla("topics", "alter", "made-by-hand", "-p", "4", "-c", "segment.bytes=1048576", "--delete-config", "retention.ms")
    text = ottla("topics", "describe", "made-by-hand").stdout
    assert "made-by-hand: 4 partitions, replication factor 1, 2 messages, " in text
    assert "segment.bytes = 1048576" in text and "retention.ms" not in text
    refused = ottla("topics", "alter", "made-by-hand", "-p", "1", "-c", "retention.ms=7", code=1)
    assert "has 4 partitions" in refused.stderr and "retention.ms" not in ottla("topics", "describe", "made-by-hand").stdout
    misspelt = ottla("topics", "alter", "made-by-hand", "-c", "retention.ms=7", "--delete-config", "segment.byte", code=1)
    assert misspelt.stderr == "ottla: unknown setting 'segment.byte'; did you mean 'segment.bytes'?\n"
    assert "retention.ms" not in ottla("topics", "describe", "made-by-hand").stdout
    assert any(line.split()[:3] == ["made-by-hand", "4", "1"] for line in ottla("topics", "list").stdout.splitlines())
    assert ottla("topics", "delete", "made-by-hand").stdout == "Deleted topic 'made-by-hand'.\n"
    assert "does not exist" in ottla("topics", "delete", "made-by-hand", code=1).stderr
    ottla("topics", "delete", "made-by-hand", "--if-exists")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["consume", "no-such-topic"], "topic 'no-such-topic' does not exist"),
        (["topics", "describe", "no-such-topic"], "topic 'no-such-topic' does not exist"),
        (["topics", "alter", "no-such-topic", "-p", "3"], "topic 'no-such-topic' does not exist"),
        (["topics", "create", "bad name"], "topic 'bad name': "),
        (["topics", "create", "refused", "-c", "retention.ms=soon"], "retention.ms"),
        (["topics", "create", "refused", "-c", "retention=1"], "retention"),
        (["topics", "create", "refused", "-r", "3"], "topic 'refused': "),
    ],
)
def test_what_the_broker_refuses_is_told_in_one_sentence(ottla: Ottla, arguments: list[str], sentence: str) -> None:
    errors = ottla(*arguments, code=1).stderr
    assert errors.startswith("ottla: ") and sentence in errors
    assert errors.count("\n") == 1


def test_looking_for_a_topic_does_not_create_it(ottla: Ottla) -> None:
    ottla("consume", "only-looked-for", code=1)
    ottla("topics", "describe", "only-looked-for", code=1)
    assert "only-looked-for" not in ottla("topics", "list").stdout


def test_a_partition_that_is_not_there(ottla: Ottla, ottla_topic: str) -> None:
    assert "no 7" in ottla("consume", ottla_topic, "-p", "7", code=1).stderr
    assert "7" in ottla("produce", ottla_topic, "-p", "7", given="x\n", code=1).stderr


def test_the_segments_of_a_running_broker_can_be_dumped(ottla: Ottla, ottla_topic: str, ottla_cluster: EmbeddedCluster) -> None:
    ottla("produce", ottla_topic, "-K", ":", given="k:v\n")
    (segment,) = (ottla_cluster.data_directory / "log" / f"{ottla_topic}-0").glob("*.log")
    assert "k → v" in ottla("log", "dump", "--records", str(segment)).stdout


def test_a_broker_runs_from_a_properties_file_until_it_is_asked_to_stop(tmp_path: Path) -> None:
    config = tmp_path / "server.properties"
    config.write_text(
        f"# a comment\nbroker.id=7\nlisteners=PLAINTEXT://127.0.0.1:0\nlog.dirs={tmp_path}/one,{tmp_path}/two\n"
        f"coordination.directory={tmp_path}/coordination\nnum.partitions=1\n"
    )
    command = [*COMMAND, "broker", "--config", str(config), "--override", "num.partitions=4", "--pid-file", str(tmp_path / "pid")]
    broker = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert broker.stdout is not None
        assert broker.stdout.readline().startswith("Ottla broker 7 is ready on 127.0.0.1:")
        process_id, address = (tmp_path / "pid").read_text().splitlines()
        assert int(process_id) == broker.pid
        subprocess.run([*COMMAND, "produce", "created", "-b", address], input=b"hello\n", check=True, timeout=300)
        described = subprocess.run([*COMMAND, "topics", "describe", "--json", "-b", address], capture_output=True, check=True, timeout=300)
        (topic,) = json.loads(described.stdout)
        assert [partition["leader"] for partition in topic["partitions"]] == [7, 7, 7, 7]
        assert (tmp_path / "one" / "meta.properties").is_file() and (tmp_path / "two" / "meta.properties").is_file()
        broker.send_signal(signal.SIGTERM)
        _, errors = broker.communicate(timeout=300)
        assert broker.returncode == 0, errors
        assert "Traceback" not in errors
        assert not (tmp_path / "pid").exists()
    finally:
        broker.kill()


def test_dev_keeps_data_for_the_next_start_and_ephemeral_does_not(tmp_path: Path) -> None:
    from .broker_process import BrokerProcess

    broker = BrokerProcess(tmp_path)
    try:
        subprocess.run([*COMMAND, "produce", "kept", "-b", broker.address], input=b"hello\n", check=True, timeout=300)
        assert broker.terminate() == 0
        broker.start()
        done = subprocess.run([*COMMAND, "consume", "kept", "-b", broker.address], capture_output=True, check=True, timeout=300)
        assert done.stdout == b"hello\n"
        told = broker.log.read_text()
        assert f"Ottla is ready on {broker.address} (" in told and str(broker.log_directory.parent) in told
    finally:
        broker.close()

    ephemeral = subprocess.Popen([*COMMAND, "dev", "--ephemeral", "--port", "0"], stdout=subprocess.PIPE, text=True)
    try:
        assert ephemeral.stdout is not None
        ephemeral.stdout.readline()
        directory = Path(ephemeral.stdout.readline().split()[1])
        assert directory.is_dir()
        ephemeral.send_signal(signal.SIGINT)
        assert ephemeral.wait(120) == 0
        assert not directory.exists()
    finally:
        ephemeral.kill()
