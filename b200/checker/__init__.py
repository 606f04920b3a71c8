"""Finds, while a kernel runs, what it does wrong with memory and barriers.

checked.py puts the checker into a machine; instrument.py tells observer.py of everything;
vector_clocks.py says who knows of what, scopes.py how far that reaches, global_order.py what flags
and counters in global memory tell, weak_order.py what an order without memory is worth.
shared_memory.py, tensor_memory.py, pairs.py, global_memory.py, tensormap_edits.py and lifetime.py
are the rules of accesses, dependent_launch.py those between launches; arrivals.py,
named_barriers.py, repeats.py, cancellations.py and register_moves.py those of counts and protocols;
products.py, descriptor_rank.py, coverage.py, idle_launch.py and quantise.py find results that are
wrong with no wrong access; naming.py says it to a person, finding.py how bad it is.

What it costs: `python -m tests.b200.checker.cost` prints CPU seconds of small launches without and
with it (2-core machine, other work beside it): gemm 0.024 -> 0.058, K split 0.038 -> 0.076, dual
0.089 -> 0.167, CTA pair 0.029 -> 0.067; that is 1.9 to 2.4 x a launch, in another run 1.8 to 3.0.
`eval.py test`, which compiles, makes inputs and computes the reference, too, took 1.34 x when a K
split still took 3.1 x. So it is on by default.

What it does not see: a read of global memory that came before the other CTA's write in this run
(another schedule has it after); which of two orders hardware will take; tcgen05 fences missing from
a kernel that has none at all, since compiled public kernels work without; anything under a
simulated clock (`timing`), which runs without the checker.
"""

from b200.checker.checked import Checked, CheckedMachine
from b200.checker.finding import Finding

__all__ = ["Checked", "CheckedMachine", "Finding"]
