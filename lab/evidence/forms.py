"""The forms of a launch: what of it a chip has to do as we believe, each in one line of text.

A form is `KIND: TEXT`. The kinds are

    instruction   the opcode with all modifiers, of every instruction of the PTX
    matrix        a shared-memory matrix descriptor: what reads it, swizzle and strides
    mma           an instruction descriptor: shape, types; where in an atom the scales start
    tensormap     element type, box, swizzle, fill and hints
    launch        directives of the kernel, attributes and sizes of the launch

Nothing here knows a submission. Two kernels with the same forms ask the same of the chip, but for
the order in which they ask it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping

from b200.chip.copies import tensormap
from b200.chip.copies.tensormap import TensorMap, get_field
from b200.chip.launch import Launch
from b200.chip.operations import Mma, Operation, TmemCopy
from b200.chip.tensor.descriptors import MatrixDescriptor
from b200.chip.tensor.mma_operands import TensorOperand
from b200.hardware import SMEM_BYTES, SMEM_RESERVED
from b200.program.module import Instr, Kernel
from hopper.byte_tensormaps import maps_in

EARLIER_PARAMETERS = 4096  # bytes, before sm_70 and CUDA 12.1 made them more
SWIZZLES = {0: "no swizzle", 1: "128B swizzle of 32B atoms", 2: "128B swizzle", 4: "64B", 6: "32B"}
# Hints in the second word of a tensormap, that only the DSL's own encoder sets (first bit, width).
L2_PROMOTION, HINT_1 = (81, 2), (65, 1)
# Launch attributes by number (cudaLaunchAttributeID).
ATTRIBUTES = {
    1: "access policy window",
    2: "cooperative",
    4: "cluster dimension",
    5: "cluster scheduling policy",
    6: "programmatic serialization of launches",
    8: "priority",
    11: "preferred cluster dimension",
}


def instructions(kernel: Kernel) -> Iterator[str]:
    """The instruction forms of a kernel."""
    for item in kernel.body:
        if isinstance(item, Instr):
            yield f"instruction: {item.opcode}"


def operation(issued: Operation) -> Iterator[str]:
    """The descriptors of an operation of the tensor core."""
    if isinstance(issued, TmemCopy):
        yield f"matrix: of tcgen05.cp, {_matrix(issued.matrix)}"
    if isinstance(issued, Mma):
        mma, d = issued.mma, issued.mma.d
        for operand in (mma.a, mma.b):
            if isinstance(operand, TensorOperand):
                yield "matrix: of tcgen05.mma, A in tensor memory"
            else:
                major = "MN" if operand.mn_major else "K"
                yield f"matrix: of tcgen05.mma, {major}-major, {_matrix(operand.matrix)}"
        scales = f"scales {d.sf_type}, ids {d.sfa_id} and {d.sfb_id}"
        yield f"mma: M {d.m}, N {d.n}, {d.a_type} x {d.b_type}, {scales}"
        if mma.sfa is not None and mma.sfb is not None:
            yield f"mma: scales of A {mma.sfa.column % 4} columns into an atom"
            atoms = 1 if d.n <= 128 else 2
            yield f"mma: scales of B {mma.sfb.column % 4} columns into the first of {atoms} atoms"


def _matrix(found: MatrixDescriptor) -> str:
    swizzle = SWIZZLES[found.mode]
    strides = f"leading offset {found.lbo}, stride offset {found.sbo}"
    return f"{swizzle}, {strides}, base offset {found.base_offset}"


def tensormaps(kernel: Kernel, params: bytes) -> Iterator[str]:
    """The kinds of tensormaps among the parameters of a launch."""
    for at in maps_in(params, [(p.offset, p.size, p.align) for p in kernel.params]):
        raw = params[at : at + tensormap.BYTES]
        yield f"tensormap: {_map(tensormap.decode(raw), int.from_bytes(raw, 'little'))}"


def _map(found: TensorMap, bits: int) -> str:
    box = " x ".join(map(str, found.box))
    steps = "" if set(found.steps) <= {1} else f", steps {found.steps}"
    swizzle = f"{tensormap.SPANS[found.swizzle]}B swizzle" if found.swizzle else "no swizzle"
    fill = "NaN" if found.fill_nan else "zero"
    promotion = (0, 64, 128, 256)[get_field(bits, L2_PROMOTION)]
    hint = get_field(bits, HINT_1)  # bit 21 says whether the tensor has 128 KB or more
    parts = (f"{found.element.name}, box {box}{steps}, {swizzle}, {fill} fill",)
    return ", ".join((*parts, f"L2 promotion {promotion}B, hint {hint}"))


def launch(
    kernel: Kernel, done: Launch, params: bytes, attributes: Mapping[int, bytes]
) -> Iterator[str]:
    """Directives of the kernel, attributes and sizes of the launch."""
    for name, values in kernel.directives.items():
        shown = "" if name == "reqntid" else " " + " ".join(map(str, values))
        yield f"launch: directive .{name}{shown}".rstrip()
    for number, value in attributes.items():
        name = ATTRIBUTES.get(number, f"number {number}")
        set_to = struct.unpack_from("<i", value)[0]  # after a number is whatever was in memory
        yield f"launch: attribute {name}" + ("" if set_to else ", zero")
    yield f"launch: {done.block[0]} threads"
    yield f"launch: cluster of {done.cluster[0]}"
    resident = SMEM_BYTES // (done.smem_bytes + SMEM_RESERVED)
    yield f"launch: shared memory of {min(resident, 4)} CTAs an SM"
    more = "over" if len(params) > EARLIER_PARAMETERS else "at most"
    yield f"launch: {more} {EARLIER_PARAMETERS} bytes of parameters"
