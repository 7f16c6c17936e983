#!/bin/bash
# Does this ZooKeeper serve clients? `ruok` is answered by a server without a majority too, `srvr` then names no mode.
exec 3<>/dev/tcp/127.0.0.1/2181 || exit 1
printf srvr >&3
while IFS= read -r -t 2 -u 3 line; do
    [[ $line == Mode:* ]] && exit 0
done
echo "no mode: this server has not found a majority"
exit 1
