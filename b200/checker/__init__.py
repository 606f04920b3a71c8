"""The checker finds, while a kernel runs, what the kernel does wrong with memory and barriers.

checked.py puts the checker into a machine, and instrument.py tells observer.py of every access and
barrier. The other files:

* Parts of the observer: mbarriers.py has what is known of mbarriers; asynchronous.py finds the rule
  of an operation (copy_operations.py, core_operations.py), and signals.py completes it on its
  mbarriers.
* Order: vector_clocks.py knows which warp is ordered after which event, scopes.py how far a scope
  reaches, global_order.py what flags and counters in global memory hand over, and weak_order.py
  what an order of execution without an order of memory is worth.
* Rules of accesses: shared_memory.py, tensor_memory.py, pairs.py, global_memory.py,
  tensormap_edits.py and lifetime.py.
* Rules between launches: dependent_launch.py.
* Rules of counts and protocols: arrivals.py, named_barriers.py, repeats.py, cancellations.py
  and register_moves.py.
* Rules for wrong results without a wrong access: products.py, descriptor_rank.py,
  descriptor_version.py, coverage.py, idle_launch.py and quantise.py.
* Text: naming.py names things in findings, and finding.py says how severe a finding is.

Cost: `python -m tests.b200.checker.cost` prints CPU seconds of small launches without and with the
checker (2-core machine, other work beside it): gemm 0.024 -> 0.058, K split 0.038 -> 0.076, dual
0.089 -> 0.167, CTA pair 0.029 -> 0.067; that is 1.9 to 2.4 x a launch, in another run 1.8 to 3.0.
`eval.py test`, which also compiles, makes inputs and computes the reference, took 1.34 x when a K
split still took 3.1 x. So the checker is on by default.

The checker does not see: a read of global memory that came before the other CTA's write in this run
(another schedule has it after); which of two orders hardware will take; tcgen05 fences missing from
a kernel that has none at all, since compiled public kernels work without; anything under a
simulated clock (`timing`), which runs without the checker.
"""

from b200.checker.checked import Checker
from b200.checker.finding import Finding

__all__ = ["Checker", "Finding"]
