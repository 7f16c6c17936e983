"""Nothing that was committed is lost and no two logs part, after any order of crashes and elections (KIP-101, KIP-279).

Hypothesis decides what happens next. Everybody who leads a while may write; words of the controller, answers to fetches
and answers about ISRs come late or never. A power failure takes what was not synced, but never from the last broker in
sync: what only one has on no disk no one can keep. With `flush.messages=1` it may be all at once.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.examples import examples

from ottla.model import BrokerId

from .replicated import BROKERS, LAG_TIME_MAX_MS, Replicated

brokers = st.sampled_from(BROKERS)


class Crashes(RuleBasedStateMachine):
    """Process crashes and power failures, one at a time."""

    flush_messages: int | None = None
    min_insync_replicas = 1

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()
        self.partition = Replicated(
            Path(self.directory.name), flush_messages=self.flush_messages, min_insync_replicas=self.min_insync_replicas
        )

    def teardown(self) -> None:
        try:
            self.partition.converge()
            self.partition.check()
        finally:
            self.partition.close()
            self.directory.cleanup()

    @rule(broker_id=brokers, count=st.integers(1, 3))
    def append(self, broker_id: BrokerId, count: int) -> None:
        self.partition.append(broker_id, count)

    @rule(broker_id=brokers)
    def ask(self, broker_id: BrokerId) -> None:
        self.partition.ask(broker_id)

    @rule(broker_id=brokers)
    def answer(self, broker_id: BrokerId) -> None:
        self.partition.answer(broker_id)

    @rule(broker_id=brokers)
    def fetch(self, broker_id: BrokerId) -> None:
        self.partition.fetch(broker_id)

    @rule(times=st.integers(1, 3))
    def replicate(self, times: int) -> None:
        """All goes well for a while."""
        for _ in range(times):
            for broker in BROKERS:
                self.partition.fetch(broker)
            self.partition.flush(self.partition.controller.leader)

    @rule(
        readers=st.lists(st.tuples(brokers, st.booleans()), min_size=1, max_size=4),
        flushes=st.booleans(),
        asks_for_isr=st.booleans(),
        is_heard=st.booleans(),
    )
    def write(self, readers: list[tuple[BrokerId, bool]], flushes: bool, asks_for_isr: bool, is_heard: bool) -> None:
        """The leader writes, some ask for it and some of those get it; perhaps the ISR changes, and the leader hears of it."""
        leader = self.partition.controller.leader
        for broker in BROKERS:
            self.partition.tell(broker)
        self.append(leader, 2)
        for reader, arrives in readers:
            self.partition.answer(reader)
            self.partition.ask(reader)
            if arrives:
                self.partition.answer(reader)
        if flushes:
            self.partition.flush(leader)
        if asks_for_isr:
            self.propose(leader, shrink=False)
            self.altered(leader, is_heard=is_heard)

    @rule(loses_power=st.booleans(), is_told=st.booleans())
    def fail_over(self, loses_power: bool, is_told: bool) -> None:
        """The leader dies, and someone else of the ISR leads."""
        leader = self.partition.controller.leader
        if leader in BROKERS:
            self.kill(leader, loses_power, 0)
            self.notice(leader)
            if is_told:
                self.tell_all()

    @rule(is_heard=st.booleans())
    def shrink(self, is_heard: bool) -> None:
        """Who has not caught up leaves the ISR."""
        leader = self.partition.controller.leader
        self.partition.clock.advance(milliseconds=LAG_TIME_MAX_MS + 1)
        self.propose(leader, shrink=True)
        self.altered(leader, is_heard=is_heard)

    @rule()
    def recover(self) -> None:
        """All goes well for longer, or the ISR would soon be one broker for good."""
        self.partition.recover()

    @rule(broker_id=brokers)
    def tell(self, broker_id: BrokerId) -> None:
        self.partition.tell(broker_id)

    @rule()
    def tell_all(self) -> None:
        for broker in BROKERS:
            self.partition.tell(broker)

    @rule(broker_id=brokers, shrink=st.booleans())
    def propose(self, broker_id: BrokerId, shrink: bool) -> None:
        self.partition.propose(broker_id, shrink=shrink)

    @rule(broker_id=brokers, is_heard=st.booleans())
    def altered(self, broker_id: BrokerId, is_heard: bool) -> None:
        self.partition.alter(broker_id, is_heard=is_heard)

    @rule(broker_id=brokers)
    def elect(self, broker_id: BrokerId) -> None:
        controller = self.partition.controller
        if broker_id in controller.isr and broker_id in controller.living:
            controller.lead(broker_id)

    @rule(broker_id=brokers)
    def flush(self, broker_id: BrokerId) -> None:
        self.partition.flush(broker_id)

    @rule(broker_id=brokers)
    def checkpoint(self, broker_id: BrokerId) -> None:
        self.partition.checkpoint(broker_id)

    @rule(broker_id=brokers, loses_power=st.booleans(), torn_bytes=st.sampled_from([0, 1, 70, 200]))
    def kill(self, broker_id: BrokerId, loses_power: bool, torn_bytes: int) -> None:
        if broker_id in BROKERS and self.partition.nodes[broker_id].is_up:
            is_last = self.partition.controller.isr == (broker_id,)
            self.partition.kill(broker_id, loses_power=loses_power and not is_last, torn_bytes=torn_bytes)
            if loses_power:
                self.notice(broker_id)  # or two could lose it, one of them being the last without knowing

    @rule(broker_id=brokers)
    def notice(self, broker_id: BrokerId) -> None:
        if not self.partition.nodes[broker_id].is_up:
            self.partition.controller.gone(broker_id)

    @rule(broker_id=brokers)
    def expire_session(self, broker_id: BrokerId) -> None:
        """The broker lives on and has not noticed; it comes back with a registration of its own."""
        self.partition.controller.gone(broker_id)

    @rule(broker_id=brokers)
    def register_anew(self, broker_id: BrokerId) -> None:
        self.partition.register_anew(broker_id)

    @rule(broker_id=brokers)
    def stop(self, broker_id: BrokerId) -> None:
        if self.partition.nodes[broker_id].is_up:
            self.partition.stop(broker_id)

    @rule(broker_id=brokers)
    def start(self, broker_id: BrokerId) -> None:
        if not self.partition.nodes[broker_id].is_up:
            self.partition.start(broker_id)

    @invariant()
    def holds(self) -> None:
        self.partition.check()


class PowerFailures(Crashes):
    """All brokers lose power at once, and come back in any order: `flush.messages=1` keeps what was acknowledged."""

    flush_messages = 1
    min_insync_replicas = 2

    @rule(torn_bytes=st.sampled_from([0, 1, 70, 200]), order=st.permutations(BROKERS), noticed=st.permutations(BROKERS))
    def all_lose_power(self, torn_bytes: int, order: list[BrokerId], noticed: list[BrokerId]) -> None:
        for broker in BROKERS:
            if self.partition.nodes[broker].is_up:
                self.partition.kill(broker, loses_power=True, torn_bytes=torn_bytes)
        for broker_id in noticed:
            self.partition.controller.gone(broker_id)
        for broker_id in order:
            self.partition.start(broker_id)


COMMON = settings(
    deadline=None,
    stateful_step_count=60,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
)

TestCrashes = Crashes.TestCase
TestCrashes.settings = settings(COMMON, max_examples=examples(20))
TestPowerFailures = PowerFailures.TestCase
TestPowerFailures.settings = settings(COMMON, max_examples=examples(12))
