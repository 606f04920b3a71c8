"""A module that a program has loaded, and a kernel of it, as its host code knows them."""

from __future__ import annotations

from dataclasses import dataclass, field

from b200.hardware import MAX_THREADS, SMEM_DEFAULT
from b200.host.cuda.launching import Attributes
from b200.program.module import Kernel, Program


@dataclass
class Module:
    """A module that a library registered, or a program loaded. registers: a thread's, by kernel."""

    program: Program
    registers: dict[str, int] = field(default_factory=dict)


@dataclass
class Function:
    """A kernel as the host code knows it."""

    module: Module
    kernel: Kernel
    attributes: Attributes = field(default_factory=Attributes)

    @property
    def registers(self) -> int:
        """Registers a thread, as ptxas said; 0 if it did not run."""
        return self.module.registers.get(self.kernel.name, 0)

    @property
    def static_smem(self) -> int:
        """Bytes of static shared memory."""
        return self.module.program.static_smem(self.kernel)

    @property
    def local_bytes(self) -> int:
        return sum(v.size for v in self.kernel.variables.values() if v.space == "local")

    @property
    def constant_bytes(self) -> int:
        return sum(v.size for v in self.module.program.variables.values() if v.space == "const")

    @property
    def most_threads(self) -> int:
        """Threads that a CTA may have."""
        directives = self.kernel.directives
        most = 1
        for size in directives.get("maxntid") or directives.get("reqntid") or (MAX_THREADS,):
            most *= size
        return most

    @property
    def dynamic_smem_limit(self) -> int:
        limit = self.attributes.dynamic_smem
        return SMEM_DEFAULT - self.static_smem if limit is None else limit
