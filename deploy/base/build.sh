#!/bin/sh
# A base image from Debian's packages, for machines that cannot pull one: Debian 12 with Python 3.11 and tini.
# Needs root and mmdebstrap (apt-get install mmdebstrap); takes half a minute. Usage: build.sh [TAG]
#
# The certificates that this machine trusts go into the image, so that pip inside finds what pip outside finds behind a
# company's proxy. For that reason an image that stands on this base should stay on this machine.
set -eu

tag=${1:-ottla/base:bookworm}
here=$(cd "$(dirname "$0")" && pwd)
certificates=${CA_BUNDLE:-${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}}

if ! command -v mmdebstrap >/dev/null 2>&1; then
    echo "build.sh: mmdebstrap is not installed: apt-get install mmdebstrap" >&2
    exit 1
fi

# A file and not a pipe: `docker import` takes a stream that was cut off for a whole one and makes an empty image of it.
archive=$(mktemp)
trap 'rm -f "$archive"' EXIT INT TERM

set -- --quiet --variant=minbase \
    --aptopt='APT::Install-Recommends "false"' \
    --dpkgopt='path-exclude=/usr/share/man/*' \
    --dpkgopt='path-exclude=/usr/share/locale/*' --dpkgopt='path-include=/usr/share/locale/locale.alias' \
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright' \
    --include=ca-certificates,python3,python3-venv,tini \
    --customize-hook="copy-in $here/docker-clean /etc/apt/apt.conf.d" \
    --customize-hook='rm -f "$1"/var/cache/apt/*.bin' \
    --customize-hook='rm -rf "$1"/var/log/apt "$1"/var/log/dpkg.log "$1"/var/log/alternatives.log' \
    --customize-hook='ln -sf python3 "$1/usr/bin/python"'
if [ -r "$certificates" ]; then
    set -- "$@" --customize-hook="upload $certificates /etc/ssl/certs/ca-certificates.crt"
fi
mmdebstrap "$@" bookworm - >"$archive"

docker import \
    --change 'ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8' \
    --change 'CMD ["python3"]' \
    "$archive" "$tag"
