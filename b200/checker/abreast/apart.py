"""Clusters that follow abreast and go ways of their own; which view the next ones get."""

from __future__ import annotations

import numpy as np

from b200.checker.abreast.accesses import GlobalAccess
from b200.checker.abreast.follow import FollowAbreast
from b200.checker.observer import Observer
from b200.chip.abreast.accesses import Place
from b200.chip.abreast.dropped import NotAbreast
from b200.chip.abreast.machine import AbreastMachine
from b200.chip.fragment import Fragment
from b200.program.module import Instr


class ApartAbreast(FollowAbreast):
    """n clusters that go ways of their own: which lanes access memory, and where, differs.

    What the rules for clusters look at in such a kernel (can_be_judged) are accesses of shared and
    global memory and what orders threads. The latter are steps that each warp takes as that of a
    checked cluster has (Trail.meetings). The accesses are looked at in each cluster: all of them
    are in order, thread by thread, so that there is nothing to find among them (thread_order.py).
    """

    def begins(self, machine: AbreastMachine) -> None:
        super().begins(machine)
        self.trail.meetings = {}

    def differ(self) -> bool:
        return False

    def _take(self, ins: Instr, warp: Fragment, lanes: int, operands: tuple) -> None:
        self.trail.meet(ins, warp, lanes, operands)

    def _rows(self, mask: int, place: Place) -> tuple[int, np.ndarray, np.ndarray]:
        words, at = self.machine.words(mask), place.at
        lanes, ctas = int(words[0]) if (words == words[0]).all() else 0, np.flatnonzero(words)
        if at.size == 1:
            return lanes, ctas, at.reshape(1, 1)
        counts = np.array([word.bit_count() for word in words[ctas].tolist()])
        begins = np.cumsum(counts) - counts
        rows = np.repeat(at[begins, None], counts.max(), 1)
        owner = np.repeat(np.arange(ctas.size), counts)
        rows[owner, np.arange(at.size) - begins[owner]] = at
        return lanes, ctas, rows

    def _own(self, ins: Instr, warp: Fragment, mask: int, place: Place, varies: bool) -> None:
        if place.space == "shared":
            self._in_order(ins, warp, mask, place)

    def _step_global(self, access: GlobalAccess) -> None:
        """An access is no step here."""

    def exits(self, state, lanes: int) -> None:
        """Nor is the end of a warp."""

    def _judge(self) -> None:
        if self.trail.met() not in self.following.traces.met:
            raise NotAbreast("warps meet where those of no checked cluster have")

    def _leave(self) -> None:
        """Such clusters leave nothing."""


def next_clusters(observer: Observer) -> FollowAbreast | None:
    """The view of the checker of clusters abreast; None if the next ones must run one by one."""
    following = observer.following
    if following is None or not following.on or following.follower is not None:
        return None
    if following.traces.root.next is None or observer.dependence is not None:
        return None
    if not all(first.several for first in observer.globals.reductions.values()):
        return None  # what the rule of sums finds is found in a checked cluster
    return (ApartAbreast if following.traces.apart else FollowAbreast)(observer)
