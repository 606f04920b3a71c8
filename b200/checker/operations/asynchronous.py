"""Asynchronous operations: what the observer does with each that a warp issues.

The rule of an operation is found by its class (copy_operations.py, core_operations.py). It records
what the operation reads and writes, and when it is complete.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from b200.checker.barriers.signals import Signals
from b200.checker.launches.dependent_launch import DependentLaunch
from b200.checker.operations import copy_operations, core_operations
from b200.checker.operations.copy_operations import CopyOperations
from b200.checker.operations.core_operations import CoreOperations
from b200.checker.vector_clocks import Agent
from b200.chip.fragment import Fragment
from b200.chip.operations import (
    BulkLoad,
    BulkPrefetch,
    BulkReduce,
    BulkStore,
    CpAsync,
    Effect,
    Operation,
    TensorCoreOperation,
    TensormapPrefetch,
    TmaLoad,
    TmaPrefetch,
    TmaReduce,
    TmaStore,
)
from b200.errors import Unsupported
from b200.program.module import Instr

if TYPE_CHECKING:
    from b200.checker.observer import Observer

# Nothing is checked of a prefetch: it changes no memory and promises nothing.
PREFETCHES = (TmaPrefetch, TensormapPrefetch, BulkPrefetch)
RULES: dict[type[Operation], Callable[..., Effect | None] | None] = {
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

    def issued(self, operation: Operation, warp: Fragment, apply: Effect) -> Effect:
        """Record an operation; returns the effect to be carried out in place of `apply`."""
        kind, observer = type(operation), self.observer
        if kind not in RULES:
            raise Unsupported(f"the checker has no rule for the operation {kind.__name__}")
        observer.repeats.issued(warp, operation)
        rule, ins = RULES[kind], observer.ins
        if rule is None:
            return apply
        assert ins is not None  # whatever issues an operation is observed
        agent = observer.agent(warp)
        observer.wrote |= isinstance(operation, (BulkStore, BulkReduce, TmaStore, TmaReduce))
        observer.unwritten.issued(agent, operation, ins)
        if observer.dependence is not None:
            _beside_other_launches(observer.dependence, agent, operation, ins)
        of_core = isinstance(operation, TensorCoreOperation)
        return rule(self.core if of_core else self.copies, agent, operation, apply) or apply


def _beside_other_launches(rule: DependentLaunch, agent: Agent, operation: Operation, ins: Instr):
    """Check the global memory that an operation reads and writes against earlier launches that may
    still run.
    """
    if isinstance(operation, (BulkLoad, CpAsync)) and operation.nbytes:
        rule.span(agent, operation.source, operation.nbytes, False, ins)
    elif isinstance(operation, (BulkStore, BulkReduce)):
        rule.span(agent, operation.destination, operation.nbytes, True, ins)
    elif isinstance(operation, TmaLoad):
        rule.boxes(agent, operation.access, False, ins)
    elif isinstance(operation, (TmaStore, TmaReduce)):
        rule.boxes(agent, operation.access, True, ins)
