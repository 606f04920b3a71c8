"""What all effects have: their pipe, and their answers to the questions that every watcher asks.

The checker, the clock and the explorer ask `effect.properties` where they would else keep lists of
classes. A class that answers nothing is a LookupError, and a test names it
(tests/b200/test_properties.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

RELEASING = ("release", "acq_rel", "sc")
ACQUIRING = ("acquire", "acq_rel", "sc")
Spaces = tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Properties:
    """The answers of one effect.

    reads: memories whose contents it hands on, to registers or to other memory: of "shared",
    "global", "tensor", "local", "param" and "const". writes: memories that it writes. generic
    addresses name both of "shared" and "global". gives: whether registers get what it reads.
    synchronises: others wait for it, or it waits for others. answers: what it gives may be another
    value in another order, whatever memory holds. lanes: each lane has an address of its own, and
    so a space of its own where addresses are generic. adds: it gives a value to a sum of several,
    or sends one to another CTA. sized: operands that are no addresses say which bytes it accesses.
    apart: it accesses no memory, and orders accesses of threads, if at all, within their CTA; a
    fence by itself reaches no farther, for it takes a flag that others read.
    silent: no thread finds out whether it was executed, so that no watcher has anything to note.
    """

    reads: Spaces = ()
    writes: Spaces = ()
    gives: bool = False
    synchronises: bool = False
    answers: bool = False
    lanes: bool = False
    adds: bool = False
    sized: bool = False
    apart: bool = False
    silent: bool = False


def spaces(space: str) -> Spaces:
    """The memories that an address of a state space may name; "" and "L2" name none."""
    if space == "generic":
        return "shared", "global"
    return (space.split("::")[0],) if space not in ("", "L2") else ()


NOTHING = Properties()  # an order of what others do
APART = Properties(apart=True)  # registers alone, or an order within a CTA
SILENT = Properties(apart=True, silent=True)
SYNCHRONISES = Properties(synchronises=True)


@dataclass(frozen=True, kw_only=True)
class Effect:
    """pipe: what the instruction costs its sub-core, a line of clock/rates.py. "issue": its slot;
    the unit that carries it out adds the rest. always: the properties of all effects of a class, if
    they do not depend on its fields.
    """

    pipe: str = "issue"
    always: ClassVar[Properties | None] = None

    @cached_property
    def properties(self) -> Properties:
        """What it is to whoever looks at a run. LookupError for a class that does not say it."""
        return self._answers()

    def _answers(self) -> Properties:
        if self.always is None:
            raise LookupError(f"{type(self).__name__} does not say what it is to watchers")
        return self.always

    @property
    def changes(self) -> bool:
        """Whether an instruction changes something each time it is executed: a warp that does so
        does more than poll.
        """
        answers = self.properties
        return bool(answers.writes) or answers.synchronises and not answers.answers


@dataclass(frozen=True, kw_only=True)
class Ordered(Effect):
    """What may order memory for others (8.4). scope: "" where the instruction names none."""

    order: str
    scope: str = ""

    @property
    def strong(self) -> bool:
        return self.order != "weak"

    @property
    def releases(self) -> bool:
        return self.order in RELEASING

    @property
    def acquires(self) -> bool:
        return self.order in ACQUIRING
