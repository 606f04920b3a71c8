"""Adversarial schedules: other orders of warps and of completions that hardware may produce.

    early        asynchronous operations complete when issued; the warp woken last runs first;
                 requests of cluster launch control succeed while a cluster has not started
    late         asynchronous operations complete only when no warp can run, the latest one first
    random:SEED  warps, the length of their turns, completions and answers in a random order
    pdl          the usual order; what a dependent launch does before its griddepcontrol.wait comes
                 before what the previous launch does (overlap.py)
    all          the usual order, from which all others are explored (b200/explore)

The operations of one thread's tensor-core queue (tcgen05.mma, cp, shift, commit) keep their order;
all others are unordered, as the PTX ISA leaves them. A correct kernel gives the same bits under all
schedules.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from b200.chip.describe import who
from b200.chip.fragment import Fragment
from b200.chip.launch import Arguments, Launch
from b200.chip.operations import Action, Operation, TensorCoreOperation
from b200.chip.order import InOrder
from b200.chip.state import Cluster
from b200.errors import EmulatorError, Fault
from b200.program.translated import Translated

TURNS = (1, 4, 32, 4096)  # blocks a warp executes before others get a turn


@dataclass(frozen=True)
class Schedule:
    """One schedule. kind: "early", "late", "random", "pdl" or "all"; seed: of a random schedule."""

    kind: str
    seed: int = 0

    def __str__(self):
        return f"random:{self.seed}" if self.kind == "random" else self.kind


def parse(text: str) -> Schedule:
    """A schedule from "early", "late", "random:SEED", "pdl" or "all". Raises ValueError."""
    kind, _, seed = text.partition(":")
    if kind in ("early", "late", "pdl", "all") and not seed:
        return Schedule(kind)
    if kind == "random" and seed.isdigit():
        return Schedule(kind, int(seed))
    raise ValueError(f"a schedule is early, late, random:SEED, pdl or all, got {text!r}")


class Scheduled(InOrder):
    """The order of a schedule: early, late or random."""

    plain = False
    by_thread = True

    def __init__(self, schedule: Schedule):
        super().__init__()
        self.schedule = schedule
        # queue -> effects under way, the oldest first
        self.waiting_effects: dict[object, deque[tuple[str, Fragment, Action]]] = {}
        self.random = random.Random(schedule.seed)
        self.picks = 0

    def again(self, dependent: bool) -> Scheduled:
        return Scheduled(self.schedule)

    def launch(
        self, carry_out: Callable[[], Launch], code: Translated, arguments: Arguments
    ) -> Launch:
        self.waiting_effects.clear()
        self.random, self.picks = random.Random(self.schedule.seed), 0
        return carry_out()

    def issue(self, operation: Operation, warp: Fragment, apply: Action) -> None:
        kind = self.schedule.kind
        in_order = isinstance(operation, TensorCoreOperation)
        queue = (warp.cta, warp.index) if in_order else object()
        at_once = kind == "early" or kind == "random" and self.random.random() < 0.25
        if at_once and queue not in self.waiting_effects:
            apply()
        else:
            effect = type(operation).__name__, warp, apply
            self.waiting_effects.setdefault(queue, deque()).append(effect)

    def cancel_next(self) -> Cluster | None:
        """Whether a request succeeds. Early: while a cluster has not started; late: never; random:
        now and then.
        """
        kind = self.schedule.kind
        granted = kind == "early" or kind == "random" and self.random.random() < 0.5
        return self.machine.take_next() if granted else None

    def _complete(self, queue: object) -> None:
        """The oldest effect of a queue happens."""
        effects = self.waiting_effects[queue]
        name, warp, apply = effects.popleft()
        if not effects:
            del self.waiting_effects[queue]
        try:
            apply()
        except Fault as fault:
            text = f"{fault}\n  when the operation {name} took effect, issued by {who(warp)}"
            raise EmulatorError("fault", text) from None

    def settle(self) -> bool:
        if not self.waiting_effects:
            return False
        queues = list(self.waiting_effects)
        self._complete(self.random.choice(queues) if self.schedule.kind == "random" else queues[-1])
        return True

    def wait_passed(self, warp: Fragment) -> None:
        """Whoever runs, runs as far as it can."""

    def next_fragment(self) -> Fragment:
        """The fragment that runs next, off the queue; a random schedule also sets its turn."""
        queue = self.queue
        self.picks += 1
        if self.schedule.kind == "random":
            if self.waiting_effects and self.random.random() < 0.25:
                self.settle()
            self.turn = self.random.choice(TURNS)
            queue.rotate(self.random.randrange(len(queue)))
            return queue.popleft()
        # the other end now and then, so that a warp that polls memory does not keep others from
        # running
        from_the_end = self.schedule.kind == "early" and self.picks % 8
        return queue.pop() if from_the_end else queue.popleft()
