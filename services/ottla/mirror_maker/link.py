"""One link at a worker: which partitions there are, which slots are held here, and what is brought along.

    every 5 s        the source's topics are looked at; new ones and new partitions are made in the target and copied
    on a change      of workers and slots, and every 2 s: free slots are taken, one too many is given up
    every 5 s        offsets of groups are translated; the positions are committed in the source, for tools that show lag; the source
                     says where it ends, of partitions that are not read
    every 5 s        schemas that the target's registry does not have are registered there, by the holder of slot 0
    every second     a heartbeat, by the holder of slot 0

Each of these continues when it fails, after a word in the log. Slots that are at work need none of them.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final
from uuid import UUID

from ottla.clock import Clock
from ottla.config.mirror import MirrorLink
from ottla.config.settings import MIB
from ottla.coordination.errors import CoordinationError
from ottla.coordination.interface import Coordination
from ottla.errors import ApiError, ConfigurationError, InvalidRequest, InvalidTopic, OttlaError, reason_of
from ottla.lifecycle import Offload, ThreadOffload
from ottla.metrics.cells import Histogram, HistogramSnapshot
from ottla.mirror_maker.assignment import slot_of, to_release, to_take
from ottla.mirror_maker.membership import ALL, Alone, Members, Membership, Shared
from ottla.mirror_maker.merge.map_topic import Origins, batches_of
from ottla.mirror_maker.merge.slot import (
    Counts,
    Destination,
    MergeSettings,
    Pace,
    Repair,
    SlotCopier,
    SlotLost,
    SourceChanged,
    check_source,
)
from ottla.mirror_maker.naming import (
    HEARTBEATS,
    INTERNAL_GROUPS,
    INTERNAL_TOPICS,
    MAP_PREFIX,
    IdentityNaming,
    Naming,
    PrefixNaming,
    RegexNaming,
    is_heartbeats,
    name_filter,
    pattern_of,
)
from ottla.mirror_maker.offset_map import Gap, MapRecord, PartitionMap, modes_record
from ottla.mirror_maker.partition_states import PartitionState, PartitionStatus
from ottla.mirror_maker.sync.groups import END_SECONDS, follow_group, list_groups, translated
from ottla.mirror_maker.sync.legacy_records import Checkpoint, checkpoint, heartbeat, offset_sync
from ottla.mirror_maker.sync.schemas import ANSWER_SECONDS, SchemaCopier
from ottla.mirror_maker.sync.topics import ensure_topics, follow_settings, make_topic, own_settings, unaudited
from ottla.model import TopicPartition
from ottla.wire.admin import NewTopic
from ottla.wire.cluster import Cluster, is_healed_by_time
from ottla.wire.groups import CommittedOffset, commit_offsets, committed_offsets
from ottla.wire.offsets import LATEST, list_offsets
from ottla.wire.producing import BatchProducer

log: Final = logging.getLogger(__name__)

ASSIGN_SECONDS: Final = 2.0
RETRY_SECONDS: Final = 1.0
# The topic of a schema registry. Where schemas are copied between registries, a copy of it under its own name would be a second writer.
SCHEMAS: Final = "_schemas"
# A slot that is given up aborts its transaction. A target that does not answer is not waited for: it has a timeout of its own for that, and
# the slot's next holder aborts it too.
ABORT_SECONDS: Final = 3.0
# A worker that finds its slot taken, although it has the znode, shares the configuration with one that has another ZooKeeper, or none.
LOST_SECONDS: Final = 10.0
# The target stamps what is said there: it may refuse the time of a worker whose clock is another. Who opens a slot reads all of its
# map, so what was written again is to go soon, of which the cleaner takes no active segment, and the markers of transactions too.
MAP_SETTINGS: Final = {
    "cleanup.policy": "compact",
    "message.timestamp.type": "LogAppendTime",
    "segment.bytes": str(16 * MIB),
    "delete.retention.ms": "600000",
}
# A second is forgotten after a day, also by the map of who copies it.
HEARTBEATS_SETTINGS: Final = {**MAP_SETTINGS, "cleanup.policy": "compact,delete", "retention.ms": "86400000"}
# By the names of the steps, as an operator reads them.
_WHAT_IS_DONE: Final = {
    "_identify": "ask both clusters who they are",
    "_assign": "share the slots",
    "discover": "look for topics",
    "_commit_positions": "commit its positions in the source",
    "_look_at_ends": "ask how far its source is ahead of what is paused or has failed",
    "_follow_groups": "translate offsets of groups",
    "_follow_schemas": "copy schemas",
    "_beat": "write heartbeats",
}


class Link:
    """One link.

    Args:
        settings: of the link.
        source, target: are the caller's to close, after the link.
        worker: the name of this worker, another one at each start.
        schemas: where both clusters have a schema registry.
        links: of this worker, by their names, as they come and go.
    """

    def __init__(
        self,
        settings: MirrorLink,
        source: Cluster,
        target: Cluster,
        offload: Offload,
        clock: Clock,
        worker: str,
        schemas: SchemaCopier | None,
        links: Mapping[str, Link],
    ) -> None:
        check_installed(settings)
        self.settings: Final = settings
        self.failure = ""  # why nothing is copied
        self._trouble = ""  # what kept the last attempt at something from success
        self._told: dict[str, str] = {}  # the same, by what was attempted, as it was told
        self.slots: Final[dict[int, SlotCopier]] = {}
        self.refused: dict[TopicPartition, str] = {}  # partitions that the target cannot have, and why
        self._source = source
        self._target = target
        self._offload = offload
        self._clock = clock
        self._worker = worker
        self._naming = naming_of(settings)
        self._naming_of_heartbeats = PrefixNaming(settings.source, settings.target, settings.replication_policy_separator)
        # As MirrorMaker 2's ReplicationPolicy calls its own topics.
        self._dot = dot = settings.replication_policy_separator if settings.replication_policy_internal_topic_separator_enabled else "."
        internal = (*INTERNAL_TOPICS, f".*{re.escape(dot)}internal", *((SCHEMAS,) if schemas is not None else ()))
        self._topics = name_filter("topics", settings.topics, (*internal, *settings.topics_exclude))
        self._groups = name_filter("groups", settings.groups, (*INTERNAL_GROUPS, *settings.groups_exclude))
        self._excluded_settings = pattern_of("config.properties.exclude", "|".join(settings.config_properties_exclude) or "(?!)")
        self._membership: Membership = Alone(worker)
        self._members = Members()
        self._changed = asyncio.Event()
        self._origins = Origins(source)
        self._pace = Pace(settings.throttle_bytes_per_second)
        self._merge: MergeSettings | None = None
        self._wanted: dict[TopicPartition, Destination] = {}
        self._untranslated: dict[str, str] = {}  # groups, and why not
        self._ends: dict[tuple[UUID | None, TopicPartition], int] = {}  # of the target, as last heard, with the ids of topics
        self._emitted: dict[str, set[MapRecord]] = {}  # by topic, MirrorMaker 2's records that were written or left out last
        self._sizes: dict[str, int] = {}
        self._followed: dict[str, Mapping[str, str]] = {}  # by the target's topics, what the source has set when it was looked at last
        self._refused_settings: dict[str, str] = {}  # by the target's topics, why they do not follow; empty where they do
        self._settings_at = 0.0
        self._tasks: list[asyncio.Task[None]] = []
        self._copying: dict[int, asyncio.Task[None]] = {}
        self._giving_up: asyncio.Task[None] | None = None  # in which a slot is given up to another worker
        self._emitter: BatchProducer | None = None
        self._measured: dict[int, tuple[float, int]] = {}
        self._past = Counts()  # of slots that are held no more
        self._past_ages = Histogram()
        self._schemas = schemas
        self._links = links
        self._schemas_offload = ThreadOffload(1, "ottla-mirror-schemas")  # its thread begins with the first question
        self._copying_schemas: asyncio.Future[int] | None = None
        self._names: dict[str, str] = {}  # of the target, by those of the source
        self._has_looked = False  # so that it knows these
        self._unaudited: tuple[frozenset[str], frozenset[str]] = frozenset(), frozenset()  # topics of the source, and of the target
        self.copied_schemas = 0

    # Starting and stopping.

    def start(self) -> None:
        """Begins; whatever it needs that is not there is waited for."""
        self._tasks = [asyncio.ensure_future(self._run())]

    async def stop(self) -> None:
        """Copies no more; open transactions are aborted, and the slots are free."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*map(self._give_up, list(self.slots)))
        if self._giving_up is not None:
            await asyncio.wait([self._giving_up])
        with suppress(OttlaError, OSError):
            await self._membership.leave()
        await self._end_copying_schemas()
        if self._emitter is not None:
            await self._emitter.close(wait=False)
        self._schemas_offload.close()

    async def join(self, coordination: Coordination) -> None:
        """Shares the slots with other workers, in this session."""
        membership = Shared(coordination, self.settings.name, self._worker, self._changed.set)
        await membership.join()
        self._membership = membership
        self._changed.set()

    def lost(self) -> None:
        """The session has expired: the slots are others'."""
        self._membership = _Nobody()
        self._members = Members(paused=self._members.paused)
        self._drop_slots(list(self.slots))

    def _drop_slots(self, slots: Collection[int]) -> None:
        if 0 in slots and self._schemas is not None and self._copying_schemas is not None:
            self._schemas.is_ended = True
        for slot in slots:
            self._copying.pop(slot).cancel()
            self._keep_counts(self.slots.pop(slot))
            self._measured.pop(slot, None)

    async def _run(self) -> None:
        while True:
            if await self._attempt(self._identify):
                break
            self.failure = self._trouble
            await asyncio.sleep(RETRY_SECONDS)
        settings = self.settings
        loops = [
            self._repeat(ASSIGN_SECONDS, self._assign, self._changed),
            self._repeat(settings.refresh_topics_interval_seconds, self.discover),
            self._repeat(settings.translation_seconds, self._commit_positions),
            self._repeat(settings.translation_seconds, self._look_at_ends),
            self._repeat(settings.translation_seconds, self._follow_groups),
        ]
        if self._schemas is not None:
            loops.append(self._repeat(settings.sync_schemas_interval_seconds, self._follow_schemas))
        if settings.emit_heartbeats_enabled:
            loops.append(self._repeat(settings.emit_heartbeats_interval_seconds, self._beat))
        async with asyncio.TaskGroup() as tasks:
            for one in loops:
                tasks.create_task(one)

    async def _repeat(self, seconds: float, action: Callable[[], Awaitable[None]], sooner: asyncio.Event | None = None) -> None:
        event = sooner or asyncio.Event()
        while True:
            event.clear()
            await self._attempt(action)
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await event.wait()

    async def _attempt(self, action: Callable[[], Awaitable[None]]) -> bool:
        """Does it, and gives whether that was possible. What keeps it from that is said when it begins, and when it ends."""
        doing = _WHAT_IS_DONE[action.__name__]
        try:
            await action()
        except SourceChanged:
            return False  # said already, once
        except (OSError, OttlaError) as error:
            self._trouble = reason_of(error)
            if self._told.get(doing) != self._trouble:
                log.warning("%s cannot %s, and tries again: %s", self.settings.name, doing, self._trouble)
            self._told[doing] = self._trouble
            return False
        except Exception as error:
            # Where a step of the link ends: a source that answers nonsense ends neither what else the link does nor another link.
            self._trouble = f"it cannot {doing}: {error!r}"
            if self._told.get(doing) != self._trouble:
                log.exception("%s cannot %s, for a reason that was not foreseen, and tries again", self.settings.name, doing)
            self._told[doing] = self._trouble
            return False
        if self._told.pop(doing, ""):
            log.info("%s can %s again", self.settings.name, doing)
        return True

    async def _identify(self) -> None:
        """Which clusters these are; makes the map's topic."""
        settings = self.settings
        await self._source.refresh(None)
        await self._target.refresh(None)
        source_id, target_id = self._source.metadata.cluster_id or "", self._target.metadata.cluster_id or ""
        if source_id == target_id:
            raise OttlaError(f"source and target are one cluster, {source_id}")
        map_topic = f"{MAP_PREFIX}{settings.name}"
        await self._ensure_own_topic(map_topic, settings.slots, MAP_SETTINGS)
        slots = len(self._target.metadata.topic(map_topic).partitions)
        if slots != settings.slots:
            raise OttlaError(f"{map_topic} has {slots} partitions, and slots is {settings.slots}: it cannot change")
        if settings.audit_enable:
            await self._prepare_audit()
        self.failure = ""
        self._merge = MergeSettings(
            settings.name,
            map_topic,
            source_id,
            target_id,
            "key" if settings.partition_by == "key" else "number",
            settings.provenance == "record",
            "gap" if settings.on_source_truncation == "gap" else "fail",
            settings.audit_window_ms if settings.audit_enable else 0,
        )

    async def _ensure_own_topic(self, topic: str, partitions: int, settings: Mapping[str, str]) -> None:
        """Has the target have a topic of the link itself; raises what the target refuses that with."""
        await self._target.refresh(None)
        refused = await ensure_topics(self._target, {topic: partitions}, self.settings.replication_factor, {topic: settings})
        for error in refused.values():
            raise error

    async def _ensure_audit_of_target(self) -> bool:
        """Has the target have `__audit`, into which each transaction writes; gives whether it was made."""
        from ottla.record import audit_records as audit  # it needs the extra `audit`

        topic = NewTopic(audit.TOPIC, audit.TOPIC_PARTITIONS, self.settings.replication_factor, audit.TOPIC_SETTINGS)
        return topic.name not in self._target.metadata.topics and await make_topic(self._target, topic)

    async def _prepare_audit(self) -> None:
        from ottla.record import audit_records as audit  # it needs the extra `audit`

        await self._ensure_audit_of_target()
        try:
            await make_topic(self._source, NewTopic(audit.TOPIC, audit.TOPIC_PARTITIONS, settings=audit.TOPIC_SETTINGS))
        except ApiError as error:
            log.warning("%s: the source has no %s, and what is read is said once it has: %s", self.settings.name, audit.TOPIC, error)

    # Slots.

    async def _assign(self) -> None:
        assert self._merge is not None
        if self.failure:
            return  # and what is free may be another worker's, whose source is the right one
        slots = self.settings.slots
        try:
            membership = self._membership
            members = await membership.look()
            if membership is not self._membership:
                return  # the session has ended meanwhile, and with it what was seen in it
            self._members = members
            own = {slot for slot, holder in members.holders.items() if holder == self._worker}
            if others := self.slots.keys() - own:
                log.warning("%s: slots %s are not this worker's in ZooKeeper, and are given up", self.settings.name, sorted(others))
                self._drop_slots(others)
            # A znode of ours whose copier has ended for another reason than a loss.
            for slot in sorted(own - self.slots.keys()):
                self._begin(slot)
            for slot in to_take(self._worker, members.workers, slots, members.holders, members.bytes_per_second):
                if await membership.take(slot) and membership is self._membership:
                    self._begin(slot)
            await self._membership.publish(self._rates())
            released = to_release(self._worker, members.workers, slots, members.holders, members.bytes_per_second)
        except CoordinationError as error:
            log.warning("%s: slots cannot be assigned: %s", self.settings.name, error)
            if self.slots and self._membership.may_be_over:
                # The worker that has them by now would be fenced by this one, and this one by it, in turns.
                log.warning("%s: ZooKeeper is silent for as long as a session lasts; all slots are given up", self.settings.name)
                self._members = Members(paused=self._members.paused)
                self._drop_slots(list(self.slots))
            return
        if released is not None:
            log.info("%s: slot %d is given up, for another worker has less to do", self.settings.name, released)
            self._giving_up = asyncio.create_task(self._give_up(released))
            await asyncio.shield(self._giving_up)  # to the end, also where the link stops meanwhile
        self._tell_slots()

    def _begin(self, slot: int) -> None:
        assert self._merge is not None
        copier = SlotCopier(slot, self._merge, self._source, self._target, self._origins, self._offload, self._clock, self._pace)
        self.slots[slot] = copier
        self._copying[slot] = asyncio.ensure_future(self._copy(slot, copier))
        self._tell_slots()

    async def _copy(self, slot: int, copier: SlotCopier) -> None:
        while True:
            try:
                await copier.run()
            except SlotLost as error:
                why = "; workers share slots by zookeeper.connect, which is not set here" if isinstance(self._membership, Alone) else ""
                log.warning("%s: %s%s", self.settings.name, error, why)
                await asyncio.sleep(LOST_SECONDS)
            except SourceChanged as error:
                self._has_changed(error)
                return
            except Exception:
                # Where the work of a slot ends: the others go on, and it is begun again.
                log.exception("%s: slot %d failed in a way that was not foreseen", self.settings.name, slot)
                await asyncio.sleep(LOST_SECONDS)

    def _has_changed(self, error: SourceChanged) -> None:
        """Another cluster has the source's address: nothing is copied any more until the worker is started again."""
        if not self.failure:
            log.error("%s", error)
        self.failure = str(error)
        for task in self._copying.values():
            if task is not asyncio.current_task():
                task.cancel()

    async def _give_up(self, slot: int) -> None:
        """The copier first: a slot that is free is taken at once. In the session that it was taken in: by the next it may be another's."""
        membership = self._membership
        task, copier = self._copying.pop(slot, None), self.slots.pop(slot, None)
        if task is not None:
            task.cancel()
        if slot == 0:
            await self._end_copying_schemas()
        while task is not None and not (await asyncio.wait([task], timeout=ABORT_SECONDS))[0]:
            task.cancel()
        if copier is not None:
            self._keep_counts(copier)
        self._measured.pop(slot, None)
        with suppress(CoordinationError):
            await membership.release(slot)

    def _keep_counts(self, copier: SlotCopier) -> None:
        for name in Counts.__slots__:
            setattr(self._past, name, getattr(self._past, name) + getattr(copier.counts, name))
        self._past_ages.add(copier.record_ages)

    def _rates(self) -> dict[int, float]:
        now = self._clock.monotonic()
        rates = {}
        for slot, copier in self.slots.items():
            then, size = self._measured.get(slot, (now, copier.counts.bytes))
            if now > then:
                rates[slot] = (copier.counts.bytes - size) / (now - then)
            if now == then or now - then > 10 * ASSIGN_SECONDS:
                self._measured[slot] = (now, copier.counts.bytes)
        return rates

    def _tell_slots(self) -> None:
        paused = self._members.paused
        by_slot: dict[int, dict[TopicPartition, Destination]] = {slot: {} for slot in self.slots}
        for partition, to in self._wanted.items():
            if (mine := by_slot.get(slot_of(partition, self.settings.slots))) is not None:
                mine[partition] = to
        for slot, copier in self.slots.items():
            wanted = by_slot[slot]
            copier.want(wanted, [partition for partition in wanted if {ALL, partition.topic, str(partition)} & paused])

    # Topics.

    async def discover(self) -> None:
        """Looks at the source's topics, and has the target have them too."""
        await self._refresh_source(None)
        names: dict[str, str] = {}
        refused: dict[TopicPartition, str] = {}
        for topic in self._source.metadata.topics.values():
            naming, is_wanted = self._naming, topic.name in self._topics
            if is_heartbeats(topic.name, self.settings.replication_policy_separator):
                naming = self._naming_of_heartbeats
                is_wanted = is_wanted or self.settings.heartbeats_replication_enabled
            if topic.is_internal or not is_wanted:
                continue
            try:
                target = naming.target_of(topic.name)
            except InvalidTopic as error:
                refused |= {TopicPartition(topic.name, number): f"InvalidTopic: {error}" for number in topic.partitions}
                continue
            if target is not None:
                names[topic.name] = target
        counts: dict[str, int] = {}
        for name, target in names.items():
            counts[target] = max(counts.get(target, 1), len(self._source.metadata.topics[name].partitions))
        await self._target.refresh(None)
        self._sizes = {target: size for target, size in self._sizes.items() if target in self._target.metadata.topics}
        settings = await self._settings_of(names)
        unmade = await ensure_topics(self._target, counts, self.settings.replication_factor, settings)
        if self.settings.audit_enable and (self._clock.monotonic() >= self._settings_at or names.keys() != self._names.keys()):
            made = set(names.values()) & self._target.metadata.topics.keys()
            self._unaudited = await unaudited(self._source, names, are_read=True), await unaudited(self._target, made, are_read=False)
        unread, unwritten = self._unaudited
        await self._follow_settings(names, settings)
        wanted = {}
        for name, target in names.items():
            there = self._target.metadata.topics.get(target)
            known = self._source.metadata.topics.get(name)
            for number in known.partitions if known is not None else ():
                if there is not None and (number in there.partitions or self.settings.partition_by == "key"):
                    wanted[TopicPartition(name, number)] = Destination(
                        target, len(there.partitions), self._sizes.get(target, 1 << 31), name not in unread, target not in unwritten
                    )
                elif target in unmade:
                    refused[TopicPartition(name, number)] = reason_of(unmade[target])
        is_changed = wanted != self._wanted
        self._wanted, self.refused, self._names, self._has_looked = wanted, refused, names, True
        if is_changed:
            self._tell_slots()
        if self.settings.audit_enable and await self._ensure_audit_of_target():
            log.warning("%s: the target's __audit was deleted and is made again; what it had said is gone", self.settings.name)

    async def _refresh_source(self, topics: Collection[str] | None) -> None:
        """Hears of the source as it is now, which has to be the cluster that it was."""
        assert self._merge is not None
        await self._source.refresh(topics)
        try:
            check_source(self._merge.link, self._merge.source_id, self._source.metadata.cluster_id)
        except SourceChanged as error:
            self._has_changed(error)
            raise

    async def _settings_of(self, names: Mapping[str, str]) -> dict[str, dict[str, str]]:
        """By the target's names; of topics that are made always, and of all now and then, if they are to follow."""
        follow, there = self.settings.sync_topic_configs_enabled, self._target.metadata.topics
        is_due = self._clock.monotonic() >= self._settings_at
        asked = [name for name, to in names.items() if to not in there or (follow and (is_due or to not in self._sizes))]
        found: dict[str, dict[str, str]] = {}
        for name, own in sorted((await own_settings(self._source, asked, self._excluded_settings)).items()):
            found.setdefault(names[name], {}).update(own)  # several may become one
        return found

    async def _follow_settings(self, names: Mapping[str, str], settings: Mapping[str, Mapping[str, str]]) -> None:
        there = self._target.metadata.topics
        asked = {target: settings.get(target, {}) for target in names.values() if target in settings or target not in self._sizes}
        try:
            former = {target: self._followed[target] for target in settings if target in self._followed}
            wanted = {target: found for target, found in asked.items() if target in there}
            sizes, refused = await follow_settings(self._target, wanted, former)
            self._sizes |= dict.fromkeys(wanted, 1 << 31) | sizes
            self._followed |= {target: found for target, found in settings.items() if target not in refused}
            for target in asked:
                why = str(refused.get(target, ""))
                if why and self._refused_settings.get(target) != why:
                    log.warning("%s: the settings of %s do not follow: %s", self.settings.name, target, why)
                self._refused_settings[target] = why
        except ApiError as error:
            log.warning("%s: settings do not follow: %s", self.settings.name, error)
        if self._clock.monotonic() >= self._settings_at:
            self._settings_at = self._clock.monotonic() + self.settings.sync_topic_configs_interval_seconds

    # Groups, and MirrorMaker 2's records.

    @property
    def maps(self) -> dict[TopicPartition, PartitionMap]:
        """Of the partitions that are copied here."""
        return {partition: known for copier in self.slots.values() for partition, known in copier.maps.items()}

    async def translate(self, group: str) -> list[Checkpoint]:
        """Where a group of the source is in the target, by the maps that are here.

        Not where records go by key, nor in a topic that several become, by this link or others: what is read of one is not of another.
        """
        if self.settings.partition_by == "key":
            return []
        links = [link for link in self._links.values() if link.settings.target == self.settings.target]
        sources = Counter(to for link in links for to in link._names.values())
        waiting = [link for link in links if not link._has_looked]
        shared = {to for to, count in sources.items() if count > 1 or any(link._may_copy_into(to) for link in waiting)}
        topics = {partition: to.topic for partition, to in self._wanted.items() if to.topic not in shared}
        maps = {partition: known for partition, known in self.maps.items() if partition in topics}
        ends = {partition: status.end_offset for copier in self.slots.values() for partition, status in copier.statuses.items()}
        found = await translated(self._source, group, maps, ends, topics, (self.settings.source, self.settings.target)) if maps else []
        back = self._links.get(f"{self.settings.target}-{self.settings.source}")
        return await self._as_far_as_there_is(found if back is None else await self._bounded(found, back))

    async def _as_far_as_there_is(self, checkpoints: Sequence[Checkpoint]) -> list[Checkpoint]:
        """No further than the target's topics reach: the map does not know of one that was made again until more is copied.

        Raises:
            ApiError, OSError: the target does not say how far.
        """
        found = []
        further: dict[TopicPartition, int] = {}
        topics = self._target.metadata.topics
        for one in checkpoints:
            topic = topics.get(one.partition.topic)
            there = topic.partitions.get(one.partition.partition) if topic is not None else None
            if topic is None or there is None:
                continue
            found.append((one, place := (topic.topic_id, one.partition)))
            if one.offset > self._ends.get(place, -1) and there.leader >= 0:
                further[one.partition] = LATEST
        ends = await list_offsets(self._target, further, timeout_seconds=END_SECONDS) if further else {}
        self._ends |= {place: ends[place[1]].offset for _, place in found if place[1] in ends}
        return [one._replace(offset=min(one.offset, self._ends[place])) for one, place in found if place in self._ends]

    async def _bounded(self, checkpoints: Sequence[Checkpoint], back: Link) -> list[Checkpoint]:
        """Where both clusters have the same names: no further than to the first record of the target that its group has not read as a copy.

        Of what another worker copies back it is known up to where; with that, a group that has read all of the source is brought as far.
        """
        both = {one.partition for one in checkpoints if self._names.get(back._names.get(one.partition.topic, "")) == one.partition.topic}
        maps = back.maps if back.settings.partition_by == "number" else {}
        elsewhere = both - maps.keys()
        positions = await committed_offsets(self._target, f"{MAP_PREFIX}{back.settings.name}", elsewhere) if elsewhere else {}
        found = []
        for one in checkpoints:
            offset = one.offset
            if one.partition in elsewhere:
                offset = min(offset, positions[one.partition].offset) if one.partition in positions else -1
            elif one.partition in both:
                offset = min(offset, maps[one.partition].first_from(one.upstream_offset))
            if offset >= 0:
                found.append(one._replace(offset=offset))
        return found

    def _may_copy_into(self, topic: str) -> bool:
        """Whether it may copy into a topic of the target, as far as that is known before its source has answered."""
        if isinstance(self._naming, PrefixNaming):
            return topic.startswith(f"{self.settings.source}{self.settings.replication_policy_separator}")
        return isinstance(self._naming, RegexNaming) or topic in self._topics

    def _copied(self) -> dict[TopicPartition, PartitionMap]:
        return {partition: known for partition, known in self.maps.items() if known.next_offset >= 0}

    async def _commit_positions(self) -> None:
        """In a step of its own: who may only read the source may not do this."""
        copied = self._copied()  # also what the source has no more
        positions = {one: CommittedOffset(copied[one].next_offset, copied[one].leader_epoch) for one in copied.keys() & self._wanted.keys()}
        if positions:
            await self._refresh_source(())
            await commit_offsets(self._source, f"{MAP_PREFIX}{self.settings.name}", positions)

    async def _look_at_ends(self) -> None:
        unread = [
            partition
            for copier in self.slots.values()
            for partition, status in copier.statuses.items()
            if not status.is_working and partition in self._wanted
        ]
        ends = await self._ends_of(unread) if unread and not self.failure else {}
        for copier in self.slots.values():
            copier.note_ends(ends)

    async def _ends_of(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Of each partition of which the source says it; one answer is about all that were asked for."""
        try:
            asked = dict.fromkeys(partitions, LATEST)
            found = await list_offsets(self._source, asked, read_committed=True, timeout_seconds=END_SECONDS)
        except ApiError as error:
            if is_healed_by_time(error):
                raise
            half = len(partitions) // 2
            return await self._ends_of(partitions[:half]) | await self._ends_of(partitions[half:]) if half else {}
        return {partition: listed.offset for partition, listed in found.items()}

    async def _follow_groups(self) -> None:
        settings = self.settings
        maps = self._copied()
        if not maps or settings.partition_by == "key":
            self._emitted.clear()  # what it was may be written by another worker meanwhile
            return
        await self._refresh_source(())
        records = []
        untranslated: dict[str, str] = {}
        groups, errors = await list_groups(self._source)
        for group in [group for group in groups if group in self._groups]:
            try:
                found = await self.translate(group)
                records += [checkpoint(one) for one in found]
                if settings.sync_group_offsets_enabled:
                    await follow_group(self._target, found, settings.name)
            except (ApiError, OSError) as error:
                why = untranslated[group] = reason_of(error)
                if self._untranslated.get(group) != why:
                    log.warning("%s: the offsets of group %s are not translated: %s", settings.name, group, why)
        self._untranslated = untranslated
        if settings.emit_checkpoints_enabled:
            await self._emit_changes(f"{settings.source}{self._dot}checkpoints{self._dot}internal", records)
        if settings.emit_offset_syncs_enabled:
            syncs = [offset_sync(one, known.next_offset, known.translate(known.next_offset) or 0) for one, known in maps.items()]
            await self._emit_changes(f"mm2-offset-syncs{self._dot}{settings.source}{self._dot}internal", syncs)
        if errors:
            raise errors[0]

    async def _follow_schemas(self) -> None:
        await self._end_copying_schemas()  # meanwhile the slot may be given up
        copier = self.slots.get(0)
        if copier is None or copier.former_modes is None or not self._names or self.failure:
            return
        assert self._schemas is not None
        self._schemas.former_modes |= copier.former_modes
        copier.former_modes = {}
        self._schemas.keep_modes = partial(self._keep_modes, asyncio.get_running_loop())
        others = self._source.metadata.topics.keys() - self._names.keys()
        self._copying_schemas = asyncio.ensure_future(self._schemas_offload(self._schemas.copy, dict(self._names), others))
        count = await asyncio.shield(self._copying_schemas)
        self.copied_schemas += count
        if count:
            log.info("%s: %d versions of schemas were registered in the target", self.settings.name, count)

    def _keep_modes(self, loop: asyncio.AbstractEventLoop, former_modes: Mapping[str, str | None]) -> None:
        """In the thread that copies schemas."""

        async def keep() -> None:
            assert self._merge is not None
            async with asyncio.timeout(ANSWER_SECONDS):
                await self._emit(self._merge.map_topic, [modes_record(former_modes)])

        asyncio.run_coroutine_threadsafe(keep(), loop).result()

    async def _end_copying_schemas(self) -> None:
        """The next worker would take the mode that a subject has while its versions are registered for its own."""
        if self._schemas is not None and self._copying_schemas is not None:
            self._schemas.is_ended = True
            await asyncio.wait([self._copying_schemas])
            self._schemas.is_ended = False

    @property
    def refused_schemas(self) -> int:
        """Versions that the target's registry did not take."""
        return len(self._schemas.refused) if self._schemas is not None and 0 in self.slots else 0

    async def _beat(self) -> None:
        if 0 in self.slots and not self.failure:
            await self._emit(HEARTBEATS, [heartbeat(self.settings.source, self.settings.target, self._clock.time_ms())])

    async def _emit_changes(self, topic: str, records: Sequence[MapRecord]) -> None:
        """Without those that stand there: a group or a partition that rests writes nothing, as in MirrorMaker 2."""
        known = self._emitted.get(topic, set()) if topic in self._target.metadata.topics else set()
        await self._emit(topic, [record for record in records if record not in known])
        self._emitted[topic] = set(records)

    async def _emit(self, topic: str, records: Sequence[MapRecord]) -> None:
        if not records:
            return
        if topic not in self._target.metadata.topics:
            await self._ensure_own_topic(topic, 1, HEARTBEATS_SETTINGS if topic == HEARTBEATS else MAP_SETTINGS)
        if self._emitter is None:
            self._emitter = BatchProducer(self._target)
        for batch in batches_of(records, self._clock.time_ms()):
            await self._emitter.send(TopicPartition(topic, 0), batch)

    # What an operator asks.

    @property
    def statuses(self) -> dict[TopicPartition, PartitionStatus]:
        """Of the partitions of the slots that are held here, and of those that cannot be copied at all."""
        found = {partition: status for copier in self.slots.values() for partition, status in copier.statuses.items()}
        for partition, reason in self.refused.items():
            if slot_of(partition, self.settings.slots) in self.slots:
                found[partition] = PartitionStatus(PartitionState.FAILED, reason)
        return found

    @property
    def counts(self) -> Counts:
        """Of all slots that were held here."""
        copiers = [self._past, *(copier.counts for copier in self.slots.values())]
        return Counts(*(sum(getattr(counts, name) for counts in copiers) for name in Counts.__slots__))

    @property
    def record_ages(self) -> HistogramSnapshot:
        """Of all slots that were held here."""
        ages = Histogram()
        for found in [self._past_ages, *(copier.record_ages for copier in self.slots.values())]:
            ages.add(found)
        return ages.snapshot()

    @property
    def gaps(self) -> list[tuple[TopicPartition, Gap]]:
        """Of the slots that are held here."""
        return [found for copier in self.slots.values() for found in copier.gaps]

    @property
    def paused(self) -> frozenset[str]:
        """Topics and partitions that an operator has paused; `*` is the link."""
        return self._members.paused

    @property
    def is_assigned(self) -> bool:
        """Whether each slot has a holder."""
        return len(self._members.holders) >= self.settings.slots or len(self.slots) == self.settings.slots

    def target_of(self, partition: TopicPartition) -> str:
        """What its topic is called in the target; empty where that is not known."""
        found = self._wanted.get(partition)
        return found.topic if found is not None else ""

    async def pause(self, name: str) -> None:
        """Pauses the link (`*`), a topic or a partition, at all workers.

        Raises:
            InvalidRequest: the link copies no such topic or partition.
        """
        if name != ALL and not any(name in (one.topic, str(one)) for one in (*self._wanted, *self.refused)):
            raise InvalidRequest(f"{self.settings.name} copies no topic or partition {name}")
        await self._membership.change_paused({name})
        await self._look_again()

    async def resume(self, name: str) -> None:
        """The reverse; of a topic with its partitions, and `*` resumes all.

        Raises:
            InvalidRequest: it is not paused.
        """
        await self._look_again()
        resumed = self.paused & {name, *(str(one) for one in self._wanted if one.topic == name)} if name != ALL else self.paused
        if name != ALL and not resumed:
            raise InvalidRequest(f"{name} is not paused; what is: {', '.join(sorted(self.paused)) or 'nothing'} (* is the link)")
        await self._membership.change_paused((), resumed)
        await self._look_again()

    async def _look_again(self) -> None:
        self._members = await self._membership.look()
        self._tell_slots()

    def repair(self, partition: TopicPartition, how: Repair) -> bool:
        """Has a partition that failed go on, behind a gap if it must, or one begin again; False if it is none of this worker's.

        Raises:
            InvalidRequest: the target cannot have it, it is paused or has not failed, or it cannot be emptied for it alone.
        """
        if partition in self.refused:
            raise InvalidRequest(f"{partition} cannot be copied: {self.refused[partition]}; the target or naming has to change")
        topic = self.target_of(partition)
        if how == "truncate":
            others = [one for one, to in self._wanted.items() if to.topic == topic and one != partition]
            shared = others if self.settings.partition_by == "key" else [one for one in others if one.partition == partition.partition]
            if shared:
                raise InvalidRequest(f"{topic} has the records of {shared[0]} too: it cannot be truncated for {partition} alone")
        if self._sizes.pop(topic, None) is not None:  # it may take larger batches by now, and says so itself until it is looked at again
            wanted = self._wanted.items()
            self._wanted = {one: replace(to, max_batch_bytes=1 << 31) if to.topic == topic else to for one, to in wanted}
            self._tell_slots()
        for copier in self.slots.values():
            if partition in copier.statuses:
                copier.repair(partition, how)
                return True
        return False


class _Nobody(Alone):
    """Between two sessions: no worker, and no slot."""

    may_be_over = True

    def __init__(self) -> None:
        super().__init__("")

    async def look(self) -> Members:
        return Members()

    async def take(self, slot: int) -> bool:
        return False

    async def change_paused(self, more: Collection[str], no_more: Collection[str] = ()) -> None:
        raise OttlaError("there is no session with ZooKeeper at the moment")


def check_installed(settings: MirrorLink) -> None:
    """Whether there is all that the link needs here.

    Raises:
        ConfigurationError: the extra `audit` is not installed.
    """
    try:
        if settings.audit_enable:
            import ottla.record.audit_records  # noqa: F401 - is it there
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"audit.enable is true, and {error.name} is not installed: pip install 'ottla[audit]'") from error


def naming_of(settings: MirrorLink) -> Naming:
    """What topics are called.

    Raises:
        ConfigurationError: `naming.pattern` is none.
    """
    if settings.naming_policy == "identity":
        return IdentityNaming()
    if settings.naming_policy == "regex":
        return RegexNaming(pattern_of("naming.pattern", settings.naming_pattern), settings.naming_replacement)
    return PrefixNaming(settings.source, settings.target, settings.replication_policy_separator)
