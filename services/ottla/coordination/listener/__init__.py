"""ZooKeeper's own protocol in front of the embedded twin, so that consumers of other processes can meet in a laptop's broker.

`jute` reads and writes the frames, `server` holds the connections and the sessions behind them. ACLs are taken and not kept: anyone who may
connect may do everything, unless the listener asks for a digest. No quotas, containers, TTLs or four-letter words.

Nothing here decides what a znode is: every request goes through a session of the twin, as a broker's own do.
"""
