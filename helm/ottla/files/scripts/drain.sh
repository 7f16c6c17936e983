#!/bin/sh
# preStop: before the broker is asked to stop, others take over what it leads, while all its connections still stand. Clients
# then find the new leaders with this one still there to tell them. $1 is how many seconds that may take.
#
# Kubernetes shows nothing of what a hook prints, so it goes where the broker's own lines go.
exec >/proc/1/fd/1 2>&1
properties=/run/ottla/server.properties
own() { sed -n "s/^$1=//p" "$properties"; }

set -- "$1" broker drain "$(own broker.id)" --config "$properties" --control "$(own control.advertised.listener)"
# With TLS a client needs more than an address; then the broker's own word that it hands over has to do.
case "$(own listener.security.protocol.map)" in
    # Until clients see it. What no one else can lead they never will: 5 s are enough for what someone can.
    *INTERNAL:PLAINTEXT*) set -- "$@" --bootstrap-server 127.0.0.1:9092 --timeout 5 ;;
esac
seconds=$1
shift
timeout "$seconds" ottla "$@"
# What no one else can lead, or a broker that is stuck already, is no reason to hold up the pod.
exit 0
