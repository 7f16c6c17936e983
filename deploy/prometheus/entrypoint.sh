#!/bin/sh
# Becomes Prometheus. From the environment:
#
#   OTTLA_SCRAPE_INTERVAL    how often everything is scraped and the rules are looked at (15s)
#   OTTLA_PROFILES           which folders of targets/ are read beside targets/*.yml, with commas; `*` for all
#   OTTLA_METRICS_RETENTION  for how long samples are kept (15d)
#   PROMETHEUS_CONFIG        another configuration than /etc/prometheus/prometheus.yml, for instance with an Alertmanager in it
#   PROMETHEUS_DATA          where to write (/prometheus, the volume)
#
# Arguments go to Prometheus, after these. The root file system may be read-only: what is written is in the volume.
set -eu

given=${PROMETHEUS_CONFIG:-/etc/prometheus/prometheus.yml}
data=${PROMETHEUS_DATA:-/prometheus}
used=$data/prometheus.yml
interval=${OTTLA_SCRAPE_INTERVAL:-15s}

if [ ! -w "$data" ]; then
    echo "prometheus: user $(id -u) may not write to $data; the volume has to belong to it" >&2
    exit 1
fi
if ! expr "$interval" : '[1-9][0-9]*[sm]$' >/dev/null; then
    echo "prometheus: OTTLA_SCRAPE_INTERVAL is a number of seconds or minutes, like 15s; this is '$interval'" >&2
    exit 1
fi

# Of a profile's services there are targets only with the profile, as they would be down without it.
more=
set -f
for profile in $(echo "${OTTLA_PROFILES:-}" | tr , ' '); do
    case $profile in
    '*' ) more="$more, targets/*/*.yml" ;;
    .* | *[!A-Za-z0-9_.-]*)
        echo "prometheus: OTTLA_PROFILES is a list of names with commas; this is '$OTTLA_PROFILES'" >&2
        exit 1
        ;;
    *) [ ! -d "$(dirname "$given")/targets/$profile" ] || more="$more, targets/$profile/*.yml" ;;
    esac
done
set +f

# A scrape may take no longer than the interval; paths count from the file that names them, which this one is a copy of.
timeout=5s
case $interval in [1-4]s) timeout=$interval ;; esac
folder=$(dirname "$given")
sed -e "s/^\(  scrape_interval:\) .*/\1 $interval/" -e "s/^\(  evaluation_interval:\) .*/\1 $interval/" \
    -e "s/^\(  scrape_timeout:\) .*/\1 $timeout/" \
    -e "s#^\(  - \)\(rules/\)#\1$folder/\2#" -e "s#\[\(targets/\*\.yml\)\]#[\1$more]#" -e "/^ *- files:/s#\([[ ]\)\(targets/\)#\1$folder/\2#g" "$given" >"$used"

exec prometheus --config.file="$used" --storage.tsdb.path="$data/data" \
    --storage.tsdb.retention.time="${OTTLA_METRICS_RETENTION:-15d}" --web.listen-address=:9090 "$@"
