"""Asynchronous operations: what the observer does with each that a warp issues.

The rule of an operation is found by its class (copy_operations.py, core_operations.py). It records
what the operation reads and writes, and when it is complete.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from b200.checker.barriers.signals import Signals
from b200.checker.operations import copy_operations, core_operations
from b200.checker.operations.copy_operations import CopyOperations
from b200.checker.operations.core_operations import CoreOperations
from b200.chip import operations as ops
from b200.chip.fragment import Fragment
from b200.errors import Unsupported

if TYPE_CHECKING:
    from b200.checker.observer import Observer

# Nothing is checked of a prefetch: it changes no memory and promises nothing.
PREFETCHES = (ops.TmaPrefetch, ops.TensormapPrefetch, ops.BulkPrefetch)
# Of any size, also 0.
BULK = (ops.BulkLoad, ops.BulkStore, ops.BulkReduce, ops.BulkToPeer, ops.BulkReduceToPeer)
RULES: dict[type[ops.Operation], Callable[..., ops.Action | None] | None] = {
    **copy_operations.RULES,
    **core_operations.RULES,
    **dict.fromkeys(PREFETCHES),
}


class Operations:
    """The operations of one launch, from `Machine.issue`."""

    def __init__(self, observer: Observer, signals: Signals):
        self.observer = observer
        self.copies = CopyOperations(observer, signals)
        self.core = CoreOperations(observer, signals)

    def issued(self, operation: ops.Operation, warp: Fragment, apply: ops.Action) -> ops.Action:
        """Record an operation; returns the effect to be carried out in place of `apply`."""
        kind, observer = type(operation), self.observer
        if kind not in RULES:
            raise Unsupported(f"the checker has no rule for the operation {kind.__name__}")
        if isinstance(operation, BULK) and not operation.nbytes:
            return apply  # it touches nothing
        observer.repeats.issued(warp, operation)
        rule = RULES[kind]
        if rule is None:
            return apply
        agent, ins = observer.agent(warp), observer.executed
        observer.wrote |= isinstance(
            operation, (ops.BulkStore, ops.BulkReduce, ops.TmaStore, ops.TmaReduce)
        )
        observer.unwritten.issued(agent, operation, ins)
        if observer.dependence is not None:
            observer.dependence.operation(agent, operation, ins)
        of_core = isinstance(operation, ops.TensorCoreOperation)
        return rule(self.core if of_core else self.copies, agent, operation, apply) or apply
