"""Metrics that every service has: what runs, whether it is ready, whether its event loop keeps up, what scrapes cost."""

from __future__ import annotations

from typing import Final

from ottla.metrics.metric import KafkaName, Metric


def _idle(busy: float) -> float:
    return 1.0 - busy


def _process(name: str, kind: str, sentence: str) -> Metric:
    return Metric(name, "counter" if kind == "counter" else "gauge", sentence, (), (KafkaName(name),))


BUILD: Final = Metric("ottla_build_info", "info", "What runs here.", ("version", "python"))
READY: Final = Metric("ottla_ready", "gauge", "1 when /readyz says so, otherwise 0.")
EVENT_LOOP_BUSY: Final = Metric(
    "ottla_event_loop_busy_ratio",
    "gauge",
    "The share of the last seconds in which the event loop did something rather than wait: 1 is all that one core can do.",
    (),
    (
        KafkaName("kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent", value=_idle),
        KafkaName("kafka_network_socketserver_networkprocessoravgidle_percent", value=_idle),
    ),
)
EVENT_LOOP_LAG: Final = Metric(
    "ottla_event_loop_lag_seconds",
    "histogram",
    "How much later than asked for the event loop called back, probed every 100 ms.",
)

SCRAPE_SECONDS: Final = Metric(
    "ottla_scrape_seconds", "gauge", "Time that the scrape before this one took, with what the event loop did for others meanwhile."
)
SCRAPE_LONGEST_SLICE: Final = Metric(
    "ottla_scrape_longest_slice_seconds", "gauge", "The longest time for which the scrape before this one kept the event loop."
)

METRICS: Final = (BUILD, READY, EVENT_LOOP_BUSY, EVENT_LOOP_LAG, SCRAPE_SECONDS, SCRAPE_LONGEST_SLICE)

# Of the process, by the names that every service with Prometheus' client has.
PROCESS_METRICS: Final = (
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
