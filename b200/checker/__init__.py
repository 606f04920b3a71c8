"""Finds, while a kernel runs, what it does wrong with memory and barriers.

checked.py puts the checker into a machine; instrument.py tells observer.py of everything; clocks.py
says who knows of what. shared_memory.py, tensor_memory.py, global_memory.py, tensormap_edits.py and
lifetime.py are the rules of accesses; arrivals.py, named_barriers.py and register_moves.py those of
counts; products.py, coverage.py and quantise.py find results that are wrong with no wrong access;
naming.py says it to a person, finding.py how bad it is.

What it costs: CPU seconds of `eval.py test`, ten official cases each, --no-check -> --check, with
compilation, inputs and reference (2-core machine, other work beside it): gemv 15.3 -> 17.1, gemm
51.7 -> 75.0, dual 101.0 -> 152.5, group 15.9 -> 20.2; together 1.44 x. That is below 2 x, so it is
on by default. A launch alone takes 1.1 to 2.4 times as long, most where short sums make the
epilogue dominate.

What it does not see: a read of global memory that came before the other CTA's write in this run
(another schedule has it after); which of two orders hardware will take; tcgen05 fences missing from
a kernel that has none at all, since compiled public kernels work without; anything under a
simulated clock (`timing`), which runs without the checker.
"""

from b200.checker.checked import Checked, CheckedMachine
from b200.checker.finding import Finding

__all__ = ["Checked", "CheckedMachine", "Finding"]
