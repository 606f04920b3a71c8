"""The parts of a parsed PTX program (parse.py builds them, translator and units read them)."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol, TypeAlias

from b200.effects import Effect
from b200.isa.grammar import is_type
from b200.registry import effect_of

# Files of a compiler or a library.
_LIBRARY = re.compile(
    r"^/usr/|/site-packages/|/cuda-[\d.]+/|/cccl/|/libcudacxx/"
    r"|/include/(cub|thrust|cuda|cute|cutlass|nv|crt|cooperative_groups)/"
)

TYPE_BITS = {
    **dict.fromkeys(("b8", "u8", "s8"), 8),
    **dict.fromkeys(("b16", "u16", "s16", "f16", "bf16"), 16),
    **dict.fromkeys(("b32", "u32", "s32", "f32", "f16x2", "bf16x2"), 32),
    **dict.fromkeys(("b64", "u64", "s64", "f64", "f32x2"), 64),
    "b128": 128,
}  # of the fundamental types (PTX ISA 5.2.1) and the packed ones


@dataclass(frozen=True)
class Reg:
    """A virtual register. Names are unique in the kernel: those of inline asm are renamed."""

    name: str
    type: str  # "pred", "b16", "b32", "b64", "b128", "f32", ...


@dataclass(frozen=True)
class Imm:
    """An immediate: a float is stored as its bit pattern, a negative integer as it is."""

    value: int


@dataclass(frozen=True)
class Sym:
    """The address of a variable: shared (an offset), param (a handle), or a label of a function."""

    name: str


@dataclass(frozen=True)
class Special:
    """A special register: "tid.x", "cluster_ctarank", "laneid", ..."""

    name: str


# Special registers that tell time.
CLOCKS = ("clock", "clock64", "clock_hi", "globaltimer", "globaltimer_lo", "globaltimer_hi")


@dataclass(frozen=True)
class Addr:
    """`[base + offset]` or `[base + offset, {coords}]`."""

    base: Reg | Sym | Imm
    offset: int
    coords: tuple[Any, ...] = ()  # an Operand each, see Instr


@dataclass(frozen=True)
class Vec:
    items: tuple[Any, ...]  # an Operand each, see Instr


@dataclass(frozen=True)
class Not:
    """A negated predicate source, `!p`."""

    reg: Reg


SINK = None  # the operand `_`

Operand: TypeAlias = Reg | Imm | Sym | Special | Addr | Vec | Not | None


@dataclass(frozen=True)
class Loc:
    file: str
    line: int
    inlined_at: Loc | None = None
    function: str = ""  # whose line it is, where that is known

    def chain(self) -> list[Loc]:
        """This line and those that called it, innermost first."""
        found: list[Loc] = [self]
        while found[-1].inlined_at is not None:
            found.append(found[-1].inlined_at)
        return found

    def own(self) -> Loc:
        """The innermost line of the chain that is the program's: that stands in no header of a
        compiler or a library. The line itself where none is. Python files count for their own:
        what is inlined from them is a front end's business.
        """
        own = (at for at in self.chain() if at.file.endswith(".py") or not _LIBRARY.search(at.file))
        return next(own, self)

    def __str__(self):
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class Instr:
    """One instruction.

    opcode: the full mnemonic with modifiers; `mods` is the opcode split at the dots.
    operands: an Operand each, as in the text, destination(s) first; a dual destination `d|p` is
    Vec((d, p)) with `dual` set. They are Any, because the form that the opcode has says which kind
    each is. pred: guard register; the guard is `!pred` if `negated`. key: its id, which tells
    instructions apart that are written alike; id() itself is slow where a process is audited, as
    eval.py's cases are.
    """

    opcode: str
    operands: tuple[Any, ...]
    pred: Reg | None = None
    negated: bool = False
    loc: Loc | None = None
    text: str = ""
    dual: bool = False
    mods: tuple[str, ...] = field(default=(), compare=False)
    key: int = field(default=0, init=False, compare=False, repr=False)

    def __post_init__(self):
        object.__setattr__(self, "key", id(self))
        object.__setattr__(self, "mods", tuple(self.opcode.split(".")))

    def has(self, *mods: str) -> bool:
        """Whether the opcode has at least one of the modifiers."""
        return not self._modifiers.isdisjoint(mods)

    @cached_property
    def _modifiers(self) -> frozenset[str]:
        return frozenset(self.mods)

    def one(self, *mods: str) -> str:
        """The modifier that is among `mods`, or ""."""
        return next((m for m in self.mods if m in mods), "")

    @cached_property
    def types(self) -> tuple[str, ...]:
        """The types among its modifiers, the result's first."""
        return tuple(m for m in self.mods[1:] if is_type(m))

    @cached_property
    def effect(self) -> Effect:
        """What it does to the world (b200/effects)."""
        return effect_of(self)


@dataclass(frozen=True)
class Pointer:
    """Where an initial value holds the address of a variable or function: `name + addend` in
    `width` bytes from byte `at` on; with a mask the bits that it shows, moved to the right.
    """

    at: int
    width: int
    name: str
    addend: int = 0
    mask: int = 0

    def value(self, address: int) -> bytes:
        """Its bytes. address: of the variable or function."""
        value = address + self.addend
        if self.mask:
            value = (value & self.mask) // (self.mask & -self.mask)
        return (value & ((1 << 8 * self.width) - 1)).to_bytes(self.width, "little")


@dataclass
class Variable:
    """A variable in memory: a kernel parameter, or a shared, global, const or local variable."""

    name: str
    space: str
    align: int
    size: int
    init: bytes | None = None
    offset: int = 0
    pointers: tuple[Pointer, ...] = ()


@dataclass
class Label:
    name: str


@dataclass
class Kernel:
    """One `.entry`: its body is a list of Instr and Label in order."""

    name: str
    params: list[Variable] = field(default_factory=list[Variable])
    body: list[Instr | Label] = field(default_factory=list[Instr | Label])
    variables: dict[str, Variable] = field(default_factory=dict[str, Variable])
    registers: dict[str, Reg] = field(default_factory=dict[str, Reg])
    directives: dict[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
    branch_targets: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])

    @property
    def param_bytes(self) -> int:
        return max((p.offset + p.size for p in self.params), default=0)


class LaunchLooks(Protocol):
    """See Program."""

    def __call__(self, launch: Any, /) -> None: ...

    def is_compilers(self, finding: Any, /) -> bool: ...


@dataclass
class Program:
    """A PTX module. variables: its shared, global and const variables; text: its PTX. functions:
    the names of its device functions and kernels. isa: the `.version` that it declares, if any.
    looks: what looks at the report of each launch before anybody else does, as a compiler's host
    does to keep apart what is said of the compiler's code (`is_compilers`, of one finding).
    replicates: whether several warps may hold the same elements, of which one stores them, as
    Triton's layouts have it.
    translations: its kernels ready to run, by name and type of writer (translate.py).
    """

    target: str
    kernels: dict[str, Kernel]
    variables: dict[str, Variable]
    text: str = field(default="", repr=False)
    functions: tuple[str, ...] = ()
    isa: tuple[int, int] | None = None
    looks: LaunchLooks | None = field(default=None, repr=False, compare=False)
    replicates: bool = False
    translations: dict[tuple[object, ...], Any] = field(
        default_factory=dict[tuple[object, ...], Any], repr=False, compare=False
    )

    def static_smem(self, kernel: Kernel) -> int:
        """Bytes of static shared memory of a CTA of a kernel."""
        variables = (*kernel.variables.values(), *self.variables.values())
        return sum(v.size for v in variables if v.space == "shared")
