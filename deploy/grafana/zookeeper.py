"""ZooKeeper as the brokers see it. What it says of itself (`mntr`) is not exported by us."""

from __future__ import annotations

from typing import Final

from deploy.grafana.board import Board, Panel

_HERE: Final = 'job="$job", instance=~"$broker"'
_STATES: Final = ((0, "closed", "red"), (1, "connecting", "yellow"), (2, "connected", "green"), (3, "expired", "red"))


def _quantile(share: float) -> str:
    return f"histogram_quantile({share}, sum by (instance, le) (rate(ottla_zookeeper_request_seconds_bucket{{{_HERE}}}[$__rate_interval])))"


ZOOKEEPER: Final = Board(
    "zookeeper",
    "Ottla / ZooKeeper",
    "ZooKeeper as the brokers see it: sessions, and how fast it answers.",
    (
        (
            "Sessions",
            (
                Panel(
                    "Session",
                    "short",
                    "The state of each broker's session. Alert: ZooKeeperSessionLost.",
                    ((f"ottla_zookeeper_session_state{{{_HERE}}}", "{{instance}}"),),
                    kind="number",
                    names=_STATES,
                ),
                Panel(
                    "Registered brokers",
                    "short",
                    "Brokers that the controller sees in /brokers/ids.",
                    (('max(ottla_controller_alive_brokers{job="$job"})', "registered"),),
                    kind="number",
                ),
                Panel(
                    "Controller epoch",
                    "short",
                    "How often a controller has been elected since the cluster was made.",
                    (('max(ottla_controller_epoch{job="$job"})', "epoch"),),
                    kind="number",
                ),
                Panel(
                    "Session over time",
                    "short",
                    "When each broker was without a session.",
                    ((f"ottla_zookeeper_session_state{{{_HERE}}}", "{{instance}}"),),
                    names=_STATES,
                    highest=3,
                ),
                Panel(
                    "Disconnections in 5 minutes",
                    "short",
                    "Connections that broke; the session continues where the next is there in time. Alert: ZooKeeperSessionFlapping.",
                    ((f"increase(ottla_zookeeper_disconnections_total{{{_HERE}}}[5m])", "{{instance}}"),),
                ),
                Panel(
                    "Expirations in 5 minutes",
                    "short",
                    "Sessions that ended: the broker was taken for dead, its partitions were led by others, and it registered again.",
                    ((f"increase(ottla_zookeeper_session_expirations_total{{{_HERE}}}[5m])", "{{instance}}"),),
                ),
            ),
        ),
        (
            "Requests",
            (
                Panel(
                    "Half of the requests within",
                    "s",
                    "Time until ZooKeeper had answered, by broker. Writes wait for its disk.",
                    ((_quantile(0.5), "{{instance}}"),),
                    empty_because="ZooKeeper is asked only when something changes",
                ),
                Panel(
                    "99 of 100 requests within",
                    "s",
                    "Above a second, elections drag. Alert: ZooKeeperSlow.",
                    ((_quantile(0.99), "{{instance}}"),),
                    empty_because="ZooKeeper is asked only when something changes",
                ),
                Panel(
                    "Requests",
                    "reqps",
                    "Requests to ZooKeeper; the controller makes most of them, and few when nothing changes.",
                    ((f"rate(ottla_zookeeper_request_seconds_count{{{_HERE}}}[$__rate_interval])", "{{instance}}"),),
                ),
            ),
        ),
    ),
)
