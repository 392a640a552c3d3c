"""A run with all its processes in one thread and in virtual time, under attack.

The rules are the real ones: the coordinator's and the learner's core, the mirror of the log in
Redis, the log's reader and writer, the lease's rule. Around them stand simulated services and a
network that is slow, loses, repeats and parts; processes that die, stop and come back; and a judge
that looks at all they do. One seed gives one history, to the last bit.

    world.py        one history, from its seed to its verdict
    faults.py       what goes wrong, and when
    judge.py        what must hold whatever goes wrong
    coordinator.py  the coordinator's shell without threads     learner.py   the learner's
    redis.py        the control plane                           store.py     the data plane
    clockwork.py    virtual time, processes and their threads   network.py   calls between them
    payloads.py     weights and contributions in exact arithmetic
    swarm.py        many histories on many cores                __main__.py  how people start it
"""
