"""The usual order, in which CTAs that come after the first ones run abreast where they can."""

from __future__ import annotations

import os
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from b200.chip.abreast.dropped import CtasDiffer, NotAbreast, ReadAndWritten
from b200.chip.abreast.machine import AbreastMachine
from b200.chip.abreast.writer import AbreastWriter, look_for_refusal
from b200.chip.launch import Launch
from b200.chip.order import PUT_OFF, InOrder
from b200.chip.placement import Placement, Seat
from b200.chip.state import Cluster
from b200.chip.watcher import Abreast
from b200.errors import Unsupported
from b200.program.translate import translate_abreast
from b200.program.translated import Translated

MOST = 64  # CTAs that run abreast
TRIES = 4  # allocations that are read and written, found by trying
SWITCH = "B200_ABREAST"
# Instructions that CTAs have to execute for each one of the kernel's text before it pays to write
# the kernel for so many: that takes some 0.2 ms an instruction, where 2 us are what one costs.
PAYS = 100
# Where CTAs differ, they are run once more by ways of their own. So few of them, only if that was
# seen before so large a part of the run was over: else two runs cost what they might gain.
FEW, EARLY = 8, 0.25


def by_environment() -> tuple[int, int]:
    """How many CTAs may run abreast, and what makes it pay, by B200_ABREAST: "MOST" or
    "MOST:PAYS".
    """
    most, _, pays = os.environ.get(SWITCH, f"{MOST}:{PAYS}").partition(":")
    return min(int(most), MOST), int(pays or PAYS)


@dataclass(eq=False)
class _Upcoming:
    """The clusters that have not begun; some may be taken, and put back."""

    every: Iterator[Cluster]

    def __post_init__(self) -> None:
        self.back: deque[Cluster] = deque()

    def __iter__(self) -> Iterator[Cluster]:
        return self

    def __next__(self) -> Cluster:
        return self.back.popleft() if self.back else next(self.every)


@dataclass(eq=False)
class _Known:
    """What launches before have told of a kernel. alone: how many instructions its CTAs have
    executed in rounds that could have been fewer, since it was last written for so many of them.
    sizes: numbers of CTAs that it is written for. given_up: why it does not run abreast, or "".
    """

    alone: float = 0.0
    sizes: set[int] = field(default_factory=set[int])
    given_up: str = ""


class SideBySide(InOrder):
    """most: how many CTAs may run abreast. pays: how many instructions make it worth while, for
    each one of the text. None: as the environment says.
    """

    def __init__(self, most: int | None = None, pays: int | None = None):
        super().__init__()
        of_all = by_environment()
        self.most = of_all[0] if most is None else most
        self.pays = of_all[1] if pays is None else pays
        self.ran, self.dropped = 0, ""  # CTAs of the launch that ran abreast; why others did not
        self._refusals: dict[Translated, str] = {}
        self._known: defaultdict[Translated, _Known] = defaultdict(_Known)
        self._of_again: defaultdict[Translated, _Known] = defaultdict(_Known)
        self._put_off = 0  # turns in which no cluster has joined one that goes on
        self._other: Cluster | None = None  # the one that differs from those that ran beside it

    def again(self, dependent: bool) -> InOrder | None:
        order = SideBySide(self.most, self.pays)
        order._known = self._of_again  # launches are carried out again without the checker
        return order

    def clusters(self, every: Iterator[Cluster]) -> Iterable[Cluster]:
        self._put_off, self._other = 0, None
        self.ran, self.dropped, self._in_place = 0, "", frozenset[int]()
        self.upcoming = _Upcoming(every)
        return self.upcoming

    # --- several at once --------------------------------------------------------------------------
    def start_next(self, waiting: Iterator[Cluster], launch: Launch, placement: Placement) -> bool:
        """As in InOrder, but that no cluster joins one that goes on, for a while: it would have to
        run by itself. Whether clusters do run abreast does not matter here, so that the order is
        the same where none do.
        """
        machine = self.machine
        goes_on = self.queue and not machine.spinning.all_stand()
        if goes_on and self._refused(machine.code, launch) == "" and self._put_off < PUT_OFF:
            self._put_off += 1
            return False
        self._put_off = 0
        return super().start_next(waiting, launch, placement)

    def _refused(self, code: Translated, launch: Launch) -> str:
        """Why clusters of a launch may not run abreast, as far as the kernel's text tells, or "".
        Such a text waits for nothing that another cluster stores.
        """
        if launch.cluster != (1, 1, 1):
            return "clusters"
        if code not in self._refusals:
            try:
                look_for_refusal(code)
                self._refusals[code] = ""
            except NotAbreast as why:
                self._refusals[code] = str(why)
        return self._refusals[code]

    def start_several(self, launch: Launch) -> bool:
        """Run the next CTAs abreast, unless that does not pay or was given up."""
        machine, code = self.machine, self.machine.code
        self.dropped = self._refused(code, launch) or self._known[code].given_up
        if self.dropped or self.most < 2 or not machine.started:
            return False
        left = launch.grid[0] * launch.grid[1] * launch.grid[2] - machine.started
        n = self._size(code, left)
        if n < 2 or machine.next_cluster is self._other or (views := self._views()) is None:
            return False
        chunk = self._taken(n)
        if len(chunk) < 2:
            return False  # the one behind it is set apart
        why = self._try(code, chunk, views, launch)
        if why is None:
            self.ran += len(chunk)
            return True
        self.upcoming.back.extendleft(reversed(chunk[1:]))
        machine.next_cluster = chunk[0]
        if self._sets_apart(chunk, why):
            return self.start_several(launch)
        self.dropped = self._known[code].given_up = str(why)
        return False

    def _sets_apart(self, chunk: list[Cluster], why: BaseException) -> bool:
        """Whether one of many CTAs differs from all others: it is left to run by itself, and the
        others are run abreast once more. This is done once in a launch.
        """
        other = why.other if isinstance(why, CtasDiffer) else None
        if other is None or self._other is not None or len(chunk) < FEW:
            return False
        self._other = chunk[other]
        return True

    def _views(self) -> list[Abreast] | None:
        """The watchers' views of the next CTAs; None if these may not run abreast."""
        views = [watcher.abreast() for watcher in self.machine.watchers]
        found = [view for view in views if view is not None]
        return found if len(found) == len(views) else None

    def _try(
        self, code: Translated, chunk: list[Cluster], views: list[Abreast] | None, launch: Launch
    ) -> BaseException | None:
        """Run clusters abreast; why they cannot, or None. Without a watcher nobody has told of the
        allocations that are read and written: they are found by trying. Nor has the first cluster
        told whether the others differ from it.
        """
        for _ in range(TRIES):
            if views is None:
                break
            try:
                self._run(code, chunk, views, launch)
                return None
            except ReadAndWritten as found:
                if any(view.writer_type is not None for view in views):
                    return found
                self._in_place |= {found.base}
            except CtasDiffer as why:
                late = self._executed(code, self._hits) > EARLY * len(chunk) * self._each(code)
                if late and (len(chunk) < FEW or why.other is not None and self._other is None):
                    return why
                if not any([view.differ() for view in views]):
                    return why
                views = self._views()
            except (NotAbreast, Unsupported) as why:
                return why
        return NotAbreast("too many allocations are read and written")

    def _size(self, code: Translated, left: int) -> int:
        """How many of the CTAs to come run abreast; 0 if that does not pay. The kernel is written
        anew for another number of them, if what they will execute is worth it, as far as those
        before tell, or what was executed one by one in short launches: it costs no more than that.
        """
        known, n, each = self._known[code], how_many(left, self.most), self._each(code)
        text = sum(len(block.ops) for block in code.structure)
        if n in known.sizes or each * left + known.alone > self.pays * text:
            return n
        known.alone += each
        return max((size for size in known.sizes if size <= left), default=0)

    def _each(self, code: Translated) -> float:
        """How many instructions a CTA has executed, in the mean of those before."""
        return self._executed(code, self.machine.hits) / self.machine.started

    @staticmethod
    def _executed(code: Translated, hits: list[int]) -> int:
        return sum(len(block.ops) * n for block, n in zip(code.structure, hits, strict=True))

    def _taken(self, n: int) -> list[Cluster]:
        """The next n clusters, but none from the one that is set apart."""
        machine = self.machine
        assert machine.next_cluster is not None
        chunk = [machine.next_cluster]
        while len(chunk) < n and (cluster := next(self.upcoming, None)) is not None:
            if cluster is self._other:
                self.upcoming.back.appendleft(cluster)
                break
            chunk.append(cluster)
        return chunk

    def _run(
        self, code: Translated, chunk: list[Cluster], views: list[Abreast], launch: Launch
    ) -> None:
        machine = self.machine
        writers = [view.writer_type for view in views if view.writer_type is not None]
        written = translate_abreast(code, len(chunk), writers[0] if writers else AbreastWriter)
        known = self._known[code]
        if len(chunk) not in known.sizes:
            known.sizes.add(len(chunk))
            known.alone = 0.0
        in_place = self._in_place.union(*(view.in_place for view in views))
        abreast = AbreastMachine(machine, written, chunk, _seat(launch), in_place, bool(writers))
        self._hits = abreast.hits
        for view in views:
            view.begins(abreast)
        try:
            abreast.go(launch)
            for view in views:
                view.ends()
        except BaseException:
            abreast.ledger.take_back()
            for view in views:
                view.drops()
            raise
        for block, count in enumerate(abreast.hits):
            machine.hits[block] += count
        machine.budget.named.update(abreast.lead.named_barriers)
        machine.started += len(chunk)
        machine.next_cluster = next(self.upcoming, None)


def how_many(left: int, most: int) -> int:
    """How many of the CTAs left to run at once: such that few are left over, which run one by one
    and take as long each as all that run abreast.
    """
    sizes = range(min(left, most), 1, -1)
    return min(sizes, key=lambda n: left // n + left % n, default=0)


def _seat(launch: Launch) -> Seat:
    seats = Placement().place(launch)
    if seats is None:
        raise NotAbreast("no SM has room")
    return seats[0]
