"""The kinds of steps of a cluster (trace.py)."""

# Kinds of steps. Those in WAITS may have to wait for others; all others can be taken at once.
INIT, INVAL = "init", "inval"  # steps at an mbarrier
ARRIVE, EXPECT, COMPLETE = "arrive", "expect_tx", "complete_tx"  # on an mbarrier
EXPECT_ARRIVAL = "one arrival more"  # cp.async.mbarrier.arrive without .noinc
WAIT = "wait"  # for a parity of an mbarrier
LOOK = "look"  # at a parity of an mbarrier: if it is over, a WAIT that is `of` it passes
MEET = "meet"  # arrival at a barrier of the CTA or of the cluster
PASS = "pass"  # the end of the wait there
EXIT = "exit"  # of lanes, which the barrier of the cluster counts; of a warp, a barrier of the CTA
# of tensor memory: of a CTA; of a pair, by its even CTA for both; the odd CTA's, which finds that
ALLOC, ALLOC_PAIR, JOIN_PAIR = "alloc", "alloc for the pair", "alloc with the pair"
DEALLOC, RELINQUISH = "dealloc", "relinquish"
GIVE, TAKE = "give", "take"  # registers of the CTA
WAITS = (WAIT, PASS, ALLOC, ALLOC_PAIR, JOIN_PAIR, TAKE)
