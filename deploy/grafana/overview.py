"""The first look: is it well, how much goes through, who is slow."""

from __future__ import annotations

from typing import Final

from deploy.grafana.board import Board, Panel

OVERVIEW: Final = Board(
    "overview",
    "Ottla / Overview",
    "Is the cluster well, how much goes through it, and where is it slow.",
    (
        (
            "Is it well?",
            (
                Panel(
                    "Brokers that answer",
                    "short",
                    "Brokers that Prometheus reaches, of those that it is to scrape.",
                    (('sum(up{job="$job", component="broker"})', "answer"), ('count(up{job="$job", component="broker"})', "listed")),
                    kind="number",
                    width=4,
                ),
                Panel(
                    "Controllers",
                    "short",
                    "Exactly one broker must say that it is the controller. Alert: AbnormalControllerState.",
                    (('sum(ottla_controller_active{job="$job"})', "controllers"),),
                    kind="number",
                    width=4,
                    good_from=1,
                ),
                Panel(
                    "Offline partitions",
                    "short",
                    "Partitions without a leader: no one can read or write them. Alert: OfflinePartitions.",
                    (('max(ottla_controller_offline_partitions{job="$job"})', "offline"),),
                    kind="number",
                    width=4,
                    bad_from=1,
                ),
                Panel(
                    "Under min.insync.replicas",
                    "short",
                    "Partitions to which writes with acks=all are refused. Alert: UnderMinIsrPartitions.",
                    (('sum(ottla_replica_under_min_isr_partitions{job="$job"})', "under"),),
                    kind="number",
                    width=4,
                    bad_from=1,
                ),
                Panel(
                    "Under-replicated partitions",
                    "short",
                    "Partitions with fewer replicas in sync than they were given; a restart makes some. Alert: UnderReplicatedPartitions.",
                    (('sum(ottla_replica_under_replicated_partitions{job="$job"})', "under-replicated"),),
                    kind="number",
                    width=4,
                    bad_from=1,
                ),
                Panel(
                    "Alerts",
                    "short",
                    "Alerts about Ottla that fire now, of every cluster that this Prometheus watches.",
                    (('count(ALERTS{alertstate="firing", service="ottla"}) or vector(0)', "firing"),),
                    kind="number",
                    width=4,
                    bad_from=1,
                ),
                Panel(
                    "Topics",
                    "short",
                    "Topics in the cluster, internal ones included.",
                    (('max(ottla_controller_topics{job="$job"})', "topics"),),
                    kind="number",
                    width=4,
                ),
                Panel(
                    "Partitions",
                    "short",
                    "Partitions in the cluster, each counted once however many replicas it has.",
                    (('max(ottla_controller_partitions{job="$job"})', "partitions"),),
                    kind="number",
                    width=4,
                ),
                Panel(
                    "Groups with members",
                    "short",
                    "Consumer groups that someone reads for.",
                    (('sum(ottla_groups{job="$job", state!~"Empty|Dead"})', "groups"),),
                    kind="number",
                    width=4,
                ),
                Panel(
                    "Open connections",
                    "short",
                    "Connections of clients and of followers to all brokers.",
                    (('sum(ottla_connections{job="$job"})', "connections"),),
                    kind="number",
                    width=4,
                ),
                Panel(
                    "Least free space",
                    "percentunit",
                    "What is free on the fullest disk of the cluster. Alerts: RunningOutOfSpace, DiskFullIn4h.",
                    (('min(ottla_log_directory_free_bytes{job="$job"} / ottla_log_directory_total_bytes{job="$job"})', "free"),),
                    kind="number",
                    width=4,
                    good_from=0.15,
                ),
                Panel(
                    "Last start of a broker",
                    "s",
                    "How long ago a broker last started.",
                    (('time() - max(ottla_broker_start_time_seconds{job="$job"})', "ago"),),
                    kind="number",
                    width=4,
                ),
            ),
        ),
        (
            "How much",
            (
                Panel(
                    "Messages in",
                    "cps",
                    "Records written by producers, by topic.",
                    (('sum by (topic) (rate(ottla_broker_messages_received_total{job="$job"}[$__rate_interval]))', "{{topic}}"),),
                    stacked=True,
                ),
                Panel(
                    "Bytes in",
                    "Bps",
                    "Record batches written by producers, as they came (compressed where they were), by topic.",
                    (('sum by (topic) (rate(ottla_broker_received_bytes_total{job="$job"}[$__rate_interval]))', "{{topic}}"),),
                    stacked=True,
                ),
                Panel(
                    "Bytes out",
                    "Bps",
                    "Record batches given to consumers, by topic, and to followers. More out than in: many groups read.",
                    (
                        ('sum by (topic) (rate(ottla_broker_sent_bytes_total{job="$job"}[$__rate_interval]))', "{{topic}}"),
                        ('sum(rate(ottla_replica_sent_bytes_total{job="$job"}[$__rate_interval]))', "to followers"),
                    ),
                    stacked=True,
                ),
            ),
        ),
        (
            "How fast",
            (
                Panel(
                    "99 of 100 requests within",
                    "s",
                    "Whole time of produce and fetch requests in the broker. A fetch waits for records on purpose (fetch.wait.max.ms).",
                    (('namespace_job_api:ottla_request_seconds:p99_rate5m{job="$job", api=~"Produce|Fetch"}', "{{api}}"),),
                ),
                Panel(
                    "Busy event loops",
                    "percentunit",
                    "The share of one core that each broker's loop is at work. Near 1, requests queue. Alert: EventLoopBusy.",
                    (('ottla_event_loop_busy_ratio{job="$job"}', "{{instance}}"),),
                    highest=1,
                ),
                Panel(
                    "Errors in answers",
                    "cps",
                    "By error. A leader that moves makes some NOT_LEADER_OR_FOLLOWER, which clients heal themselves.",
                    (('sum by (error) (rate(ottla_broker_requests_failed_total{job="$job"}[$__rate_interval]))', "{{error}}"),),
                    empty_because="nothing fails",
                ),
                Panel(
                    "Oldest unread message",
                    "s",
                    "How far behind the ten slowest groups are, in seconds. Alerts: GroupLagHigh, GroupStuck.",
                    (('topk(10, namespace_job_group_topic:ottla_group_lag_seconds:max{job="$job"})', "{{group}}: {{topic}}"),),
                    empty_because="no group has committed anything",
                ),
                Panel(
                    "Followers behind",
                    "short",
                    "Records by which the follower that is furthest behind is behind, by broker.",
                    (('max by (instance) (ottla_replica_fetcher_lag_messages{job="$job"})', "{{instance}}"),),
                ),
                Panel(
                    "Alerts over time",
                    "short",
                    "Alerts that were firing.",
                    (('count by (alertname) (ALERTS{alertstate="firing", service="ottla"})', "{{alertname}}"),),
                    stacked=True,
                    empty_because="no alert fires",
                ),
            ),
        ),
    ),
)
