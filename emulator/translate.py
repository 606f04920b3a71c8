"""A parsed kernel -> one Python function a basic block.

A block function is `b(w, R) -> next block`: `w` is the fragment of a warp that executes it
(machine.py), `R` the warp's register file, a list. Uniform registers are Python ints and their
arithmetic is plain Python source; varying registers are numpy arrays of 32 unsigned bit patterns;
predicates are int masks in both cases. Values that live inside one block only are Python locals.
Every generated line remembers its instruction, so that an exception can be traced back to a line of
the kernel's source.
"""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import dataclass, field

import numpy as np

from .analysis import EXIT, Block, Op, Uniformity, build_blocks, destination_count, is_broadcast
from .errors import Fault, Unsupported
from .isa.decode import INLINE_NAMES
from .program import TYPE_BITS, Addr, Imm, Instr, Kernel, Not, Program, Reg, Special, Sym, Vec
from .registry import DTYPES, FULL, TABLE, active, as_bools, as_mask
from .state import SMEM_BASE


def merge(old, new, mask: int):
    """`new` in the lanes of `mask`, `old` in the others."""
    return np.where(as_bools(mask), new, old)


def full(value: int, dtype):
    return np.full(32, value, dtype)


def to_varying(value, dtype):
    """A result as an array of 32."""
    if isinstance(value, np.ndarray):
        return value if value.dtype == dtype else value.astype(dtype)
    return np.full(32, value, dtype)


def to_uniform(value, mask: int):
    """A result as an int: the value of the lowest active lane."""
    if isinstance(value, np.ndarray):
        return int(value[(mask & -mask).bit_length() - 1])
    return value


@dataclass
class Translated:
    """A kernel ready to run.

    blocks: the functions. counts: instructions in each block. lines: generated line -> instruction.
    initial: the register file at the start of a warp. static_smem: bytes of static shared memory.
    """

    kernel: Kernel
    program: Program
    blocks: list = field(default_factory=list)
    structure: list[Block] = field(default_factory=list)
    lines: dict[int, Instr] = field(default_factory=dict)
    initial: list = field(default_factory=list)
    symbols: dict[str, int] = field(default_factory=dict)
    static_smem: int = 0
    local_bytes: int = 0
    source: str = ""


@contextlib.contextmanager
def _located(ins: Instr):
    try:
        yield
    except Fault as fault:
        where = f"{ins.loc}: " if ins.loc else ""
        raise type(fault)(f"{where}{fault} (PTX: {ins.text})") from None


def translate(program: Program, kernel: Kernel, writer: type | None = None) -> Translated:
    """Translate one kernel; raises Unsupported naming the instruction and the line of the kernel.

    writer: a subclass of the writer, for machines that need more in the generated code.
    """
    from . import isa  # noqa: F401  registers every unit

    out = Translated(kernel, program)
    _lay_out(out)
    out.structure = build_blocks(kernel, _located)
    reqntid = kernel.directives.get("reqntid") or kernel.directives.get("maxntid") or (0, 0, 0)
    one_d = tuple(reqntid[1:]) in ((1, 1), (1,), ())
    (writer or _Writer)(out, Uniformity(kernel, out.structure, one_d)).write()
    return out


def _lay_out(out: Translated):
    """Offsets of shared variables (static first, the dynamic array behind) and of local ones."""
    shared, local = SMEM_BASE, 0
    variables = [*out.program.variables.values(), *out.kernel.variables.values()]
    for v in sorted((v for v in variables if v.space == "shared"), key=lambda v: v.size == 0):
        shared = -(-shared // v.align) * v.align
        out.symbols[v.name] = shared
        shared += v.size
    for v in variables:
        if v.space == "local":
            local = -(-local // v.align) * v.align
            out.symbols[v.name] = local
            local += v.size
        elif v.space == "param":
            out.symbols[v.name] = v.offset
    out.static_smem, out.local_bytes = shared - SMEM_BASE, local


class _Writer:
    """Writes the Python source of one kernel."""

    def __init__(self, out: Translated, info: Uniformity):
        self.out, self.info = out, info
        self.names = itertools.count()
        self.text: list[str] = []
        helpers = (as_bools, as_mask, merge, full, to_varying, to_uniform, active)
        self.space = {"np": np, "FULL": FULL, "EXIT": EXIT}
        self.space.update({helper.__name__: helper for helper in helpers})

    def write(self):
        for block in self.out.structure:
            self._block(block)
        self.out.source = "\n".join(self.text)
        self.space.update(INLINE_NAMES)
        exec(compile(self.out.source, f"<{self.out.kernel.name}>", "exec"), self.space)
        self.out.blocks = [self.space[f"b{b.index}"] for b in self.out.structure]
        zeros = {width: np.zeros(32, dtype) for width, dtype in DTYPES.items()}
        for array in zeros.values():
            array.flags.writeable = False
        for name, reg in self.out.kernel.registers.items():
            varying = self.info.varying >> self.info.id[name] & 1 and reg.type not in (
                "pred",
                "b128",
            )
            self.out.initial.append(zeros[TYPE_BITS[reg.type]] if varying else 0)

    # --- names and lines
    # ------------------------------------------------------------------------------------
    def _line(self, text: str, ins: Instr | None = None, indent: int = 1):
        self.text.append("    " * indent + text)
        if ins is not None:
            self.out.lines[len(self.text)] = ins

    def _constant(self, value) -> str:
        name = f"k{next(self.names)}"
        self.space[name] = value
        return name

    def _reg(self, reg: Reg) -> str:
        return f"r{self.info.id[reg.name]}"

    def _varying(self, reg: Reg) -> bool:
        return self.info.is_varying(reg)

    # --- blocks
    # ---------------------------------------------------------------------------------------------
    def _block(self, block: Block):
        self.text.append(f"def b{block.index}(w, R):")
        self._line("m = w.mask")
        defined: set[str] = set()
        loads: dict[str, Reg] = {}
        for op in block.ops:
            for reg in op.srcs:
                if reg.name not in defined:
                    loads.setdefault(reg.name, reg)
            defined.update(r.name for r in op.dsts)
        for reg in loads.values():
            self._line(f"{self._reg(reg)} = R[{self.info.id[reg.name]}]")
        last = block.ops[-1]
        body = block.ops if last.entry is not None else block.ops[:-1]
        for op in body:
            with _located(op.ins):
                self._op(op)
        self._stores(block, body)
        if last.entry is None:
            self._branch(block, last)
        else:
            self._line(f"return {block.successors[0]}")

    def _stores(self, block: Block, body: list[Op]):
        live = self.info.live_out[block.index]
        written = {r.name: r for op in body for r in op.dsts}
        for reg in written.values():
            i = self.info.id[reg.name]
            if not live >> i & 1:
                continue
            name = self._reg(reg)
            if self._varying(reg) and self.info.needs_merge(reg):
                kept = (
                    f"R[{i}] & ~m | {name} & m"
                    if reg.type == "pred"
                    else f"merge(R[{i}], {name}, m)"
                )
                self._line(f"R[{i}] = {name} if m == FULL else {kept}")
            else:
                self._line(f"R[{i}] = {name}")

    def _branch(self, block: Block, op: Op):
        ins = op.ins
        after = block.index + 1 if block.index + 1 < len(self.out.structure) else EXIT
        if ins.mods[0] == "brx":
            return self._indexed_branch(block, ins)
        if ins.mods[0] == "trap":
            self._line("w.trap()", ins)
        target = block.targets[ins.operands[0].name] if ins.mods[0] == "bra" else EXIT
        if ins.pred is None:
            self._line(f"return {target}", ins)
            return
        pred = self._reg(ins.pred)
        if not self._varying(ins.pred):
            yes, no = (after, target) if ins.negated else (target, after)
            self._line(f"return {yes} if {pred} else {no}", ins)
            return
        self._line(f"g = m & {'~' if ins.negated else ''}{pred}", ins)
        self._line(f"if g == m: return {target}")
        self._line(f"if not g: return {after}")
        self._line(f"return w.split(g, {target}, {after}, {self.info.ipdom[block.index]})", ins)

    def _indexed_branch(self, block: Block, ins: Instr):
        index = ins.operands[0]
        if ins.pred is not None or self._varying(index):
            raise Unsupported("brx.idx with a guard or an index that differs between lanes")
        targets = tuple(
            block.targets[n] for n in self.out.kernel.branch_targets[ins.operands[1].name]
        )
        self._line(f"return {targets!r}[{self._reg(index)}]", ins)

    # --- instructions
    # ---------------------------------------------------------------------------------------
    def _op(self, op: Op):
        ins = op.ins
        if is_broadcast(ins):
            self._broadcast(op)
        elif self.info.is_warp_index(op):
            dst, src = ins.operands[0], ins.operands[1]
            value = f"int({self._reg(src)}[0])" if self._varying(src) else self._reg(src)
            self._line(f"{self._reg(dst)} = {value} >> {ins.operands[2].value}", ins)
        elif (
            ins.mods[0] == "ld"
            and ins.has("param", "param::entry")
            and isinstance(ins.operands[1].base, Sym)
        ):
            self._load_param(op)
        elif op.entry.style == "pure":
            self._pure(op)
        else:
            self._stateful(op)

    def _broadcast(self, op: Op):
        dst, src, lane = op.ins.operands[:3]
        code, varying = self._operand(src, 32)
        value = f"int({code}[{lane.value}])" if varying else code
        if self._varying(dst):
            value = f"full({value}, np.uint32)"
        self._line(f"{self._reg(dst)} = {value}", op.ins)

    def _load_param(self, op: Op):
        ins = op.ins
        kind = next(m for m in reversed(ins.mods) if m in TYPE_BITS)
        address = ins.operands[1]
        at = self.out.symbols[address.base.name] + address.offset
        dst = ins.operands[0]
        for i, reg in enumerate(dst.items if isinstance(dst, Vec) else (dst,)):
            n = TYPE_BITS[kind] // 8
            if reg is not None:
                start = at + i * n
                value = (
                    f"int.from_bytes(w.params[{start}:{start + n}], 'little',"
                    f" signed={kind[0] == 's'})"
                )
                self._assign(op, reg, f"{value} & {(1 << TYPE_BITS[reg.type]) - 1:#x}", False, None)

    def _guard(self, op: Op) -> tuple[str, bool | None]:
        """Code of the mask of lanes that execute, and whether the guard varies (None: no guard)."""
        ins = op.ins
        if ins.pred is None:
            return "m", None
        inverse = "~" if ins.negated else ""
        return f"(m & {inverse}{self._reg(ins.pred)})", self._varying(ins.pred)

    def _assign(self, op: Op, reg: Reg, code: str, varying: bool, kind: str | None):
        """Write a value to a register: widen it, broadcast it, keep the lanes a guard excludes."""
        ins, name = op.ins, self._reg(reg)
        if (
            kind is not None
            and kind != "pred"
            and reg.type != "pred"
            and TYPE_BITS[kind] != TYPE_BITS[reg.type]
        ):
            code = self._resize(code, varying, kind, TYPE_BITS[reg.type])
        if self._varying(reg) and not varying and reg.type != "pred":
            code = f"full({code}, np.uint{TYPE_BITS[reg.type]})"
        mask, guard_varies = self._guard(op)
        if guard_varies is None:
            self._line(f"{name} = {code}", ins)
        elif not self._varying(reg):
            self._line(f"if {mask}: {name} = {code}", ins)
        elif reg.type == "pred":
            self._line(f"g = {mask}; {name} = {name} & ~g | ({code}) & g", ins)
        else:
            self._line(f"{name} = merge({name}, {code}, {mask})", ins)

    @staticmethod
    def _resize(code: str, varying: bool, kind: str, width: int) -> str:
        """A value of PTX type `kind` in a register of `width` bits (sign-extended if the type is
        signed).
        """
        have = TYPE_BITS[kind]
        if varying:
            if kind[0] == "s" and width > have:
                return f"({code}).view(np.int{have}).astype(np.int{width}).view(np.uint{width})"
            return f"({code}).astype(np.uint{width})"
        if kind[0] == "s" and width > have:
            return f"((({code}) ^ {1 << have - 1:#x}) - {1 << have - 1:#x}) & {(1 << width) - 1:#x}"
        return f"({code}) & {(1 << width) - 1:#x}"

    # --- operands
    # -------------------------------------------------------------------------------------------
    def _operand(self, operand, width: int | None) -> tuple[str, bool]:
        """(source code, varies) of a source operand, as bit pattern of `width` bits where given."""
        if operand is None:
            return "None", False
        if isinstance(operand, Imm):
            return (
                hex(operand.value & ((1 << width) - 1)) if width else repr(operand.value)
            ), False
        if isinstance(operand, Reg):
            varying, code = self._varying(operand), self._reg(operand)
            if width and operand.type != "pred" and TYPE_BITS[operand.type] != width:
                small = width < TYPE_BITS[operand.type]
                if varying:
                    code = f"{code}.astype(np.uint{width})"
                elif small:
                    code = f"({code} & {(1 << width) - 1:#x})"
            return code, varying
        if isinstance(operand, Special):
            return f"w.special[{operand.name!r}]", self.info.operand_varies(operand)
        if isinstance(operand, Sym):
            return self._symbol(operand.name), False
        if isinstance(operand, Addr):
            return self._address(operand)
        if isinstance(operand, Not):
            return f"(FULL & ~{self._reg(operand.reg)})", self._varying(operand.reg)
        raise Unsupported(f"operand {operand}")

    def _symbol(self, name: str) -> str:
        variable = self.out.kernel.variables.get(name) or self.out.program.variables.get(name)
        if variable is None:
            raise Unsupported(f"symbol {name} is not a variable of the program")
        if variable.space == "shared":
            return f"(w.rank_bits | {self.out.symbols[name]})"
        if variable.space in ("global", "const"):
            return f"w.symbols[{name!r}]"
        return str(self.out.symbols[name])

    def _address(self, address: Addr) -> tuple[str, bool]:
        code, varying = self._operand(address.base, None)
        if address.offset:
            code = f"({code} {'+' if address.offset > 0 else '-'} {abs(address.offset)})"
        return code, varying

    def _array(self, code: str, varying: bool, width: int) -> str:
        if varying:
            return code
        if code.startswith("0x"):
            return self._constant(np.full(32, int(code, 16), DTYPES[width]))
        return f"full({code}, np.uint{width})"

    # --- pure instructions
    # ----------------------------------------------------------------------------------
    def _pure(self, op: Op):
        ins, made = op.ins, op.made
        dsts = (
            list(ins.operands[0].items) if isinstance(ins.operands[0], Vec) else [ins.operands[0]]
        )
        srcs = []
        for operand in ins.operands[1:]:
            srcs.extend(operand.items if isinstance(operand, Vec) else (operand,))
        args = []
        for operand, kind in zip(srcs, made.ins, strict=True):
            if kind == "pred" and isinstance(operand, Imm):
                args.append(("FULL" if operand.value else "0", False, kind))
            else:
                args.append((*self._operand(operand, TYPE_BITS.get(kind)), kind))
        any_varying = any(v for _, v, _ in args)
        has_scalar = made.expr is not None or made.scalar is not None
        if not any_varying and has_scalar:
            code = (
                made.expr.format(*(c for c, _, _ in args))
                if made.expr is not None
                else self._call(made.scalar, args)
            )
        elif made.vexpr is not None and any(v and k != "pred" for _, v, k in args):
            code = made.vexpr.format(*(c for c, _, _ in args))
        elif made.vector is not None:
            arrays = [
                (c if k == "pred" else self._array(c, v, TYPE_BITS[k]), v, k) for c, v, k in args
            ]
            code = self._call(made.vector, arrays)
        elif made.expr is not None:  # predicate logic: masks either way
            code = made.expr.format(*(c for c, _, _ in args))
        else:
            raise Unsupported("this form on values that differ between lanes")
        varying = any_varying or not has_scalar
        if len(dsts) == 1 and len(made.outs) == 1:
            if dsts[0] is not None:
                self._assign(op, dsts[0], code, varying, made.outs[0])
            return
        self._line(f"t = {code}", ins)
        for i, (reg, kind) in enumerate(zip(dsts, made.outs, strict=True)):
            if reg is not None:
                self._assign(op, reg, f"t[{i}]", varying, kind)

    def _call(self, function, args) -> str:
        return f"{self._constant(function)}({', '.join(a[0] for a in args)})"

    # --- lane and warp instructions
    # -------------------------------------------------------------------------
    def _stateful(self, op: Op):
        ins, entry = op.ins, op.entry
        n = destination_count(ins, entry, op.made)
        args, any_varying = [], False
        for operand in ins.operands[n:]:
            code, varying = self._argument(operand, entry.style)
            args.extend(code)
            any_varying |= varying
        mask, guard = self._guard(op)
        run = self._constant(op.made)
        if entry.style == "warp":
            call = f"{run}(w, {'g' if guard is not None else 'm'}, {', '.join(args)})"
        else:
            call = f"{run}(w, i, {', '.join(args)})"
        dsts = []
        for operand in ins.operands[:n]:
            dsts.extend(operand.items if isinstance(operand, Vec) else (operand,))
        used = [i for i, d in enumerate(dsts) if d is not None and self._is_read(d)]
        indent = 1
        if guard is not None:
            self._line(f"g = {mask}")
            self._line("if g:", ins)
            indent = 2
        active_mask = "g" if guard is not None else "m"
        if entry.style == "warp":
            self._line(f"t = {call}" if used else call, ins, indent)
            for i in used:
                self._result(
                    op, dsts[i], f"t[{i}]" if self._is_tuple(ins, n) else "t", active_mask, indent
                )
        elif not used:
            self._line(f"for i in active({active_mask}): {call}", ins, indent)
        else:
            self._lane_results(op, dsts, used, call, active_mask, indent)

    @staticmethod
    def _is_tuple(ins: Instr, n: int) -> bool:
        return n > 1 or ins.dual or isinstance(ins.operands[0], Vec)

    def _is_read(self, reg: Reg) -> bool:
        if not hasattr(self, "_read"):
            self._read = {r.name for b in self.out.structure for op in b.ops for r in op.srcs}
        return reg.name in self._read

    def _result(self, op: Op, reg: Reg, code: str, mask: str, indent: int):
        name = self._reg(reg)
        if reg.type == "pred":
            kept = op.ins.pred is not None and self._varying(reg)
            self._line(
                f"{name} = {name} & ~g | {code} & g" if kept else f"{name} = {code}", op.ins, indent
            )
        elif self._varying(reg):
            value = f"to_varying({code}, np.uint{TYPE_BITS[reg.type]})"
            kept = f"merge({name}, {value}, g)" if op.ins.pred is not None else value
            self._line(f"{name} = {kept}", op.ins, indent)
        elif reg.type == "b128":
            self._line(f"{name} = {code}", op.ins, indent)
        else:
            self._line(f"{name} = to_uniform({code}, {mask})", op.ins, indent)

    def _lane_results(self, op: Op, dsts, used, call: str, mask: str, indent: int):
        """Results of an instruction executed lane by lane."""
        ins = op.ins
        for i in used:
            if self._varying(dsts[i]):
                name = self._reg(dsts[i])
                if dsts[i].type == "pred":
                    start = name if ins.pred is not None else "0"
                elif ins.pred is not None:
                    start = f"{name}.copy()"
                else:
                    start = f"np.zeros(32, np.uint{TYPE_BITS[dsts[i].type]})"
                self._line(f"{name} = {start}", ins, indent)
        self._line(f"for i in active({mask}):", ins, indent)
        self._line(f"t = {call}", ins, indent + 1)
        for i in used:
            reg, name = dsts[i], self._reg(dsts[i])
            code = f"t[{i}]" if self._is_tuple(ins, 1) else "t"
            if reg.type == "pred":
                text = f"{name} = FULL if {code} else 0"
                if self._varying(reg):
                    text = f"{name} = {name} & ~(1 << i) | (({code} != 0) << i)"
                self._line(text, ins, indent + 1)
            else:
                self._line(
                    f"{name}[i] = {code}" if self._varying(reg) else f"{name} = {code}",
                    ins,
                    indent + 1,
                )

    def _argument(self, operand, style: str) -> tuple[list[str], bool]:
        """Code of the argument(s) an operand stands for in a lane or warp call."""
        if isinstance(operand, Vec):
            parts = [self._argument(o, style) for o in operand.items]
            return [f"({', '.join(c for p, _ in parts for c in p)},)"], any(v for _, v in parts)
        if isinstance(operand, Addr) and operand.coords:
            first, varying = self._argument(Addr(operand.base, operand.offset), style)
            second, v2 = self._argument(Vec(operand.coords), style)
            return first + second, varying or v2
        code, varying = self._operand(operand, None)
        predicate = isinstance(operand, Not) or (
            isinstance(operand, Reg) and operand.type == "pred"
        )
        if style == "lane" and predicate:
            code = f"({code} >> i & 1 != 0)"
        elif style == "lane" and varying:
            code = f"int({code}[i])"
        return [code], varying


def known_mnemonics() -> list[str]:
    """Every opcode prefix the emulator executes, for the documentation and the tests."""
    from . import isa  # noqa: F401

    return sorted(".".join(key) for key in TABLE)
