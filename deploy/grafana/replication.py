"""Copies and who decides about them."""

from __future__ import annotations

from typing import Final

from deploy.grafana.board import Board, Panel

_HERE: Final = 'job="$job", instance=~"$broker"'


def _by_broker(metric: str) -> tuple[tuple[str, str], ...]:
    return ((f"{metric}{{{_HERE}}}", "{{instance}}"),)


def _rate_by_broker(metric: str) -> tuple[tuple[str, str], ...]:
    return ((f"rate({metric}{{{_HERE}}}[$__rate_interval])", "{{instance}}"),)


_REPLICAS: Final = (
    Panel(
        "Under-replicated partitions",
        "short",
        "By the broker that leads them. A restart makes some for as long as it takes. Alert: UnderReplicatedPartitions.",
        _by_broker("ottla_replica_under_replicated_partitions"),
    ),
    Panel(
        "At and under min.insync.replicas",
        "short",
        "at: one replica less and acks=all is refused. under: it is. Alert: UnderMinIsrPartitions.",
        (
            (f"sum(ottla_replica_at_min_isr_partitions{{{_HERE}}})", "at"),
            (f"sum(ottla_replica_under_min_isr_partitions{{{_HERE}}})", "under"),
        ),
    ),
    Panel(
        "Offline replicas",
        "short",
        "Replicas on disks that failed. Alert: OfflineLogDirectory.",
        _by_broker("ottla_replica_offline"),
    ),
    Panel(
        "ISR shrinks and expands",
        "cps",
        "Replicas that leave the ISR and come back. Both all the time: a follower that just does not keep up. Alert: IsrFlapping.",
        (
            (f"sum by (instance) (rate(ottla_replica_isr_shrinks_total{{{_HERE}}}[$__rate_interval]))", "shrinks {{instance}}"),
            (f"sum by (instance) (rate(ottla_replica_isr_expands_total{{{_HERE}}}[$__rate_interval]))", "expands {{instance}}"),
        ),
    ),
    Panel(
        "Followers behind",
        "short",
        "Records by which a follower is behind in its worst partition, by the leader that it follows.",
        ((f"ottla_replica_fetcher_lag_messages{{{_HERE}}}", "{{instance}} behind {{leader}}"),),
    ),
    Panel(
        "Replicated bytes",
        "Bps",
        "Bytes that followers fetched, and that leaders gave: the two are the same, one scrape later.",
        (
            (f"sum(rate(ottla_replica_received_bytes_total{{{_HERE}}}[$__rate_interval]))", "fetched"),
            (f"sum(rate(ottla_replica_sent_bytes_total{{{_HERE}}}[$__rate_interval]))", "given"),
        ),
    ),
    Panel(
        "Fetches that failed",
        "cps",
        "Followers that could not use a leader's answer as a whole; some while a leader restarts.",
        _rate_by_broker("ottla_replica_fetcher_failures_total"),
    ),
    Panel(
        "ISR changes that were refused",
        "cps",
        "By the controller, for an epoch that is over; some while leaders move.",
        _rate_by_broker("ottla_replica_failed_isr_updates_total"),
    ),
    Panel(
        "Partitions being moved",
        "short",
        "Partitions whose replicas are on their way to other brokers (`ottla reassign list`).",
        _by_broker("ottla_replica_reassigning_partitions"),
    ),
    Panel(
        "Replicas and leaders",
        "short",
        "How evenly the work is spread. Leaders do most of it.",
        (
            (f"ottla_broker_partitions{{{_HERE}}}", "replicas on {{instance}}"),
            (f"ottla_broker_leaders{{{_HERE}}}", "leaders on {{instance}}"),
        ),
    ),
)

_CONTROLLER: Final = (
    Panel(
        "Controller",
        "short",
        "Who says that it is the controller; always exactly one. Alert: AbnormalControllerState.",
        (('ottla_controller_active{job="$job"}', "{{instance}}"),),
        stacked=True,
    ),
    Panel(
        "Controller epoch",
        "short",
        "One more with each controller. Steps without restarts: sessions with ZooKeeper are lost.",
        (('max(ottla_controller_epoch{job="$job"})', "epoch"),),
    ),
    Panel(
        "Registered brokers",
        "short",
        "Brokers that the controller knows to be alive. Alert: ScrapeProblem where Prometheus sees fewer.",
        (('max(ottla_controller_alive_brokers{job="$job"})', "alive"), ('sum(up{job="$job", component="broker"})', "scraped")),
    ),
    Panel(
        "Offline partitions",
        "short",
        "Partitions without a leader. Alert: OfflinePartitions.",
        (('max(ottla_controller_offline_partitions{job="$job"})', "offline"),),
    ),
    Panel(
        "Not led by the preferred leader",
        "percentunit",
        "After restarts some, given back every few minutes. Alert: PreferredLeaderImbalance.",
        (
            (
                'max(ottla_controller_preferred_leader_imbalance{job="$job"}) / max(ottla_controller_partitions{job="$job"})',
                "of the partitions",
            ),
        ),
        highest=1,
        empty_because="there is no partition yet",
    ),
    Panel(
        "Leaders chosen",
        "cps",
        "Elections, and unclean ones, which lose records. Alert: UncleanLeaderElection.",
        (
            ('sum(rate(ottla_controller_elections_total{job="$job"}[$__rate_interval]))', "elections"),
            ('sum(rate(ottla_controller_unclean_elections_total{job="$job"}[$__rate_interval]))', "unclean"),
        ),
    ),
    Panel(
        "Elections, 99 of 100 within",
        "s",
        "From the news that leaders are needed until the chosen ones are written.",
        (
            (
                'histogram_quantile(0.99, sum by (le) (rate(ottla_controller_election_seconds_bucket{job="$job"}[$__rate_interval])))',
                "p99",
            ),
        ),
        empty_because="no one had to be elected",
    ),
    Panel(
        "Waiting for the controller",
        "short",
        "Events in its queue. A broker that fails puts many there at once; they are gone in seconds.",
        (('max(ottla_controller_event_queue_length{job="$job"})', "waiting"),),
    ),
    Panel(
        "What the controller does",
        "cps",
        "Events that it has processed, by kind.",
        (('sum by (event) (rate(ottla_controller_events_total{job="$job"}[$__rate_interval]))', "{{event}}"),),
        stacked=True,
    ),
)

REPLICATION: Final = Board(
    "replication",
    "Ottla / Replication and controller",
    "Are all replicas where they should be, and who decides.",
    (("Replicas", _REPLICAS), ("The controller", _CONTROLLER)),
)
