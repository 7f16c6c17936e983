"""A whole cluster in one process, under a virtual clock: the same code, and everything around it made of seeded chance.

    loop           the event loop: no selector, no thread; time jumps to the next timer
    nodes          whose code runs: a process that can be paused and killed without a word
    machine, disk  clocks that are wrong; real files, of which a crash keeps what was synced, and of the rest what chance says
    network        connections between nodes: delayed, in order, cut, blocked
    listening      a broker's listener without a socket, and the connections that clients and followers open to it
    control        what brokers and the controller say to each other, over that network
    zookeeper      sessions with one ZooKeeper: delays, lost connections, expiry
    cluster        brokers put together over all of this, their lives and their deaths
    wire           real frames; producing, consuming, administering: clients that write down what they were told
    faults         what goes wrong, and when: drawn from the seed before anything runs; performing does it
    invariants     what must hold at every moment, and at the end
    story, run     one seed, from its first draw to the verdict; trace has all that happened
    sabotage       brokers that are broken on purpose, so that the simulation itself is judged
    seeds          what it has found

Nothing here reads the machine's clock, its chance or its network, so a seed that fails, fails again.
"""
