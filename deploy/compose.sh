#!/bin/sh
# What `make up`, `make down`, `make logs` and `make ps` do, with docker-compose 1.29 and `docker compose` alike.
#
#   deploy/compose.sh up | down [--volumes] | logs [SERVICE …] | ps
#
#   PROFILES           of those in docker-compose.yml, with commas
#   OTTLA_UP_SECONDS   how long `up` waits until all is healthy, once the images are there (180)
set -eu
cd "$(dirname "$0")/.."
started=$(date +%s)

# Compose has from .env what the environment does not say; so has this script, of what it goes by itself.
if [ -f .env ]; then
    while IFS='=' read -r name value; do
        [ -z "$name" ] || printenv "$name" >/dev/null || export "$name=$value"
    done <<END
$(sed -nE "s/^(BASE_IMAGE|COMPOSE_PROJECT_NAME|OTTLA_UP_SECONDS|OTTLA_[A-Z_]+_IMAGE)=[\"']?([^\"'[:space:]]*).*/\1=\2/p" .env)
END
fi
export COMPOSE_PROJECT_NAME="${COMPOSE_PROJECT_NAME:-ottla}"
# docker-compose 1.29 makes another name of it, under which nothing would be looked for here; `docker compose` refuses it.
case $COMPOSE_PROJECT_NAME in
[![:lower:][:digit:]]* | *[![:lower:][:digit:]_-]*)
    echo "compose.sh: COMPOSE_PROJECT_NAME is '$COMPOSE_PROJECT_NAME'; it may have small letters, digits, - and _, and begins with a letter or a digit" >&2
    exit 2
    ;;
esac
profiles=${PROFILES:-}
# As the services of the compose file name them: what stops and shows a cluster is about all of them.
every_profile=$(sed -n 's/^ *profiles: *\[\(.*\)\] *$/\1/p' docker-compose.yml | tr -d ' ' | tr , '\n' | sort -u | paste -s -d , -)
case ,$profiles, in
*,ensemble,*)
    set -a
    # shellcheck source=deploy/ensemble.env
    . deploy/ensemble.env
    set +a
    ;;
esac

if docker compose version >/dev/null 2>&1; then
    compose() { docker compose "$@"; }
elif command -v docker-compose >/dev/null 2>&1; then
    compose() { docker-compose "$@"; }
else
    echo "compose.sh: neither 'docker compose' nor 'docker-compose' is installed" >&2
    exit 1
fi

# A registry that cannot be reached may keep silent; macOS has no `timeout`.
pull() {
    if command -v timeout >/dev/null 2>&1; then timeout 300 docker pull --quiet "$1"; else docker pull --quiet "$1"; fi
}

# One line for each container of the project: its service and what its health check says.
health() {
    ids=$(docker ps --all --quiet --filter "label=com.docker.compose.project=$COMPOSE_PROJECT_NAME" --filter "label=com.docker.compose.oneoff=False")
    [ -n "$ids" ] || return 0
    # shellcheck disable=SC2086  # ids are words
    docker inspect --format \
        '{{index .Config.Labels "com.docker.compose.service"}} {{if ne .State.Status "running"}}{{.State.Status}}{{else if .State.Health}}{{.State.Health.Status}}{{else}}healthy{{end}} {{.Id}}' \
        $ids 2>/dev/null | sort
}

# What a person would look for next: the last health check and the last lines of each that is not healthy.
say_what_is_wrong() {
    health | while read -r service state id; do
        [ "$state" != healthy ] || continue
        echo "--- $service is $state; its last health check and its last lines:" >&2
        docker inspect --format '{{if .State.Health}}{{range .State.Health.Log}}{{.Output}}{{end}}{{end}}' "$id" 2>/dev/null | tail -n 1 >&2
        docker logs --tail 15 "$id" >&2 2>&1
    done
}

wait_until_healthy() {
    limit=${OTTLA_UP_SECONDS:-180}
    deadline=$(($(date +%s) + limit))
    while :; do
        states=$(health)
        waiting=$(echo "$states" | awk '$2 != "healthy" { print $1 " (" $2 ")" }' | paste -sd ' ' -)
        [ -n "$waiting" ] || return 0
        if [ "$(date +%s)" -ge "$deadline" ]; then
            echo "$limit s after they were started these are not healthy: $waiting" >&2
            say_what_is_wrong
            return 1
        fi
        sleep 0.3
    done
}

address_of() {
    docker port "$(docker ps --quiet --filter "label=com.docker.compose.project=$COMPOSE_PROJECT_NAME" --filter "label=com.docker.compose.service=$1" | head -n 1)" "$2" 2>/dev/null | head -n 1
}

say_where() {
    row='  %-22s %-24s %s\n'
    # shellcheck disable=SC2059
    {
        printf "$row" what 'in its network' 'on this machine'
        servers=
        for number in 1 2 3; do
            address=$(address_of "broker-$number" 9094)
            servers=$servers${servers:+,}$address
            printf "$row" "broker $number" "broker-$number:9092" "$address"
        done
        for number in 1 2 3; do
            printf "$row" "  metrics and health" "broker-$number:9404" "http://$(address_of "broker-$number" 9404)/metrics"
        done
        printf "$row" 'schema registry' schema-registry:8081 "http://$(address_of schema-registry 8081)"
        printf "$row" "  metrics and health" schema-registry:9404 "http://$(address_of schema-registry 9404)/metrics"
        printf "$row" 'audit counter' audit-counter:8090 "http://$(address_of audit-counter 8090)"
        printf "$row" "  metrics and health" audit-counter:9404 "http://$(address_of audit-counter 9404)/metrics"
        mirror=$(address_of mirror-maker 9404)
        if [ -n "$mirror" ]; then
            for number in 1 2; do printf "$row" "remote broker $number" "remote-broker-$number:9092" "$(address_of "remote-broker-$number" 9094)"; done
            printf "$row" 'mirror maker' mirror-maker:9095 "$(address_of mirror-maker 9095)"
            printf "$row" "  metrics and health" mirror-maker:9404 "http://$mirror/metrics"
        fi
        master=$(address_of spark-master 7077)
        if [ -n "$master" ]; then
            printf "$row" 'Spark: master' spark-master:7077 "spark://$master"
            printf "$row" "  its page" spark-master:8080 "http://$(address_of spark-master 8080)"
            printf "$row" "  a worker's page" spark-worker:8081 "http://$(address_of spark-worker 8081)"
            printf "$row" "  a program's page" spark-driver:4040 "http://$(address_of spark-driver 4040)"
            printf "$row" "  the load: metrics" spark-driver:9404 "http://$(address_of spark-driver 9404)/metrics"
        fi
        printf "$row" ZooKeeper zookeeper:2181 "$(address_of zookeeper 2181)"
        printf "$row" Prometheus prometheus:9090 "http://$(address_of prometheus 9090)"
        grafana=$(address_of grafana 3000)
        [ -z "$grafana" ] || printf "$row" Grafana grafana:3000 "http://$grafana"
    }
    cat <<END

  ottla cluster -b $servers
  docker run --rm -i --network ${COMPOSE_PROJECT_NAME}_cluster ${OTTLA_BROKER_IMAGE:-ottla/broker:0.1.0} topics list -b broker-1:9092
  make demo | make logs | make ps | make down
END
}

# Compose itself takes any name and starts nothing for it.
refuse_unknown_profiles() {
    set -f
    IFS=,
    for profile in $profiles; do
        case ,$every_profile, in
        *,"$profile",*) ;;
        *)
            echo "compose.sh: there is no profile '$profile'; there are $every_profile, and PROFILES names some of them with commas" >&2
            exit 2
            ;;
        esac
    done
    unset IFS
    set +f
}

command=${1:-}
[ $# -eq 0 ] || shift
case $command in
up)
    refuse_unknown_profiles
    sh deploy/images.sh --missing
    case ,$profiles, in
    *,observability,*)
        grafana=${OTTLA_GRAFANA_IMAGE:-grafana/grafana:11.4.0}
        if ! docker image inspect "$grafana" >/dev/null 2>&1 && ! pull "$grafana"; then
            echo "$grafana cannot be pulled: Grafana is left out. Its dashboards are in deploy/grafana/dashboards."
            profiles=$(echo ",$profiles," | sed 's/,observability,/,/; s/^,//; s/,$//')
        fi
        ;;
    esac
    if ! COMPOSE_PROFILES=$profiles compose up --detach --no-build --remove-orphans; then
        say_what_is_wrong
        exit 1
    fi
    wait_until_healthy
    echo "All of it is healthy after $(($(date +%s) - started)) s."
    echo
    say_where
    ;;
down)
    COMPOSE_PROFILES=$every_profile compose down --remove-orphans "$@"
    ;;
logs)
    COMPOSE_PROFILES=$every_profile compose logs --follow --tail 100 "$@"
    ;;
ps)
    COMPOSE_PROFILES=$every_profile compose ps "$@"
    ;;
*)
    echo "usage: deploy/compose.sh up | down [--volumes] | logs [SERVICE …] | ps" >&2
    exit 2
    ;;
esac
