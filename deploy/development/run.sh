#!/bin/sh
# Runs a command in a container that has what this machine lacks: Python 3.11, and a client for this machine's own Docker.
#
#   deploy/development/run.sh make VENV=.development/venv integration
#
# It sees this machine's network, where the clusters' ports are, and the checkout and /tmp under their own names, as the
# containers that it starts mount files from there. What it installs goes into .development in the checkout.
set -eu
cd "$(dirname "$0")/../.."

sh deploy/images.sh --missing development
socket=$(docker context inspect --format '{{.Endpoints.docker.Host}}' 2>/dev/null | sed -n 's|^unix://||p')
socket=${socket:-/var/run/docker.sock}
mkdir -p .development/home

# What a person said about the cluster holds in there too.
options=
for name in $(env | sed -n 's/^\(OTTLA_[A-Z0-9_]*\|COMPOSE_[A-Z0-9_]*\|PROFILES\|CI\)=.*/\1/p'); do
    options="$options --env $name"
done
[ ! -t 0 ] || options="$options --interactive --tty"

# shellcheck disable=SC2086  # options are words
exec docker run --rm --init $options --network host \
    --user "$(id -u):$(stat -c %g "$socket")" --env "HOME=$PWD/.development/home" \
    --volume "$socket:/var/run/docker.sock" --volume "$PWD:$PWD" --volume /tmp:/tmp --workdir "$PWD" \
    ottla/development:1 "$@"
