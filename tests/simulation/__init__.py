"""A whole cluster in one process, under a virtual clock: the same code, and everything around it made of seeded chance.

    loop        the event loop: no selector, no thread; time jumps to the next timer
    nodes       whose code runs: a process that can be paused and killed without a word
    disk        real files, of which a crash keeps what was synced, and of the rest as much as chance says
    network     connections between nodes: delayed, in order, cut, blocked
    listening   a broker's listener without a socket, and the connections that clients and followers open to it
    control     what brokers and the controller say to each other, over that network
    zookeeper   sessions with one ZooKeeper: delays, lost connections, expiry
    clients     producers and consumers that speak the real protocol, and write down what they were told
    cluster     brokers put together over all of this
    faults      what goes wrong, and when: drawn from the seed before anything runs
    invariants  what must hold at every moment, and at the end
    run         one seed, from its first draw to the verdict

Nothing here reads the machine's clock, its chance or its network, so a seed that fails, fails again.
"""
