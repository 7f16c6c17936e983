"""Metrics of a schema registry: its answers, its topic, its lead."""

from __future__ import annotations

from typing import Final

from ottla.metrics.metric import Metric

REQUESTS: Final = Metric(
    "ottla_registry_requests_total", "counter", "Requests that were answered, but for those from the cache.", ("route", "status")
)
CACHED: Final = Metric("ottla_registry_cached_answers_total", "counter", "Requests for an id that were answered from the cache.")
REQUEST_SECONDS: Final = Metric(
    "ottla_registry_request_seconds", "histogram", "Time until a request was answered, of those that had to wait for something."
)
CONNECTIONS: Final = Metric("ottla_registry_connections", "gauge", "Open connections of the API.")
SUBJECTS: Final = Metric("ottla_registry_subjects", "gauge", "Subjects, softly deleted ones too.")
SCHEMAS: Final = Metric("ottla_registry_schemas", "gauge", "Ids that stand for a schema.", ("type",))
NEXT_OFFSET: Final = Metric("ottla_registry_next_offset", "gauge", "The offset of the record that has not been replayed yet.")
EPOCH: Final = Metric("ottla_registry_epoch", "gauge", "The highest leader's epoch of a record.")
IS_LEADER: Final = Metric("ottla_registry_is_leader", "gauge", "1 on the node that writes, otherwise 0.")
LEADER_KNOWN: Final = Metric("ottla_registry_leader_known", "gauge", "1 while the node knows who leads, otherwise 0.")
TERMS: Final = Metric("ottla_registry_terms_total", "counter", "How often the node began to lead.")
CONFLICTS: Final = Metric(
    "ottla_registry_conflicts_total", "counter", "Records that gave an id to a second schema; `ottla schema doctor` shows them."
)
DROPPED: Final = Metric("ottla_registry_dropped_records_total", "counter", "Records of former leaders that were dropped.")
UNREADABLE: Final = Metric("ottla_registry_unreadable_records_total", "counter", "Records of the topic that are none of a registry's.")
WRITTEN: Final = Metric("ottla_registry_written_records_total", "counter", "Records that the node wrote.")
BATCHES: Final = Metric("ottla_registry_written_batches_total", "counter", "Batches that the node wrote.")
WRITE_SECONDS: Final = Metric("ottla_registry_write_seconds", "histogram", "Time until a batch was written and replayed.")
FORWARDED: Final = Metric("ottla_registry_forwarded_requests_total", "counter", "Requests that were sent to the leader.")
FORWARD_FAILURES: Final = Metric("ottla_registry_forward_failures_total", "counter", "Requests that the leader did not answer.")
FAULT: Final = Metric("ottla_registry_fault", "gauge", "1 once the topic was deleted, made again or cut: nothing is written any more.")
SNAPSHOT_OFFSET: Final = Metric("ottla_registry_snapshot_offset", "gauge", "Up to which offset the snapshot on disk goes; 0 without one.")

METRICS: Final = (
    REQUESTS,
    CACHED,
    REQUEST_SECONDS,
    CONNECTIONS,
    SUBJECTS,
    SCHEMAS,
    NEXT_OFFSET,
    EPOCH,
    IS_LEADER,
    LEADER_KNOWN,
    TERMS,
    CONFLICTS,
    DROPPED,
    UNREADABLE,
    WRITTEN,
    BATCHES,
    WRITE_SECONDS,
    FORWARDED,
    FORWARD_FAILURES,
    FAULT,
    SNAPSHOT_OFFSET,
)
