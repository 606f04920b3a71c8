"""`Checked`, a mixin for a Machine: the machine under the checker.

The checker sees every access, arrive, wait and exit, and changes no result. Generated code calls
the same run functions with an observer around them (instrument.py), and `issue` tells the observer
of asynchronous operations. The findings are in `launch.findings`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from b200.checker import naming as words
from b200.checker import nans, partly_written
from b200.checker.dependent_launch import DependentLaunch, InFlight
from b200.checker.finding import ERROR, LIMIT, NOTE, PORTABILITY, Finding
from b200.checker.following import Departed, Traces, Trail
from b200.checker.instrument import CheckedWriter, can_be_followed
from b200.checker.observer import Observer
from b200.checker.other_queues import Beside
from b200.chip.describe import mnemonic
from b200.chip.fragment import Fragment, WarpState
from b200.chip.launch import Launch
from b200.chip.machine import Machine
from b200.chip.operations import Effect, Operation
from b200.chip.overlap import Overlapping
from b200.chip.placement import Seat
from b200.chip.state import Cluster, GlobalMemory, Region
from b200.chip.sync.barrier_record import BarrierHistory, WaitedTwice
from b200.chip.sync.mbarrier import MBarrier
from b200.effects import OrdersGrids
from b200.errors import EmulatorError
from b200.program.module import Instr
from b200.program.translate import translate
from b200.program.translated import Translated

KEPT = 4  # kernels whose clusters later launches may follow
SHOWN = 8  # findings quoted in the report of an error
# A load of shared memory that nothing has written, or a value of a lane that has exited, until it
# is known what depends on it.
LOADED, UNDECIDED = "uninitialised", PORTABILITY


@functools.lru_cache(maxsize=KEPT)
def _unchecked(code: Translated) -> Translated:
    """The same kernel without the checker's wrappers."""
    return translate(code.program, code.kernel)


class CheckedFragment(Fragment):
    """A fragment whose instructions are observed."""

    __slots__ = ("observer",)
    machine: Checked

    def __init__(self, machine: Checked, state: WarpState, mask: int, pc: int = 0):
        super().__init__(machine, state, mask, pc)
        self.observer = machine.observer


class Checked(Machine):
    """A mixin in front of any Machine: `class CheckedMachine(Checked, Machine)`."""

    fragment_type = CheckedFragment  # pyright: ignore[reportAssignmentType]
    writer_type = CheckedWriter
    follows = True  # clusters that do what others have done run unchecked (following.py)

    def __init__(self, memory: GlobalMemory):
        super().__init__(memory)
        # address of a tensormap in global memory -> its bytes when an operation used it last
        self.used_tensormaps: dict[int, bytes] = {}
        # Allocations that are known to be written (unwritten.py).
        self.whole: dict[int, Region] = {}
        self.in_flight = InFlight()  # what may still run when a dependent launch starts
        self.beside: Beside | None = None  # set by the host where there are several queues
        # (kernel, grid, block, cluster, bytes of shared memory) -> what a later launch may follow
        self.traces: dict[tuple, Traces] = {}

    def launch(self, code, grid, block, cluster, dynamic_smem: int, params: bytes, /) -> Launch:
        in_order = type(self).next_fragment is Machine.next_fragment
        at_once = type(self).settle is Machine.settle and not self.keep_stores
        dependence = self._dependence(code)
        follow = self.follows and in_order and at_once and can_be_followed(code)
        follow = follow and dependence is None
        key = code, grid, block, cluster, dynamic_smem
        traces = self.traces.pop(key, None) or Traces() if follow else None
        self.observer = Observer(self, code, traces)
        self.observer.dependence = dependence
        if dependence is not None:
            dependence.observer = self.observer
        try:
            launch = super().launch(code, grid, block, cluster, dynamic_smem, params)
        except EmulatorError as error:
            raise self._with_findings(error) from None
        finally:
            self.in_flight = dependence.after() if dependence is not None else InFlight()
            if self.beside is not None and dependence is not None:
                self.beside.footprint = dependence.kept
        again = code, grid, block, cluster, dynamic_smem, params
        if self.observer.unwritten.reads:
            self._look_at_unwritten(*again)
        if partly_written.suspicious(self.observer):
            self._look_at_partly_written(*again)
        self.observer.finish()
        nans.look(self.observer, partial(self._again, *again))
        keeps = self.observer.keeps()
        self._judge_loads(*again)
        self.observer.findings.arrange()
        launch.findings = self.observer.findings
        launch.stores = self.observer.stores
        launch.incomplete = self._incomplete()
        following = self.observer.following
        if following is not None:
            launch.followed = following.followed
            if keeps:
                self._keep(key, following.traces)
        if dependence is None:
            self.observer.forget()
        return launch

    def _look_at_unwritten(self, code, *arguments):
        """The launch has read global memory that nobody has written: find out whether a result
        depends on it, and report.
        """
        again = self._again(code, *arguments)
        unwritten = self.observer.unwritten
        unwritten.tell(unwritten.reaches(again) if again is not None else None)

    def _look_at_partly_written(self, code, *arguments):
        """The launch has read tensor memory of which a part was written: report if a result
        depends on the rest.
        """
        again = self._again(code, *arguments)
        if again is None:
            return
        reached = self.observer.unwritten.reaches(partial(again, tensor=True), shared=True)
        if reached:
            partly_written.tell(self.observer, reached)

    def _judge_loads(self, code, *arguments):
        """Judge loads of shared memory that nothing has written. A kernel may mask or drop the
        loaded values; if a result depends on them, the load is an error.
        """
        findings = self.observer.findings
        loads = [i for i, f in enumerate(findings) if f.kind == LOADED and f.severity == UNDECIDED]
        again = self._again(code, *arguments) if loads else None
        if again is None:
            return
        reached = self.observer.unwritten.reaches(again, shared=True)
        for i in loads:
            found = findings[i]
            diagnosis, details = found.diagnosis, found.details
            if reached:
                details = (*details, reached)
            else:
                diagnosis += ", on which no result of the launch depends"
            severity = ERROR if reached else NOTE
            findings[i] = replace(found, diagnosis=diagnosis, details=details, severity=severity)

    def _again(self, code, *arguments) -> Callable[..., object] | None:
        """A function that carries the launch out once more, unchecked and in the same order, with
        each byte of shared memory, or of tensor memory, set to the function's argument. None if
        that is impossible, because what the launch before has written is missing.
        """
        kinds = [kind for kind in type(self).__mro__ if issubclass(kind, Machine)]
        overlaps = self.dependent and any(issubclass(kind, Overlapping) for kind in kinds)
        if overlaps or self.observer.unwritten.unknown:
            return None
        unchecked = [kind for kind in kinds if not issubclass(kind, Checked)]
        machine = type("Machine", tuple(unchecked), {"schedule": getattr(self, "schedule", None)})(
            self.memory
        )
        machine.symbols, machine.workspace = self.symbols, self.workspace
        plain = _unchecked(code)

        def again(byte: int, tensor: bool = False) -> object:
            machine.unwritten_smem = 0xFF if tensor else byte
            machine.unwritten_tmem = byte if tensor else 0xFF
            return machine.launch(plain, *arguments)

        return again

    def _keep(self, key: tuple, traces: Traces):
        """Keep `traces` for the next launch with this key. Only those of the latest few keys
        are kept.
        """
        self.traces[key] = traces
        if len(self.traces) > KEPT:
            del self.traces[next(iter(self.traces))]

    def _dependence(self, code) -> DependentLaunch | None:
        """The rule of dependent launches; None if no other launch overlaps with this one."""
        before = self.in_flight if self.dependent else InFlight()
        effects = (op.ins.effect for block in code.structure for op in block.ops)
        lets_start = any(isinstance(each, OrdersGrids) and not each.waits for each in effects)
        beside = self.beside
        if not lets_start and not before.early and not before.late and beside is None:
            return None
        return DependentLaunch(before, code.kernel.name, lets_start, beside)

    def _incomplete(self) -> list[str]:
        """The parts of the launch that no rule looked at, a line each."""
        found = [
            f"{words.line(ins)}: the checker has no rule for {mnemonic(ins)}"
            for block, ins in self.code.without_rule
            if self.hits[block]
        ]
        if dropped := self.observer.findings.dropped:
            found.append(f"{dropped} finding(s) beyond the first {LIMIT} of the launch are dropped")
        unwritten = self.observer.unwritten
        if unwritten.reads and unwritten.unknown:
            found.append(unwritten.unknown)
        return list(dict.fromkeys([*found, *self.observer.coverage.left_out()]))

    def _with_findings(self, error: EmulatorError) -> EmulatorError:
        """The error, with the findings before it added: one of them is often its cause."""
        self.observer.conclude()
        findings = self.observer.findings
        if not findings:
            return error
        findings.arrange()
        first, _, rest = str(error).partition("\n")
        errors = [f for f in findings if f.severity == ERROR]
        if errors:
            first += "; found before this, and perhaps its cause:"
            rest = f"the {error.kind} itself:\n{rest}"
        text = "\n".join([first, *_quoted(errors), rest])
        if remarks := [f for f in findings if f.severity != ERROR]:
            text = "\n".join([text, "remarks on what came before:", *_quoted(remarks)])
        return EmulatorError(error.kind, text, findings)

    # --- clusters that follow others --------------------------------------------------------------
    @property
    def _follower(self) -> Trail | None:
        following = self.observer.following
        return following.follower if following is not None else None

    def _admit(self, cluster: Cluster, launch: Launch, sms: Sequence[Seat]):
        if self.observer.following is not None:
            self.observer.following.begin(cluster, alone=len(self._ended()) == len(self.resident))
            self._hits_before = self.hits.copy()
        super()._admit(cluster, launch, sms)

    def _start_next(self, waiting, launch: Launch, placement) -> bool:
        """Start the next cluster of the launch. A cluster that follows must be alone: before
        another cluster starts, or if the one that follows can go no further, it starts
        again, checked.
        """
        if self._follower is not None and (self.next_cluster is not None or not self.queue):
            self._start_again(launch)
            return True
        return super()._start_next(waiting, launch, placement)

    def _turn(self, f: Fragment, launch: Launch) -> bool:
        self.observer.turn_of(f.cta.cluster)
        try:
            return super()._turn(f, launch)
        except Departed:
            pass
        except EmulatorError:
            if self._follower is None:
                raise
        self._start_again(launch)
        return False

    def _start_again(self, launch: Launch):
        """Start the cluster that follows again, checked. Nothing of its first run is
        left (following.py).
        """
        following, follower = self.observer.following, self._follower
        assert following is not None and follower is not None
        cluster, following.follower = follower.cluster, None
        self.queue.clear()
        self.resident.remove(cluster)
        self.hits[:] = self._hits_before
        self.observer.take_back(cluster)
        fresh = Cluster(cluster.grid, cluster.index, cluster.shape)
        following.begin(fresh, alone=False)
        super()._admit(fresh, launch, [cta.sm for cta in cluster.ctas])

    # --- what the checker sees --------------------------------------------------------------------
    def issue(self, operation: Operation, warp: Fragment, apply: Effect) -> None:
        trail = self.observer.trail
        if trail is not None:
            trail.issue(operation, warp)
            if trail.follows:
                super().issue(operation, warp, apply)
                return
        super().issue(operation, warp, self.observer.operations.issued(operation, warp, apply))

    def barrier_history(self, mbarrier: MBarrier) -> BarrierHistory | None:
        return self.observer.mbarriers.history(mbarrier)

    def waited_twice(self) -> list[WaitedTwice]:
        return self.observer.mbarriers.waited_twice()

    def undefined(
        self, what: str, missing: str, ins: Instr | None = None, wrong: bool = False
    ) -> None:
        ins = ins or self.observer.ins
        works = "it works on today's chips; PTX leaves it undefined: another chip may differ"
        self.observer.found(
            LOADED if wrong else "protocol",
            what,
            (
                f"this access: {words.line(ins)}",
                *(() if wrong else (works,)),
                f"missing: {missing}",
            ),
            ins,
            severity=UNDECIDED if wrong else PORTABILITY,
        )

    def lanes_exited(self, state, lanes: int) -> None:
        super().lanes_exited(state, lanes)
        if state.live == 0:
            trail = self.observer.trail
            followed = trail is not None and trail.follows
            if trail is not None:
                trail.exited(state)
            if followed:
                return
            self.observer.warp_exited(state)


def _quoted(findings: list[Finding]) -> list[str]:
    more = len(findings) - SHOWN
    return [*map(str, findings[:SHOWN]), *([f"... {more} more"] if more > 0 else [])]


class CheckedMachine(Checked, Machine):
    """The plain machine with the checker."""
