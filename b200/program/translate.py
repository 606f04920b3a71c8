"""Translates a parsed kernel into Python: one function for each basic block.

A block function is `b(w, R) -> next block`: `w` is the fragment of a warp that executes it
(b200/chip/fragment.py), `R` the warp's register file, a list. Uniform registers are Python ints and
their arithmetic is plain Python source; varying registers are numpy arrays of 32 unsigned bit
patterns; predicates are int masks in both cases. Values that live inside one block only are Python
locals. Every generated line remembers its instruction, so that an exception can be traced back to a
line of the kernel's source.
"""

from __future__ import annotations

from collections.abc import Callable

from b200.errors import Unsupported
from b200.hardware import SMEM_BASE
from b200.isa import grammar
from b200.program.analysis import Uniformity, build_blocks
from b200.program.meeting import Guarded, MeetingPlaces, guards_as_branches, places
from b200.program.module import Instr, Kernel, Program, Special
from b200.program.translated import Translated, located
from b200.program.writer import Writer


def translate(program: Program, kernel: Kernel, writer: type[Writer] | None = None) -> Translated:
    """Translate one kernel, once for all machines that need the same.

    writer: a subclass of the writer, for machines that need more in the generated code. The
    instruction set must have been registered (import b200.chip.instruction_set). Raises Unsupported
    naming the instruction and the line of the kernel.
    """
    key = kernel.name, writer
    if key not in program.translations:
        out = Translated(kernel, program)
        _check(out)
        _lay_out(out)
        made_by = writer or Writer
        info = out.info = _analyse(out, made_by)
        made_by(out, info).write()
        program.translations[key] = out
    return program.translations[key]


MakesAbreast = Callable[[Translated, Uniformity, Uniformity], Writer]  # a writer's class


def translate_abreast(code: Translated, ctas: int, writer: MakesAbreast) -> Translated:
    """The same kernel for warps of several CTAs (chip/abreast), block by block. Raises Unsupported
    for what is not modelled there.
    """
    assert code.info is not None
    key = code.kernel.name, writer, ctas
    if key not in code.program.translations:
        out = Translated(code.kernel, code.program, structure=code.structure, symbols=code.symbols)
        out.static_smem, out.local_bytes = code.static_smem, code.local_bytes
        out.info = Uniformity(code.kernel, code.structure, code.info.block_dim_1d, ctas)
        writer(out, out.info, code.info).write()
        code.program.translations[key] = out
    return code.program.translations[key]


READ_SPECIAL = ("mov", "cvt")  # instructions that take a special register as an operand


def _check(out: Translated) -> None:
    """Refuse what ptxas refuses of an instruction whose form there is: it is newer than its module,
    or has a special register for an operand.
    """
    isa = out.program.isa
    for ins in out.kernel.body:
        if not isinstance(ins, Instr):
            continue
        why = grammar.newer(ins.opcode, isa) if isa is not None else ""
        if not why and ins.mods[0] not in READ_SPECIAL:
            special = next((o for o in ins.operands if isinstance(o, Special)), None)
            why = f"%{special.name} is read by mov and cvt only" if special is not None else ""
        if why:
            with located(ins):
                raise Unsupported(f"{ins.opcode}: {why} (ptxas refuses it, too)")


def _analyse(out: Translated, writer: type[Writer]) -> Uniformity:
    """Cut the kernel into blocks; again where lanes turn out to come to an instruction in parts."""
    kernel = out.kernel
    reqntid = kernel.directives.get("reqntid") or kernel.directives.get("maxntid") or (0, 0, 0)
    one_d = tuple(reqntid[1:]) in ((1, 1), (1,), ())
    known = MeetingPlaces()
    made: dict[int, Guarded] = {}
    given = writer.body(kernel)
    while True:
        body = guards_as_branches(given, known.guarded, made)
        wait = known.wait | {made[key][1].key for key in known.guarded}
        alone = known.alone | {made[key][1].key for key in known.guarded & known.alone}
        out.structure = build_blocks(kernel, located, body, wait, alone)
        info = Uniformity(kernel, out.structure, one_d)
        found = places(out.structure, info)
        more = MeetingPlaces(*(old | new for old, new in zip(known, found, strict=True)))
        if more == known:
            return info
        known = more


def _lay_out(out: Translated) -> None:
    """Offsets of shared variables (static first, the dynamic array after) and of local ones."""
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
