"""Audit records for tests of the counter, as tiers would write them."""

from __future__ import annotations

from typing import Any, Final

from tests.unit.audit_counter.test_verdicts import headers, tally

from ottla.audit_counter.store import Read
from ottla.record.audit_records import NO_PARTITION, AuditRecord, Tally

NOW: Final = 1_700_000_040_000
START: Final = NOW - NOW % 60_000
MINUTE: Final = 60_000


def record(session: str, sequence: int, tier: str, windows: dict[int, Tally], **changes: Any) -> AuditRecord:
    facts: dict[str, Any] = {"topic": "clicks", "partition": 0, "window_ms": MINUTE, "watermark_ms": START, "host": session, **changes}
    return AuditRecord(session, sequence, tier, windows=windows, **facts)


def produced(sequence: int, offsets: list[int], **changes: Any) -> AuditRecord:
    """What an audited producer says of messages that were acknowledged."""
    acknowledged = tally(offsets)
    acknowledged.attempted = acknowledged.acknowledged = len(offsets)
    return record("p", sequence, "producer", {START: acknowledged}, **changes)


def appended(sequence: int, offsets: list[int], **changes: Any) -> AuditRecord:
    """What a broker says of a range of offsets."""
    bounds = {"first_offset": offsets[0], "next_offset": offsets[-1] + 1}
    return record("b", sequence, "broker", {START: headers(offsets)}, **{**bounds, **changes})


def consumed(sequence: int, offsets: list[int], next_offset: int, **changes: Any) -> AuditRecord:
    """What an audited consumer says."""
    return record("c", sequence, "consumer:g", {START: tally(offsets)}, first_offset=0, next_offset=next_offset, **changes)


def read(*records: AuditRecord | None, partition: int = 0, first: int = 0) -> list[Read]:
    return [Read(partition, first + index, one, "" if one else "no record") for index, one in enumerate(records)]


__all__ = ["NOW", "NO_PARTITION", "START", "appended", "consumed", "produced", "read", "record"]
