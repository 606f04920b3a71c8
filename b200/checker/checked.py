"""A machine that watches itself: `Checked` is mixed into a Machine.

It sees every access, arrive, wait and exit, and changes no result: generated code calls the same
units with an observer around them (instrument.py), and `issue` tells it of asynchronous operations.
What it finds is in `launch.findings`.
"""

from __future__ import annotations

from b200.checker import naming as words
from b200.checker.finding import ERROR, LIMIT, PORTABILITY, Finding
from b200.checker.instrument import CheckedWriter
from b200.checker.observer import Observer
from b200.chip.describe import mnemonic
from b200.chip.fragment import Fragment
from b200.chip.machine import Machine
from b200.chip.operations import Effect, Operation
from b200.chip.state import GlobalMemory
from b200.chip.sync.mbarrier import BarrierHistory, MBarrier
from b200.errors import EmulatorError
from b200.program.module import Instr

SHOWN = 8  # findings quoted in the report of an error


class Checked(Machine):
    """In front of any Machine: `class CheckedMachine(Checked, Machine)`."""

    writer_type = CheckedWriter

    def __init__(self, memory: GlobalMemory):
        super().__init__(memory)
        # address of a tensormap in global memory -> its bytes when an operation used it last
        self.used_tensormaps: dict[int, bytes] = {}

    def launch(self, code, grid, block, cluster, dynamic_smem: int, params: bytes):
        self.observer = Observer(self, code)
        try:
            launch = super().launch(code, grid, block, cluster, dynamic_smem, params)
        except EmulatorError as error:
            raise self._with_findings(error) from None
        self.observer.finish()
        self.observer.findings.arrange()
        launch.findings = self.observer.findings
        launch.stores = self.observer.stores
        launch.incomplete = self._incomplete()
        return launch

    def _incomplete(self) -> list[str]:
        """What of the launch no rule looked at."""
        found = [
            f"{words.line(ins)}: the checker has no rule for {mnemonic(ins)}"
            for block, ins in self.code.without_rule
            if self.hits[block]
        ]
        if dropped := self.observer.findings.dropped:
            found.append(f"{dropped} finding(s) beyond the first {LIMIT} of the launch are dropped")
        return list(dict.fromkeys([*found, *self.observer.coverage.left_out()]))

    def _with_findings(self, error: EmulatorError) -> EmulatorError:
        """The error with what was found before it, which often is its cause."""
        self.observer.conclude()
        findings = self.observer.findings
        if not findings:
            return error
        findings.arrange()
        first, _, rest = str(error).partition("\n")
        errors = [f for f in findings if f.severity == ERROR]
        if errors:
            first += "; found before this, and perhaps its cause:"
        text = "\n".join([first, *_quoted(errors), rest])
        if remarks := [f for f in findings if f.severity != ERROR]:
            text = "\n".join([text, "remarks on what came before:", *_quoted(remarks)])
        return EmulatorError(error.kind, text, findings)

    def issue(self, operation: Operation, warp: Fragment, apply: Effect) -> None:
        super().issue(operation, warp, self.observer.issued(operation, warp, apply))

    def barrier_history(self, mbarrier: MBarrier) -> BarrierHistory | None:
        return self.observer.history(mbarrier)

    def undefined(self, what: str, missing: str, ins: Instr | None = None):
        ins = ins or self.observer.ins
        self.observer.found(
            "protocol",
            what,
            (
                f"this access: {words.line(ins)}",
                "it works on today's chips; PTX leaves it undefined: another chip may differ",
                f"missing: {missing}",
            ),
            ins,
            severity=PORTABILITY,
        )

    def lanes_exited(self, state, lanes: int):
        super().lanes_exited(state, lanes)
        if state.live == 0:
            self.observer.warp_exited(state)


def _quoted(findings: list[Finding]) -> list[str]:
    more = len(findings) - SHOWN
    return [*map(str, findings[:SHOWN]), *([f"... {more} more"] if more > 0 else [])]


class CheckedMachine(Checked, Machine):
    """The plain machine with the checker."""
