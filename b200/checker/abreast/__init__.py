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
"""
