"""An election over the embedded twin: one holder at a time, an epoch for each term, and a former holder can write nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.loops import until

from ottla.clock import SystemClock
from ottla.coordination import znodes
from ottla.coordination.election import Election, Office, Term
from ottla.coordination.embedded import EmbeddedZooKeeper
from ottla.coordination.errors import BadVersion
from ottla.coordination.interface import Coordination, Create, SetData
from ottla.errors import UnknownServerError
from ottla.lifecycle import Backoff

OFFICE = Office("registry leader", "/registry", "/registry_epoch")


class Candidate:
    def __init__(self, session: Coordination, name: str, office: Office = OFFICE) -> None:
        self.name = name
        self.terms: list[Term] = []
        self.ends = 0
        self.fails = 0
        self.election = Election(session, office, name, self)

    def data(self) -> bytes:
        return self.name.encode()

    async def term_begins(self, term: Term) -> None:
        if self.fails:
            self.fails -= 1
            raise UnknownServerError("the term could not begin")
        self.terms.append(term)

    def term_ended(self) -> None:
        self.ends += 1


async def test_the_next_holder_has_the_next_epoch_and_the_former_one_can_write_nothing(tmp_path: Path) -> None:
    zookeeper = EmbeddedZooKeeper(tmp_path, SystemClock())
    first_session, second_session = await zookeeper.session(), await zookeeper.session()
    first, second = Candidate(first_session, "first"), Candidate(second_session, "second")
    await first.election.start()
    await second.election.start()
    (own,), (seen,) = first.terms, second.terms
    assert own.is_own and not seen.is_own
    assert (own.holder, own.epoch) == (seen.holder, seen.epoch) == (b"first", 1)

    await zookeeper.expire(first_session)
    await until(lambda: len(second.terms) == 2)
    assert second.ends == 1
    assert second.terms[1].is_own and (second.terms[1].holder, second.terms[1].epoch) == (b"second", 2)
    assert own.epoch_version is not None
    third_session = await zookeeper.session()
    with pytest.raises(BadVersion):
        await third_session.transaction([SetData(OFFICE.epoch_path, b"9", own.epoch_version), Create("/of-the-former-holder")])
    for candidate in (first, second):
        candidate.election.close()
        await candidate.election.wait_closed()
    await zookeeper.close()


async def test_a_term_that_could_not_begin_is_begun_again_in_the_same_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla.coordination.election._BACKOFF", Backoff(first_seconds=0.01, longest_seconds=5.0))
    zookeeper = EmbeddedZooKeeper(tmp_path, SystemClock())
    candidate = Candidate(await zookeeper.session(), "only")
    candidate.fails = 2
    await candidate.election.start()
    await until(lambda: candidate.terms)
    (term,) = candidate.terms
    assert term.is_own and term.epoch == 1
    candidate.election.close()
    await candidate.election.wait_closed()
    await zookeeper.close()


async def test_a_candidate_that_says_that_its_term_failed_and_raises_has_failed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As the controller when it cannot take over: the first retry is at once."""
    monkeypatch.setattr("ottla.coordination.election._BACKOFF", Backoff(first_seconds=1_000.0, longest_seconds=1_000.0))

    class Controller(Candidate):
        async def term_begins(self, term: Term) -> None:
            if self.fails:
                self.election.term_failed("taking over failed")
            await super().term_begins(term)

    zookeeper = EmbeddedZooKeeper(tmp_path, SystemClock())
    session = await zookeeper.session()
    candidate = Controller(session, "only")
    await candidate.election.start()
    candidate.fails = 1
    await session.delete(OFFICE.path)
    await until(lambda: len(candidate.terms) == 2, 60)
    assert [record.getMessage() for record in caplog.records] == [
        "only cannot continue as the registry leader, retrying: taking over failed"
    ]
    candidate.election.close()
    await candidate.election.wait_closed()
    await zookeeper.close()


async def test_which_epochs_are_ottlas_is_written_with_the_epoch_also_of_a_term_that_never_begins(tmp_path: Path) -> None:
    """A holder that dies at once leaves no epoch that would pass for Kafka's."""
    zookeeper = EmbeddedZooKeeper(tmp_path, SystemClock())
    session = await zookeeper.session()
    candidate = Candidate(session, "first", replace(OFFICE, own_epochs_path="/own"))
    candidate.fails = 1
    await candidate.election.start()
    candidate.election.close()
    await candidate.election.wait_closed()
    assert candidate.terms == []
    assert znodes.decode_controller_epoch(OFFICE.epoch_path, (await session.get(OFFICE.epoch_path))[0]) == 1
    assert znodes.decode_own_epochs("/own", (await session.get("/own"))[0]) == znodes.OwnEpochs(1, 1)
    await session.close()
    await zookeeper.close()
