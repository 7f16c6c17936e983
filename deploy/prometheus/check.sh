#!/bin/sh
# Checks the configuration and the rules and runs the rules' tests, with the promtool that there is: $PROMTOOL, the one in PATH,
# the one in .tools, or the one in our image. `make rules` calls this.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
unpacked=$root/.tools/prometheus/usr/bin/promtool
image=${PROMETHEUS_IMAGE:-ottla/prometheus:2.42.0}

if [ -z "${PROMTOOL:-}" ]; then
    PROMTOOL=$(command -v promtool || true)
    if [ -z "$PROMTOOL" ] && [ -x "$unpacked" ]; then PROMTOOL=$unpacked; fi
fi
if [ -n "$PROMTOOL" ]; then
    PROMTOOL=$(realpath "$(command -v "$PROMTOOL")")
    promtool() { "$PROMTOOL" "$@"; }
elif docker image inspect "$image" >/dev/null 2>&1; then
    promtool() { docker run --rm --network none --volume "$here:/check:ro" --workdir /check --entrypoint promtool "$image" "$@"; }
else
    cat >&2 <<EOF
promtool is missing. It comes with Prometheus (2.42 or later), and on Debian and Ubuntu without installing anything:

    mkdir -p .tools && cd .tools && apt-get download prometheus && dpkg-deb -x prometheus_*.deb prometheus

or in our image: docker build -t $image deploy/prometheus
EOF
    exit 1
fi

cd "$here"
promtool check config prometheus.yml
promtool test rules tests/*.yml
