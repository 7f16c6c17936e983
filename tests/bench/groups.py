"""Consumer groups: a rebalance of 500 members over 1,000 partitions, and commits of ten offsets each."""

from __future__ import annotations

from dataclasses import asdict
from typing import Final

from tests.bench.connection import Connection
from tests.bench.figures import Figure, figure
from tests.bench.group_members import Members
from tests.bench.options import Options
from tests.bench.processes import run_module
from tests.bench.servers import LOAD_CPU

TOPIC: Final = "bench"
MEMBERS: Final = 500
PARTITIONS: Final = 1_000
OFFSETS_A_COMMIT: Final = 10
PROPERTIES: Final = {"offsets.topic.replication.factor": "1"}


def run(options: Options) -> list[Figure]:
    """One broker, whose offsets topic has one replica."""
    rebalances: list[float] = []
    commits: list[float] = []
    p99: list[float] = []
    cpu: list[float] = []
    with options.servers.data_directory("groups") as directory, options.servers.running(directory, PROPERTIES) as server:
        with Connection(server.port) as connection:
            connection.create_topic(TOPIC, PARTITIONS)
        for number in range(min(options.rounds, 3)):
            members = Members(
                port=server.port,
                server_pid=server.pid,
                topic=TOPIC,
                members=MEMBERS,
                partitions=PARTITIONS,
                rebalances=2,
                commit_connections=8,
                offsets_a_commit=OFFSETS_A_COMMIT,
                commit_seconds=options.seconds,
            )
            answer = run_module("tests.bench.group_members", asdict(members), cpu=LOAD_CPU, timeout=180)
            rebalances += answer["rebalance_seconds"]
            commits.append(OFFSETS_A_COMMIT * answer["commit_requests"])
            p99.append(1000 * answer["commit_p99"])
            cpu.append(1e6 * answer["commit_cpu_seconds"])
            options.say(f"groups, round {number + 1}: rebalanced in {rebalances[-1]:.2f} s, {commits[-1]:,.0f} offsets/s")
    bench = "consumer groups"
    return [
        figure(bench, f"rebalance of {MEMBERS} members over {PARTITIONS:,} partitions", rebalances, "s", at_most=3.0),
        figure(bench, f"offsets committed, {OFFSETS_A_COMMIT} a request", commits, "/s", at_least=10_000.0),
        figure(bench, "a commit's p99", p99, "ms"),
        figure(bench, "CPU a commit request", cpu, "µs"),
    ]
