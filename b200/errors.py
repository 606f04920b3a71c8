"""What can go wrong in a launch, and how it is said.

A unit (TMA, tensor core, memory, ...) raises `Fault` with one plain sentence. The machine catches
it, adds where it happened (kernel, source line, instruction, CTA, warp, lanes) and raises
`EmulatorError` to the caller.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class Fault(Exception):
    """Raised by a unit: a sentence in the PTX ISA's words, with the numbers that are wrong."""


class EmulatorError(RuntimeError):
    """A launch that hardware would not have completed; `str()` is the whole report.

    kind: "fault" (illegal access or operand), "deadlock", "unsupported" (an instruction that is not
    modelled), "limit" (a launch that hardware would refuse), "budget" (its time is over) or
    "internal" (the emulator itself failed: nothing is said of the program). findings: of the
    checker, before it.
    """

    def __init__(self, kind: str, report: str, findings: Sequence[Any] = ()):
        super().__init__(report)
        self.kind, self.findings = kind, findings

    def told(self) -> str:
        """The report, with its kind in front where it does not begin with that: "fault: ..."."""
        text = str(self)
        return text if text.startswith(f"{self.kind}:") else f"{self.kind}: {text}"

    def __reduce__(self) -> tuple[type[EmulatorError], tuple[Any, ...]]:
        return (EmulatorError, (self.kind, str(self)))


class SetupError(RuntimeError):
    """What a program is to run on is not there; str() says what was expected and what came."""


class Unsupported(Fault):
    """An instruction, modifier or operand combination that the emulator does not model."""
