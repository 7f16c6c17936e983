"""ZooKeeper's semantics, held against every implementation of the interface.

Sources: the ZooKeeper programmer's guide ('ZooKeeper Stat Structure', 'Sequence Nodes', 'Semantics of Watches',
'Consistency Guarantees') and what traps.md says of ConnectionLoss and expiry. Nothing here knows which
implementation it talks to.
"""

from __future__ import annotations

import asyncio

import pytest

from ottla.coordination.errors import (
    BadArguments,
    BadVersion,
    ConnectionLoss,
    CoordinationError,
    NoChildrenForEphemerals,
    NodeExists,
    NoNode,
    NotEmpty,
    RequestTooLarge,
    SessionExpired,
)
from ottla.coordination.interface import (
    Check,
    Coordination,
    Create,
    Delete,
    EventType,
    SessionEvent,
    SetData,
    Stat,
    WatchedEvent,
)

from .implementations import Service


class Recorder:
    """A watch that remembers its calls and can be waited for."""

    def __init__(self) -> None:
        self.events: list[WatchedEvent] = []
        self._called = asyncio.Event()

    def __call__(self, event: WatchedEvent) -> None:
        self.events.append(event)
        self._called.set()

    async def called(self) -> WatchedEvent:
        await asyncio.wait_for(self._called.wait(), 120)
        return self.events[0]


async def settled(session: Coordination) -> None:
    """Every event of writes that were answered before is delivered: a session's answers come in order."""
    await session.exists("/")
    await asyncio.sleep(0)


# Data and versions.


async def test_a_znode_keeps_its_data_and_counts_its_writes(service: Service) -> None:
    """'version: the number of changes to the data of this znode'; a write has the next zxid."""
    session = await service.session()
    assert await session.create("/a", b"one") == "/a"
    data, first = await session.get("/a")
    assert (data, first.version, first.data_length, first.num_children, first.ephemeral_owner) == (b"one", 0, 3, 0, 0)
    assert first.czxid == first.mzxid == first.pzxid > 0
    second = await session.set("/a", b"twice")
    assert (second.version, second.data_length) == (1, 5)
    assert second.mzxid > first.mzxid
    assert (second.czxid, second.pzxid, second.ctime) == (first.czxid, first.pzxid, first.ctime)
    assert second.mtime >= first.mtime
    assert await session.get("/a") == (b"twice", second)


async def test_data_may_be_empty(service: Service) -> None:
    session = await service.session()
    await session.create("/a")
    assert (await session.get("/a"))[0] == b""


async def test_a_write_with_another_version_is_refused(service: Service) -> None:
    """Conditional writes are what a controller epoch rests on."""
    session = await service.session()
    await session.create("/a", b"0")
    await session.set("/a", b"1", version=0)
    with pytest.raises(BadVersion):
        await session.set("/a", b"2", version=0)
    with pytest.raises(BadVersion):
        await session.delete("/a", version=0)
    assert (await session.get("/a"))[0] == b"1"
    await session.set("/a", b"2", version=-1)
    await session.delete("/a", version=2)
    assert await session.exists("/a") is None


async def test_what_is_missing_and_what_is_there_already_have_their_errors(service: Service) -> None:
    session = await service.session()
    await session.create("/a")
    with pytest.raises(NodeExists):
        await session.create("/a")
    with pytest.raises(NodeExists):
        await session.create("/")
    with pytest.raises(NoNode):
        await session.create("/missing/b")
    with pytest.raises(NoNode):
        await session.get("/missing")
    with pytest.raises(NoNode):
        await session.set("/missing", b"")
    with pytest.raises(NoNode):
        await session.delete("/missing")
    with pytest.raises(NoNode):
        await session.children("/missing")
    assert await session.exists("/missing") is None


async def test_children_are_counted_and_a_parent_can_not_be_deleted(service: Service) -> None:
    """'cversion: the number of changes to the children of this znode': a create and a delete are one each."""
    session = await service.session()
    await session.create("/a")
    made = await session.exists("/a")
    assert made is not None
    await session.create("/a/b")
    await session.create("/a/c")
    await session.set("/a/c", b"not a change to the children")
    assert sorted(await session.children("/a")) == ["b", "c"]
    with pytest.raises(NotEmpty):
        await session.delete("/a")
    await session.delete("/a/b")
    stat = await session.exists("/a")
    assert stat is not None
    assert (stat.cversion, stat.num_children, stat.version) == (3, 1, 0)
    assert stat.pzxid > made.pzxid
    await session.delete("/a/c")
    await session.delete("/a")
    assert "a" not in await session.children("/")


async def test_missing_parents_are_made_when_asked_for(service: Service) -> None:
    session = await service.session()
    await session.create("/a", b"kept")
    await session.create("/a/b/c/d", b"leaf", make_parents=True)
    assert (await session.get("/a"))[0] == b"kept"
    assert (await session.get("/a/b/c"))[0] == b""
    assert (await session.get("/a/b/c/d"))[0] == b"leaf"
    with pytest.raises(NodeExists):
        await session.create("/a/b/c/d", make_parents=True)


async def test_no_two_sequential_znodes_of_a_parent_have_one_name(service: Service) -> None:
    """'The counter has a format of %010d'; it counts the parent's creates and never goes back."""
    session = await service.session()
    await session.create("/queue")
    assert await session.create("/queue/n-", sequential=True) == "/queue/n-0000000000"
    assert await session.create("/queue/m-", sequential=True) == "/queue/m-0000000001"
    await session.create("/queue/plain")
    await session.delete("/queue/n-0000000000")
    await session.delete("/queue/m-0000000001")
    assert await session.create("/queue/n-", sequential=True) == "/queue/n-0000000003"
    assert await session.create("/queue/", sequential=True, ephemeral=True) == "/queue/0000000004"


async def test_many_are_read_at_once_in_the_order_asked_for(service: Service) -> None:
    session = await service.session()
    assert await session.get_many([]) == []
    await session.create("/a", b"in a")
    await session.transaction([Create(f"/a/{index}", b"%d" % index) for index in range(450)])
    found = await session.get_many(["/a", "/missing", *(f"/a/{index}" for index in range(450)), "/a"])
    assert found[0] == found[-1] == await session.get("/a")
    assert found[1] is None
    assert [answer and answer[0] for answer in found[2:-1]] == [b"%d" % index for index in range(450)]
    with pytest.raises(BadArguments):
        await session.get_many(["/a", "a"])


# Paths and sizes.


@pytest.mark.parametrize(
    "path", ["", "a", "/a/", "//", "/a//b", "/.", "/a/..", "/a/./b", "/a\x00", "/a\x1fb", "/\x7f", "/\ud800", "/\uf8ff"]
)
async def test_paths_that_zookeeper_refuses_are_refused(service: Service, path: str) -> None:
    """'The znode names': no null character, no control characters, no relative names, no empty ones."""
    session = await service.session()
    for call in (
        lambda: session.create(path),
        lambda: session.get(path),
        lambda: session.set(path, b""),
        lambda: session.delete(path),
        lambda: session.exists(path),
        lambda: session.children(path),
        lambda: session.transaction([Check(path, 0)]),
    ):
        with pytest.raises(BadArguments):
            await call()


async def test_names_that_only_look_odd_are_accepted(service: Service) -> None:
    session = await service.session()
    for path in ("/...", "/a b", "/ä", "/<default>", "/zookeeper2", "/a:b", "/日本"):
        assert await session.create(path) == path


async def test_a_request_over_one_mebibyte_is_refused_and_the_session_lives_on(service: Service) -> None:
    """`jute.maxbuffer`: ZooKeeper's server would drop the connection, which tells no one why."""
    session = await service.session()
    await session.create("/a", b"x" * 1_000_000)
    with pytest.raises(RequestTooLarge, match=r"/a: a request of 1\d{6} bytes"):
        await session.set("/a", b"x" * (1 << 20))
    with pytest.raises(RequestTooLarge):
        await session.transaction([Create(f"/b{index}", b"x" * 200_000) for index in range(6)])
    assert await session.exists("/b0") is None
    assert len((await session.get("/a"))[0]) == 1_000_000


# Transactions.


async def test_a_transaction_gives_a_result_for_each_operation_and_is_one_write(service: Service) -> None:
    session = await service.session()
    await session.create("/a", b"0")
    results = await session.transaction(
        [
            Check("/a", 0),
            Create("/a/b", b"b"),
            Create("/a/n", sequential=True),
            SetData("/a", b"1", 0),
            SetData("/a/b", b"c"),
            Delete("/a/b", 1),
        ]
    )
    stat = await session.exists("/a")
    assert stat is not None
    assert results[:3] == [None, "/a/b", "/a/n0000000001"]
    assert isinstance(results[3], Stat) and results[3].version == 1
    assert isinstance(results[4], Stat) and results[4].version == 1
    assert results[5] is None
    assert await session.children("/a") == ["n0000000001"]
    assert stat.mzxid == stat.pzxid


async def test_an_empty_transaction_does_nothing(service: Service) -> None:
    session = await service.session()
    assert await session.transaction([]) == []


@pytest.mark.parametrize(
    ("failing", "error"),
    [
        (Check("/a", 7), BadVersion),
        (SetData("/a", b"", 7), BadVersion),
        (Delete("/a"), NotEmpty),
        (Create("/a"), NodeExists),
        (Create("/x/y"), NoNode),
        (Check("/x", 0), NoNode),
    ],
)
async def test_a_transaction_that_fails_leaves_nothing(service: Service, failing: Check, error: type[CoordinationError]) -> None:
    """'Either all of the ops succeed or none'; no watch fires either."""
    session = await service.session()
    await session.create("/a", b"0")
    await session.create("/a/kept", b"kept")
    before = await session.exists("/a")
    watch = Recorder()
    await session.exists("/a/new", watch)
    await session.children("/a", watch)
    with pytest.raises(error) as raised:
        await session.transaction([Create("/a/new"), SetData("/a/kept", b"changed"), failing, Create("/a/more")])
    assert raised.value.operation_index == 2
    assert await session.exists("/a") == before
    assert await session.children("/a") == ["kept"]
    assert (await session.get("/a/kept"))[0] == b"kept"
    await settled(session)
    assert watch.events == []


async def test_an_operation_sees_those_before_it_in_its_transaction(service: Service) -> None:
    session = await service.session()
    await session.transaction(
        [Create("/a"), Create("/a/b"), SetData("/a/b", b"1", 0), Check("/a/b", 1), Delete("/a/b"), Delete("/a"), Create("/a", b"2")]
    )
    data, stat = await session.get("/a")
    assert (data, stat.num_children, stat.cversion) == (b"2", 0, 0)
    await session.create("/a/b")
    with pytest.raises(NodeExists):
        await session.transaction([Create("/c"), Create("/c")])


# Ephemerals and sessions.


async def test_an_ephemeral_goes_with_its_session(service: Service) -> None:
    one, other = await service.session(), await service.session()
    assert one.session_id != other.session_id
    await one.create("/live", b"one", ephemeral=True)
    await one.create("/stays", b"one")
    stat = await other.exists("/live")
    assert stat is not None and stat.ephemeral_owner == one.session_id
    with pytest.raises(NodeExists):
        await other.create("/live", ephemeral=True)
    await one.close()
    assert await other.exists("/live") is None
    assert await other.exists("/stays") is not None
    await other.create("/live", b"other", ephemeral=True)


async def test_an_ephemeral_has_no_children(service: Service) -> None:
    session = await service.session()
    await session.create("/live", ephemeral=True)
    with pytest.raises(NoChildrenForEphemerals):
        await session.create("/live/child")


async def test_an_ephemeral_that_was_deleted_and_made_again_belongs_to_the_new_session(service: Service) -> None:
    one, other = await service.session(), await service.session()
    await one.create("/live", ephemeral=True)
    await other.delete("/live")
    await other.create("/live", ephemeral=True)
    await one.close()
    stat = await other.exists("/live")
    assert stat is not None and stat.ephemeral_owner == other.session_id


async def test_expiry_removes_the_ephemerals_and_tells_the_others(service: Service) -> None:
    """traps.md: ephemerals vanish, watches of others fire, the session's further calls raise SessionExpired."""
    one, other = await service.session(), await service.session()
    events: list[SessionEvent] = []
    one.on_session_event(events.append)
    await one.create("/brokers")
    await one.create("/brokers/1", ephemeral=True)
    await one.create("/brokers/2", ephemeral=True)
    node, children, own = Recorder(), Recorder(), Recorder()
    await other.exists("/brokers/1", node)
    await other.children("/brokers", children)
    await one.exists("/brokers/2", own)
    await service.expire(one)
    assert await node.called() == WatchedEvent(EventType.DELETED, "/brokers/1")
    assert await children.called() == WatchedEvent(EventType.CHILDREN, "/brokers")
    assert await other.children("/brokers") == []
    for call in (
        lambda: one.create("/x"),
        lambda: one.get("/brokers"),
        lambda: one.get_many(["/brokers"]),
        lambda: one.set("/brokers", b""),
        lambda: one.delete("/brokers"),
        lambda: one.exists("/brokers"),
        lambda: one.children("/brokers"),
        lambda: one.transaction([Check("/brokers", 0)]),
    ):
        with pytest.raises(SessionExpired):
            await call()
    await one.close()
    await settled(other)
    # With a server in another process the connection is lost before the session is.
    assert [event for event in events if event is not SessionEvent.SUSPENDED] == [SessionEvent.EXPIRED]
    assert own.events == []
    assert (await other.exists("/x")) is None


async def test_a_closed_session_says_so_and_closes_once(service: Service) -> None:
    session, other = await service.session(), await service.session()
    events: list[SessionEvent] = []
    session.on_session_event(events.append)
    await session.close()
    await session.close()
    await settled(other)
    assert events == [SessionEvent.CLOSED]
    with pytest.raises(SessionExpired):
        await session.exists("/")


# Watches.


async def test_a_watch_fires_once(service: Service) -> None:
    """'One-time trigger': the second change is for anyone who watches again."""
    session = await service.session()
    await session.create("/a", b"0")
    watch = Recorder()
    await session.get("/a", watch)
    await session.set("/a", b"1")
    await session.set("/a", b"2")
    await session.delete("/a")
    await settled(session)
    assert watch.events == [WatchedEvent(EventType.CHANGED, "/a")]


@pytest.mark.parametrize(
    ("kind", "change", "expected"),
    [
        ("get", SetData("/a", b"1"), EventType.CHANGED),
        ("get", Delete("/a"), EventType.DELETED),
        ("exists", SetData("/a", b"1"), EventType.CHANGED),
        ("exists", Delete("/a"), EventType.DELETED),
        ("children", Delete("/a"), EventType.DELETED),
        ("children", Create("/a/b"), EventType.CHILDREN),
        ("get", Create("/a/b"), None),
        ("exists", Create("/a/b"), None),
        ("children", SetData("/a", b"1"), None),
    ],
)
async def test_each_kind_of_watch_hears_of_its_own_kind_of_change(
    service: Service, kind: str, change: SetData | Delete | Create, expected: EventType | None
) -> None:
    """'Semantics of Watches': getData and exists set data watches, getChildren child watches."""
    session, other = await service.session(), await service.session()
    await session.create("/a", b"0")
    watch = Recorder()
    await getattr(session, kind)("/a", watch)
    await other.transaction([change])
    await settled(session)
    assert watch.events == ([] if expected is None else [WatchedEvent(expected, "/a")])


async def test_a_watch_on_a_znode_that_is_not_there_hears_of_its_creation(service: Service) -> None:
    session = await service.session()
    exists, get = Recorder(), Recorder()
    assert await session.exists("/a", exists) is None
    with pytest.raises(NoNode):
        await session.get("/a", get)
    await session.create("/a")
    assert await exists.called() == WatchedEvent(EventType.CREATED, "/a")
    await settled(session)
    assert get.events == []


async def test_a_watch_set_twice_and_a_watch_of_both_kinds_are_called_once(service: Service) -> None:
    """ZooKeeper's client keeps sets of watchers and merges those that one event is for."""
    session = await service.session()
    await session.create("/a")
    watch = Recorder()
    await session.get("/a", watch)
    await session.exists("/a", watch)
    await session.children("/a", watch)
    await session.delete("/a")
    await settled(session)
    assert watch.events == [WatchedEvent(EventType.DELETED, "/a")]


async def test_every_session_has_its_own_watches(service: Service) -> None:
    sessions = [await service.session() for _ in range(3)]
    await sessions[0].create("/a")
    watches = [Recorder() for _ in sessions]
    for session, watch in zip(sessions, watches, strict=True):
        await session.get("/a", watch)
    await sessions[1].close()
    await sessions[2].set("/a", b"1")
    assert await watches[0].called() == await watches[2].called() == WatchedEvent(EventType.CHANGED, "/a")
    assert watches[1].events == []


async def test_a_watch_is_called_before_its_session_can_read_the_new_value(service: Service) -> None:
    """'A client will see the watch event for a znode it is watching before seeing the new data that corresponds to that znode'."""
    writer, reader = await service.session(), await service.session()
    await writer.create("/a", b"0")
    for round_number in range(1, 20):
        watch = Recorder()
        await reader.get("/a", watch)
        writing = asyncio.ensure_future(writer.set("/a", str(round_number).encode()))
        # Reading until it is seen is the point: the first read that sees it must come after the watch.
        while (await reader.get("/a"))[0] != str(round_number).encode():  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert watch.events == [WatchedEvent(EventType.CHANGED, "/a")]
        await writing


async def test_a_watch_that_fails_hurts_nobody_else(service: Service) -> None:
    session, other = await service.session(), await service.session()
    await session.create("/a")

    def fails(event: WatchedEvent) -> None:
        raise RuntimeError("a fault of the watch's own")

    watch = Recorder()
    await session.get("/a", fails)
    await other.get("/a", watch)
    await session.set("/a", b"1")
    assert await watch.called() == WatchedEvent(EventType.CHANGED, "/a")
    assert (await session.get("/a"))[0] == b"1"


# Order.


async def test_a_session_reads_its_own_writes_even_without_waiting_for_them(service: Service) -> None:
    """'Updates from a client will be applied in the order that they were sent', and its reads are answered among them."""
    session = await service.session()
    await session.create("/a", b"0")
    _, first, _, second = await asyncio.gather(session.set("/a", b"1"), session.get("/a"), session.set("/a", b"2"), session.get("/a"))
    assert first[0] in (b"1", b"2")
    assert second[0] == b"2"


async def test_writes_of_many_sessions_are_seen_in_one_order(service: Service) -> None:
    sessions = [await service.session() for _ in range(5)]
    await sessions[0].create("/counter", b"0")

    async def increment(session: Coordination) -> None:
        for _ in range(10):
            while True:
                data, stat = await session.get("/counter")
                try:
                    await session.set("/counter", str(int(data) + 1).encode(), stat.version)
                    break
                except BadVersion:
                    continue

    await asyncio.gather(*(increment(session) for session in sessions))
    data, stat = await sessions[0].get("/counter")
    assert (data, stat.version) == (b"50", 50)


async def test_many_writes_at_once_are_all_done(service: Service) -> None:
    session = await service.session()
    await session.create("/many")
    paths = await asyncio.gather(*(session.create("/many/n-", sequential=True) for _ in range(500)))
    assert sorted(paths) == [f"/many/n-{index:010d}" for index in range(500)]
    assert len(await session.children("/many")) == 500


async def test_a_caller_that_gives_up_leaves_the_session_usable(service: Service) -> None:
    session = await service.session()
    await session.create("/a", b"0")
    writing = asyncio.ensure_future(session.set("/a", b"1"))
    await asyncio.sleep(0)
    writing.cancel()
    await asyncio.wait([writing])
    await session.set("/a", b"2")
    assert (await session.get("/a"))[0] == b"2"


# Connection loss.


@pytest.mark.parametrize("request_arrives", [True, False])
async def test_after_connection_loss_the_outcome_is_found_by_reading(service: Service, request_arrives: bool) -> None:
    """traps.md: a create whose outcome is unknown is settled by reading ephemeralOwner."""
    session = await service.session()
    events: list[SessionEvent] = []
    session.on_session_event(events.append)
    service.break_connection(session, request_arrives=request_arrives)
    with pytest.raises(ConnectionLoss):
        await session.create("/controller", b"1", ephemeral=True)
    stat = await session.exists("/controller")
    assert (stat is not None and stat.ephemeral_owner == session.session_id) == request_arrives
    assert events == [SessionEvent.SUSPENDED, SessionEvent.CONNECTED]


@pytest.mark.parametrize("request_arrives", [True, False])
async def test_a_transaction_is_whole_even_when_its_answer_is_lost(service: Service, request_arrives: bool) -> None:
    session, other = await service.session(), await service.session()
    await session.create("/a", b"0")
    service.break_connection(session, request_arrives=request_arrives)
    with pytest.raises(ConnectionLoss):
        await session.transaction([SetData("/a", b"1", 0), Create("/b")])
    await session.exists("/")
    assert ((await other.get("/a"))[0] == b"1") == request_arrives
    assert (await other.exists("/b") is not None) == request_arrives


async def test_ephemerals_and_watches_outlive_a_lost_connection(service: Service) -> None:
    """The session continues until its timeout, so what belongs to it does."""
    session, other = await service.session(), await service.session()
    await session.create("/live", ephemeral=True)
    await session.create("/a", b"0")
    watch = Recorder()
    await session.get("/a", watch)
    service.break_connection(session, request_arrives=False)
    with pytest.raises(ConnectionLoss):
        await session.get("/live")
    assert await other.exists("/live") is not None
    await other.set("/a", b"1")
    assert await watch.called() == WatchedEvent(EventType.CHANGED, "/a")
    await session.set("/a", b"2")
