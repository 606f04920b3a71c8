"""Clusters that follow abreast: n at a time, as one machine (chip/abreast).

What following.py says of one cluster holds for each of the n. There are two ways to know that the
rules for clusters would find nothing new. Either their steps are taken together (follow.py): the
lanes, and the operands that are part of a step, are the same in all of them, and the step is one
that a checked cluster has taken. Or they go ways of their own (ApartAbreast), in which no two
accesses are out of order. Anything else drops the run, and the clusters follow one by one.

Once they have ended, the rules for all clusters are told what they would be told of each, cluster
after cluster (accesses.py). Stores are told all at once where nothing else has been stored at their
places, and atomics where there were only atomics. A finding drops the run, too: it is made again
where the clusters run one by one.

Why that is sound:

1.  Each of the n takes the steps of a checked cluster, so 1 of following.py holds of each. They
    cannot see one another: what one of them writes no other reads or writes, which is looked at in
    each access (chip/abreast/ledger.py). What the rules are told is what its 2 says, and in that
    order. A run that is dropped leaves nothing: what it wrote is taken back, and nobody is told of
    it before its end. So its 3 holds of it, too.
2.  Clusters that read and write one allocation (in place) follow abreast only. Steps do not have
    the places in global memory, but here rules for a cluster look at them: a warp that stores where
    another has read. So all accesses of a cluster to such an allocation must be in order, thread by
    thread (thread_order.py): then there is nothing to find among them. And nobody else, before or
    beside, may have been at the cluster's places: its values are then the same in any order, and
    there is nothing to find between clusters.
3.  Clusters that go ways of their own, as data decide which lanes store, and where, follow abreast
    only, and if all their accesses are in order. What they do beside, each warp has done in a
    checked cluster (met). Shared memory is read where it was written in the cluster.
4.  An atomic in shared memory is a step as any other: what rules look at is where it is, and not
    what it finds. One in global memory shows when a cluster starts again. So clusters with such
    atomics follow abreast only, and if nobody sees what these find: no result is used, and their
    places are accessed by such atomics alone (ledger.py, updates.py). Then there is nothing to find
    among them, but that several clusters add floats up: the first of these are checked
    (reductions.py). Later accesses are held against them.
"""
