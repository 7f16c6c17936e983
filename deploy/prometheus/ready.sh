#!/bin/bash
# Whether Prometheus answers that it is ready. Without curl, which is not in the image.
exec 3<>/dev/tcp/127.0.0.1/9090 || exit 1
printf 'GET /-/ready HTTP/1.0\r\nHost: localhost\r\n\r\n' >&3
read -r -t 2 status <&3 || exit 1
[[ $status == *" 200 "* ]]
