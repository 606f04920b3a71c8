"""Remarks on code that Triton's compiler writes, which the kernel's author cannot change.

Each was read against the PTX ISA and against what Triton emits (63068fcc; docs/triton.md has the
table). They are true, as portability or in the last bit. So they are kept apart from the findings
of a launch, and said once in a process.

- An mbarrier is used by the TMA unit or the tensor core without a fence after its initialisation.
  Triton emits fence.mbarrier_init where a cluster has more than one CTA, and its pass for proxy
  fences leaves barriers out.
- Tensor memory is used after a barrier without tcgen05 fences. Triton emits none of the two, and
  neither of its languages has them.
- A TMA load overwrites what the warp itself has read through the generic proxy. In Gluon, where a
  program places its buffers and `fence_async_shared` itself, only the address of tensor memory
  counts, which a kernel reads at its first line.
- A matrix descriptor has version 0. Triton to 3.5 leaves it as in Hopper's descriptors.
- Lanes of a reduction store different values to one word. Fused multiply-add makes the butterfly of
  shuffles unsymmetrical, so that lanes differ in the last bit, and all of them store.
- In Triton's own language all of shared memory, tensor memory, barriers and tensormaps in memory is
  the compiler's. Global memory is the author's.

One note goes: `h += tl.dot(...)` whose h is used in each turn of a loop accumulates on what has
been read, as the program says. The compiler sets the flag of the MMA. In Gluon the program does.
"""

from __future__ import annotations

import multiprocessing
import sys
from typing import Any

from b200.checker.finding import PORTABILITY, Finding
from b200.chip.launch import Launch
from b200.program.module import Instr, Kernel

PAGE = "docs/triton.md"
ON_CHIP = ("shared memory [", "tensor-memory columns", "mbarrier")
IN_GLUON = (
    "without a fence after its initialisation",
    "after a barrier without tcgen05 fences",
    "a shared-memory address where PTX takes a generic one",
    "has version 0, where PTX has 1",
)
ONE_WORD = "write different values to one address"
OWN_READ = "overwrites what the warp itself has read through the generic proxy"
RUNNING_SUM = "accumulator"  # the checker's kind
_said: set[str] = set()


class Remarks:
    """Takes the compiler's remarks out of the reports of a kernel's launches."""

    def __init__(self, kernel: Kernel, gluon: bool):
        locations = (i.loc for i in kernel.body if isinstance(i, Instr) and i.loc is not None)
        self.first_line = str(next(locations, ""))
        self.gluon = gluon

    def __call__(self, launch: Launch) -> None:
        for finding in list(launch.findings or ()):
            if finding.kind == RUNNING_SUM and not self.gluon:
                launch.findings.remove(finding)  # pyright: ignore[reportOptionalMemberAccess]
            elif self.is_compilers(finding):
                launch.findings.remove(finding)  # pyright: ignore[reportOptionalMemberAccess]
                launch.of_compiler.append(finding)
                _say(finding)

    def is_compilers(self, finding: Finding) -> bool:
        """Whether a finding is about what the compiler has written."""
        if ONE_WORD in finding.diagnosis:
            return "in shared memory" in finding.details
        if finding.severity != PORTABILITY:
            return False
        if any(words in finding.diagnosis for words in IN_GLUON):
            return True
        if self.gluon:
            return OWN_READ in finding.diagnosis and finding.other == self.first_line
        # details are functions until the launch is over
        texts = [x for x in (finding.diagnosis, *finding.details) if isinstance(x, str)]
        text = "\n".join(texts)
        return finding.kind == "tensormap" or any(words in text for words in ON_CHIP)


def _say(finding: Any) -> None:
    """Once in a process for each kind of remark. A process that the program has made itself says
    nothing: what it prints may be read (Triton's own tests do).
    """
    if multiprocessing.parent_process() is not None:
        return
    text = finding.diagnosis
    known = next((words for words in (*IN_GLUON, OWN_READ, ONE_WORD) if words in text), text)
    if known not in _said:
        _said.add(known)
        print(
            f"b200: Triton's own code (said once; {PAGE}): {text}, at {finding.loc}",
            file=sys.stderr,
        )
