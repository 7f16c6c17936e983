"""Bytes on disk per message over the payload (N3: the paper has 9 for its own, 144 for ActiveMQ).

Exact, not sampled: a known number of messages is written, the broker stopped, its files' sizes read. A record of a
200-byte value takes 9 bytes besides it as long as its offset delta is below 64, and 10 beyond (a zigzag varint of two
bytes); a batch adds 61.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Final

from confluent_kafka import Producer
from tests.bench import files, wire
from tests.bench.connection import Connection
from tests.bench.figures import Figure, figure
from tests.bench.options import MESSAGE_SIZE, Options
from tests.bench.servers import Server

# (messages per batch, bytes over the payload that the issue asks for)
SIZES: Final = ((50, 10.3), (1_000, 9.1))
MESSAGES: Final = 100_000
CODECS: Final = ("gzip", "snappy", "lz4", "zstd")
CARRIERS: Final = ("UA", "AA", "B6", "DL", "EV", "MQ", "US", "9E", "WN", "VX")


def flight(chance: random.Random) -> bytes:
    """An event of 200 bytes, as an activity log has them: JSON whose keys repeat and whose values do not."""
    event = (
        f'{{"carrier": "{chance.choice(CARRIERS)}", "flight": {chance.randrange(1, 8500)}, "tailnum": "N{chance.randrange(10000, 99999)}", '
        f'"distance": {chance.randrange(80, 4983)}, "air_time": {chance.randrange(20, 695)}, "dep_delay": {chance.randrange(-43, 1301)}, '
        f'"note": "{chance.getrandbits(128):032x}'
    )
    return (event + "." * (MESSAGE_SIZE - 2 - len(event)) + '"}').encode()


def write_plain(server: Server, topic: str, messages_per_batch: int) -> None:
    batch = wire.record_batch(messages_per_batch, MESSAGE_SIZE)
    version = server.highest(wire.PRODUCE, 7, 9)
    with Connection(server.port) as connection:
        for _ in range(MESSAGES // messages_per_batch):
            connection.produce(version, topic, 0, batch)


def write_compressed(server: Server, topic: str, codec: str) -> None:
    """Through librdkafka, in batches of 1,000."""
    settings = {
        "bootstrap.servers": f"127.0.0.1:{server.port}",
        "compression.type": codec,
        "linger.ms": 1_000,
        "batch.num.messages": 1_000,
        "batch.size": 1_000_000,
        "queue.buffering.max.messages": 2 * MESSAGES,
    }
    producer = Producer(settings)
    chance = random.Random(3)
    for _ in range(MESSAGES):
        producer.produce(topic, flight(chance), partition=0)
    if producer.flush(60):
        raise wire.UnexpectedAnswer(f"{topic}: messages were not acknowledged within a minute")


def per_message(directory: Path, topic: str, *suffixes: str) -> float:
    return sum(files.total_size(files.of_kind(directory, suffix, topic)) for suffix in suffixes) / MESSAGES


def run(options: Options) -> list[Figure]:
    bench = "storage overhead (N3)"
    with options.servers.data_directory("overhead") as directory:
        with options.servers.running(directory) as server:
            with Connection(server.port) as connection:
                for topic in (*(f"plain{size}" for size, _ in SIZES), *(f"packed-{codec}" for codec in CODECS)):
                    connection.create_topic(topic)
            for size, _ in SIZES:
                write_plain(server, f"plain{size}", size)
            for codec in CODECS:
                write_compressed(server, f"packed-{codec}", codec)
        figures = []
        for size, bound in SIZES:
            over = per_message(directory, f"plain{size}-", ".log") - MESSAGE_SIZE
            figures.append(figure(bench, f"log, batches of {size:,}", [over], "B over a message", at_most=bound))
            index = per_message(directory, f"plain{size}-", ".index", ".timeindex")
            figures.append(figure(bench, f"indexes, batches of {size:,}", [index], "B a message"))
        for codec in CODECS:
            log = per_message(directory, f"packed-{codec}-", ".log")
            figures.append(figure(bench, f"log, {codec}, batches of 1,000", [log], "B a message of 200"))
        return figures
