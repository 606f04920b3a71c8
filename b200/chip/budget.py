"""How much of an SM's resources a launch uses: shared and tensor memory, registers, barriers.

ptxas allots the registers, and ptxas is not run here. PTX tells two things: how many registers a
thread may have at most if the CTAs are to fit, and what setmaxnreg redistributes
(sync/registers.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from b200 import hardware as hw
from b200.chip.sync.barriers import MAX_BARRIERS
from b200.chip.sync.registers import operand_of, registers_at_entry

if TYPE_CHECKING:
    from b200.chip.launch import Launch
    from b200.chip.state import CTA
    from b200.program.translated import Translated

REGISTERS_THREAD = 255


@dataclass
class Budget:
    """The largest use of each resource by any CTA of a launch, collected while the launch runs.

    smem_bytes, threads: of a CTA. tensor_columns: allocated at one time. mbarriers: how many were
    initialised. named: numbers of the CTA barriers used. reallocations: each setmaxnreg in the
    kernel, such as "dec 64". registers: of a thread at its start; None if setmaxnreg is absent or
    has no effect.
    """

    smem_bytes: int = 0
    threads: int = 0
    ctas_per_sm: int = 1  # .minnctapersm
    tensor_columns: int = 0
    mbarriers: int = 0
    named: set[int] = field(default_factory=set[int])
    reallocations: list[str] = field(default_factory=list[str])
    registers: int | None = None

    @classmethod
    def of(cls, code: Translated, launch: Launch) -> Budget:
        """The budget as far as the launch's sizes and the kernel's text tell it."""
        x, y, z = launch.block
        minimum = code.kernel.directives.get("minnctapersm", (1,))[0]
        ops = (op.ins for block in code.structure for op in block.ops)
        changes = [(ins.mods[1], operand_of(ins)) for ins in ops if ins.mods[0] == "setmaxnreg"]
        return cls(
            launch.smem_bytes,
            x * y * z,
            minimum,
            reallocations=list(dict.fromkeys(f"{how} {count}" for how, count in changes)),
            registers=registers_at_entry(code.kernel, [count for _, count in changes]),
        )

    def see(self, cta: CTA) -> None:
        """Add the use of a CTA that has ended."""
        self.tensor_columns = max(self.tensor_columns, cta.tmem_peak)
        self.mbarriers = max(self.mbarriers, len(cta.mbarriers))
        self.named.update(cta.named_barriers)

    def lines(self) -> list[str]:
        """One line for each resource: used, available, share."""
        by_smem = hw.SMEM_BYTES // (self.smem_bytes + hw.SMEM_RESERVED)
        resident = min(by_smem, hw.SM_THREADS // max(self.threads, 1))
        most = min(REGISTERS_THREAD, hw.SM_REGISTERS // (self.threads * self.ctas_per_sm) // 8 * 8)
        share = f"at most {most} a thread, for {self.ctas_per_sm} CTA(s) of {self.threads} threads"
        changed = f"; setmaxnreg {', '.join(self.reallocations)}" if self.reallocations else ""
        if changed and self.registers is not None:
            changed += f", from {self.registers} on"
        elif changed:
            changed += ", which ptxas ignores: no .maxnreg, and no .minnctapersm with the threads"
        return [
            _line("shared memory", self.smem_bytes, hw.SMEM_OPT_IN, "bytes a CTA")
            + f"; {resident} CTA(s) fit an SM by shared memory and threads",
            _line("tensor memory", self.tensor_columns, hw.TMEM_COLUMNS, "columns a CTA"),
            f"registers: {share}{changed}",
            f"mbarriers: {self.mbarriers} a CTA, {8 * self.mbarriers} bytes of its shared memory",
            _line("named barriers", len(self.named), MAX_BARRIERS, "a CTA"),
        ]


def _line(what: str, used: int, of: int, unit: str) -> str:
    return f"{what}: {used:,} of {of:,} {unit} ({100 * used / of:.0f} %)"
