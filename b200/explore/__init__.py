"""Explores all orders of a launch: can another order of its warps hang? (`--schedule all`)

A launch is run once, in the usual order, and each cluster's steps are recorded (trace.py,
record.py, instructions.py). Steps are: inits, arrivals and waits of mbarriers, barriers of the CTA
and of the cluster, allocations of tensor memory, registers that are taken and given back, exits,
and the signals of asynchronous operations, which may come any time after their issue.
courses.py puts the steps at each place together. settle.py proves, for as many barriers as it can,
that they do the same in every order. search.py tries all orders of the steps at the other barriers,
with a stubborn set in each state. verdict.py words the result.

Where a value that another order may change decides over a step, one run does not tell. A small
launch is then carried out in all its orders, step by step (walk.py, stepping.py, snapshot.py), with
late stores, too (late_stores.py), and two accesses that nothing orders in one of these orders
are a race (races.py). A larger launch is incomplete. What follows is about the first way.

The method relies on the following, and each point says why it is sound. A look is a test_wait or
try_wait of an mbarrier.

* Other orders have the same steps: what a warp does between two steps does not depend on who came
  first. control.py follows every value that may depend on it (looks, atomics, strong reads, clocks,
  answers of cluster launch control; words that several warps write, words.py; all reads, if the
  checker found a race). A loop that polls memory may not end: such a value decides there, too. A
  loop around one wait counts as the wait. A look that only leaves out the wait after it is a step
  of its own, with both outcomes: in the recorded run it is told that the phase is not over, and the
  wait passes for it.
* Reads that the checker found ordered give the same in every order: its happens-before is of the
  same steps.
* Clusters share nothing but global memory, and have the SMs that they need. So each cluster is
  explored alone, and those with the same steps only once. Waiting for another cluster is polling
  memory: see above.
* Lanes of one instruction of a warp are one step. Lanes that parted take their steps in any order
  until they meet where the compiled code lets them.
* Commits of one thread arrive at one CTA in their order, as its tensor-core operations do (PTX ISA
  9.7.16.6.4). All other asynchronous signals come in any order.
* A warp whose turn it is goes on at some time: no order starves it.
"""

from b200.explore.record import StepRecording
from b200.explore.verdict import DEADLOCK, FREE, INCOMPLETE, Explorer, Orders

__all__ = ["DEADLOCK", "FREE", "INCOMPLETE", "Explorer", "Orders", "StepRecording"]
