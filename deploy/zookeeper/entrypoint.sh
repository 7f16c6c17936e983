#!/bin/sh
# Writes zoo.cfg from the environment and becomes ZooKeeper. The variables are those of the public `zookeeper` image, so that
# either image can stand in the compose file:
#
#   ZOO_MY_ID ZOO_SERVERS ZOO_TICK_TIME ZOO_INIT_LIMIT ZOO_SYNC_LIMIT ZOO_MAX_CLIENT_CNXNS ZOO_4LW_COMMANDS_WHITELIST
#   ZOO_AUTOPURGE_SNAPRETAINCOUNT ZOO_AUTOPURGE_PURGEINTERVAL ZOO_DATA_DIR ZOO_DATA_LOG_DIR ZOO_CFG_EXTRA
#   ZK_SERVER_HEAP (megabytes) JVMFLAGS
#
# ZOO_SERVERS is "server.1=host:2888:3888;2181 server.2=…"; without it the server stands alone.
set -eu

data=${ZOO_DATA_DIR:-/data}
configuration=${TMPDIR:-/tmp}/zoo.cfg
servers=${ZOO_SERVERS:-}

if [ ! -w "$data" ]; then
    echo "zookeeper: user $(id -u) may not write to $data; the volume has to belong to it" >&2
    exit 1
fi

# A server that was alone has everything, and two empty ones beside it are a majority that has nothing: they would win.
if [ -n "$servers" ] && [ -d "$data/version-2" ] && [ ! -e "$data/myid" ]; then
    echo "zookeeper: $data is of a server that was alone. In an ensemble with new servers, those could be in the majority and" \
        "what is in here would be lost. To go on nevertheless, when the others have a copy: echo ${ZOO_MY_ID:-1} >$data/myid" >&2
    exit 1
fi
if [ -z "$servers" ] && [ -e "$data/myid" ]; then
    echo "zookeeper: $data is of server $(cat "$data/myid") of an ensemble, which may be behind the others; alone it would be all" \
        "there is. To go on nevertheless: rm $data/myid" >&2
    exit 1
fi

{
    echo "dataDir=$data"
    if [ -n "${ZOO_DATA_LOG_DIR:-}" ]; then echo "dataLogDir=$ZOO_DATA_LOG_DIR"; fi
    echo "tickTime=${ZOO_TICK_TIME:-2000}"
    echo "initLimit=${ZOO_INIT_LIMIT:-5}"
    echo "syncLimit=${ZOO_SYNC_LIMIT:-2}"
    echo "autopurge.snapRetainCount=${ZOO_AUTOPURGE_SNAPRETAINCOUNT:-3}"
    echo "autopurge.purgeInterval=${ZOO_AUTOPURGE_PURGEINTERVAL:-1}"
    echo "maxClientCnxns=${ZOO_MAX_CLIENT_CNXNS:-60}"
    echo "4lw.commands.whitelist=${ZOO_4LW_COMMANDS_WHITELIST:-ruok,srvr,stat,mntr,conf,isro}"
    echo "admin.enableServer=false"
    if [ -z "$servers" ]; then
        echo "clientPort=2181"
    else
        for server in $servers; do echo "$server"; done
    fi
    for line in ${ZOO_CFG_EXTRA:-}; do echo "$line"; done
} >"$configuration"

if [ -n "$servers" ]; then
    echo "${ZOO_MY_ID:-1}" >"$data/myid"
fi

jars=/usr/share/java
# With all of $jars there would be five SLF4J bindings; without the last two there are no log lines.
# shellcheck disable=SC2086  # JVMFLAGS are words
exec java -Xmx"${ZK_SERVER_HEAP:-128}m" -XX:+UseSerialGC -XX:+ExitOnOutOfMemoryError -XX:-UsePerfData ${JVMFLAGS:-} \
    -cp "/conf:$jars/zookeeper.jar:$jars/slf4j-log4j12.jar:$jars/log4j-1.2.jar" \
    org.apache.zookeeper.server.quorum.QuorumPeerMain "$configuration"
