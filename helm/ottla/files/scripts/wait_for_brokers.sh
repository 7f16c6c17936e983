#!/bin/bash
# preStop of ZooKeeper: stays until no client is connected, for $1 seconds at most. When everything is uninstalled at once, brokers
# need it for their own clean end; when it alone is restarted, no one is hurt by a server that stays a little longer.
for ((second = 0; second < $1; second++)); do
    exec 3<>/dev/tcp/127.0.0.1/2181 || exit 0
    printf srvr >&3
    connections=
    while IFS= read -r -t 2 -u 3 line; do
        [[ $line == Connections:* ]] && connections=${line#Connections: }
    done
    exec 3>&-
    # This one is among them. A server without a majority does not say, and has no clients.
    [[ -n $connections && $connections -gt 1 ]] || exit 0
    sleep 1
done
exit 0
