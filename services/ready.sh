#!/bin/bash
# Is the service in this container ready? Asked by Docker every few seconds, so by bash alone: starting a Python to ask costs
# several per cent of a core. The port is that of `http.listener`; usage: ottla-ready [/healthz]
path=${1:-/readyz}
listener=${OTTLA_SETTING_HTTP_LISTENER:-:9404}

exec 3<>"/dev/tcp/127.0.0.1/${listener##*:}" || exit 1
printf 'GET %s HTTP/1.0\r\nHost: localhost\r\n\r\n' "$path" >&3
IFS= read -r -t 2 -u 3 status || { echo "no answer within 2 s"; exit 1; }
[[ $status == HTTP/*" 200 "* ]] && exit 0
# `docker inspect` keeps what is printed: which condition does not hold.
while IFS= read -r -t 1 -u 3 line; do [[ $line == $'\r' ]] && break; done
IFS= read -r -t 1 -d '' -u 3 body
printf '%s: %s\n' "${status%$'\r'}" "$body"
exit 1
