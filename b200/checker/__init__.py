"""The checker finds, while a kernel runs, what the kernel does wrong with memory and barriers.

checked.py is the checker, a watcher of a machine. The way of one instruction stands at the door:
instrument.py wraps it by its effect (b200/effects), steps.py says what makes its step,
following.py lets a cluster run unchecked while its steps are known ones, and observer.py has the
state of one launch: agents, records (accesses.py), clocks and scopes (vector_clocks.py), findings
(finding.py), and their words (words.py). The rules are rooms:

* memory/: loads, stores and atomics, shared and global memory, what nobody has written, tensormaps.
* barriers/: mbarriers and their counts, barriers of a CTA and of a cluster, fences, signals of
  asynchronous operations.
* operations/: asynchronous operations, by their class (chip/operations.py).
* tensor/: tensor memory, its allocations, loads and stores.
* launches/: what lies between launches and queues, and at the end of a cluster or launch.
* products/: wrong results without a wrong access: products, conversions, descriptors.

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

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from b200.checker.finding import Finding

if TYPE_CHECKING:
    from b200.checker.checked import Checker

__all__ = ["Checker", "Finding"]


def __getattr__(name: str) -> Any:
    """Checker, which is imported when it is asked for: it brings numpy and the whole chip along.
    Who asks for the kinds of findings, as each command does that takes `--baseline`, needs neither.
    """
    if name != "Checker":
        raise AttributeError(f"module 'b200.checker' has no attribute {name!r}")
    from b200.checker.checked import Checker

    return Checker
