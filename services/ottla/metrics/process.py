"""Metrics of the process, by the names that every service with Prometheus' client has."""

from __future__ import annotations

from typing import Final

from ottla.metrics.metric import KafkaName, Metric


def _process(name: str, kind: str, sentence: str) -> Metric:
    return Metric(name, "counter" if kind == "counter" else "gauge", sentence, (), (KafkaName(name),))


METRICS: Final = (
    _process("process_virtual_memory_bytes", "gauge", "Virtual memory of the process."),
    _process("process_resident_memory_bytes", "gauge", "Memory of the process that is in RAM."),
    _process("process_start_time_seconds", "gauge", "When the process was started, in seconds since 1970."),
    _process("process_cpu_seconds_total", "counter", "CPU time of the process, user and system."),
    _process("process_open_fds", "gauge", "Open file descriptors."),
    _process("process_max_fds", "gauge", "How many file descriptors the process may open."),
    Metric("python_gc_objects_collected_total", "counter", "Objects that Python's garbage collector has freed.", ("generation",)),
    Metric("python_gc_objects_uncollectable_total", "counter", "Objects that Python's garbage collector could not free.", ("generation",)),
    Metric("python_gc_collections_total", "counter", "Runs of Python's garbage collector.", ("generation",)),
)
