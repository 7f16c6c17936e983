#!/bin/sh
# Builds the images of the cluster, side by side, upon a base image that this machine has, can pull, or can make from Debian's
# packages.
#
#   deploy/images.sh [--missing] [broker|zookeeper|prometheus|schema-registry|audit-counter|mirror-maker|spark|development …]
#
#   none named   all but the last two
#   --missing    leave alone what is there
#   PROFILES     of the compose file, with commas: with `spark` its image belongs to them too, which takes 456 MB from the index
#   BASE_IMAGE   the base to build upon; otherwise python:3.11-slim-bookworm if it is here or can be pulled, else ottla/base:bookworm
set -eu
cd "$(dirname "$0")/.."

PUBLIC_BASE=python:3.11-slim-bookworm
LOCAL_BASE=ottla/base:bookworm
version=$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml | head -n 1)

has() {
    docker image inspect "$1" >/dev/null 2>&1
}

image_of() {
    case $1 in
    broker) echo "${OTTLA_BROKER_IMAGE:-ottla/broker:$version}" ;;
    schema-registry) echo "${OTTLA_SCHEMA_REGISTRY_IMAGE:-ottla/schema-registry:$version}" ;;
    audit-counter) echo "${OTTLA_AUDIT_COUNTER_IMAGE:-ottla/audit-counter:$version}" ;;
    mirror-maker) echo "${OTTLA_MIRROR_MAKER_IMAGE:-ottla/mirror-maker:$version}" ;;
    spark) echo "${OTTLA_SPARK_IMAGE:-ottla/spark:$version}" ;;
    zookeeper) echo "${OTTLA_ZOOKEEPER_IMAGE:-ottla/zookeeper:3.8.0}" ;;
    prometheus) echo "${OTTLA_PROMETHEUS_IMAGE:-ottla/prometheus:2.42.0}" ;;
    development) echo ottla/development:1 ;; # not of a release: it has nothing of Ottla in it
    *) echo "images.sh: there is no image '$1'; there are broker, zookeeper, prometheus, schema-registry, audit-counter, mirror-maker, spark and development" >&2; exit 2 ;;
    esac
}

# A registry that cannot be reached may keep silent; macOS has no `timeout`.
pull() {
    if command -v timeout >/dev/null 2>&1; then timeout 300 docker pull --quiet "$1"; else docker pull --quiet "$1"; fi
}

# Sets BASE_IMAGE. Asked for when the first image is to be built, as the answer may take a download.
choose_base() {
    [ -z "${BASE_IMAGE:-}" ] || return 0
    if has "$PUBLIC_BASE"; then
        BASE_IMAGE=$PUBLIC_BASE
    elif has "$LOCAL_BASE"; then
        BASE_IMAGE=$LOCAL_BASE
    elif echo "Pulling $PUBLIC_BASE" && pull "$PUBLIC_BASE"; then
        BASE_IMAGE=$PUBLIC_BASE
    else
        echo "It cannot be pulled; making $LOCAL_BASE from Debian's packages"
        sh deploy/base/build.sh "$LOCAL_BASE"
        BASE_IMAGE=$LOCAL_BASE
    fi
}

# Becomes the command that builds image $2, for name $1.
build() {
    image=$2
    case $1 in
    broker | schema-registry | audit-counter | mirror-maker | spark)
        revision=$(git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)
        set -- --file services/Dockerfile --target "$1" --build-arg "VERSION=$version" --build-arg "REVISION=$revision" .
        ;;
    *) set -- "deploy/$1" ;;
    esac
    # --force-rm: the older builder keeps the container of a step that failed, otherwise.
    exec docker build --quiet --force-rm --tag "$image" --build-arg "BASE_IMAGE=$BASE_IMAGE" "$@" >/dev/null
}

# An image is not built again by itself when the source has changed, so that `make up` is quick and does what it did yesterday.
say_if_older() {
    case $image in ottla/*) ;; *) return 0 ;; esac
    revision=$(git rev-parse --short=12 HEAD 2>/dev/null) || return 0
    built=$(docker image inspect --format '{{index .Config.Labels "org.opencontainers.image.revision"}}' "$image")
    [ "$built" = "$revision" ] || echo "$image is of revision ${built:-unknown} and the source of $revision; 'make images' builds it again"
}

only_missing=
if [ "${1:-}" = --missing ]; then
    only_missing=yes
    shift
fi
if [ $# -eq 0 ]; then
    set -- broker zookeeper prometheus schema-registry audit-counter mirror-maker
    case ,${PROFILES:-}, in *,spark,*) set -- "$@" spark ;; esac
fi
if ! docker version >/dev/null 2>&1; then
    echo "images.sh: there is no Docker daemon to be reached: is it running, and may this user use it?" >&2
    exit 1
fi

# Those that are being built, each a word: the process, a colon, the image. What the shell starts in the background does not hear Ctrl-C.
builds=
stop_builds() {
    for each in $builds; do kill "${each%%:*}" 2>/dev/null || true; done
}
trap 'stop_builds; exit 130' INT TERM

failed=0
finish_builds() {
    for each in $builds; do
        wait "${each%%:*}" || {
            echo "images.sh: ${each#*:} could not be built" >&2
            failed=1
        }
    done
    builds=
}

for name; do
    image=$(image_of "$name")
    if [ -n "$only_missing" ] && has "$image"; then
        case $name in broker | schema-registry | audit-counter | mirror-maker | spark) say_if_older ;; esac
        continue
    fi
    case $image in
    ottla/*) ;;
    *)  # Someone else's image is named, so it is theirs to build.
        if ! has "$image" && ! pull "$image"; then
            echo "images.sh: $image is not here and cannot be pulled" >&2
            failed=1
        fi
        continue
        ;;
    esac
    choose_base
    # Upon the broker's layers, which the older builder would make twice at once.
    case $name in schema-registry | audit-counter | mirror-maker | spark) finish_builds ;; esac
    echo "Building $image upon $BASE_IMAGE"
    build "$name" "$image" &
    builds="$builds $!:$image"
done

finish_builds
exit $failed
