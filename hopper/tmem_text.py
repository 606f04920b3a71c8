"""Rewrites tcgen05 instructions into calls of the device functions (PTX ISA 9.7.16)."""

from __future__ import annotations

from hopper.statements import Block, Statement, elements

CELL_BYTES, LANE_BYTES = 4, 2048  # of tensor memory in global memory: 512 columns a lane
COPY_SHAPES = {
    "128x256b": 0,
    "128x128b": 1,
    "64x128b.warpx2::02_13": 2,
    "64x128b.warpx2::01_23": 3,
    "32x128b.warpx4": 4,
    "4x256b": 5,
}
RELEASING_ARRIVE = "mbarrier.arrive.release.cluster.shared::cluster.b64"
RELAXED_ARRIVE = "mbarrier.arrive.relaxed.cluster.shared::cluster.b64"
LARGEST_CLUSTER = 16
LANE_SHAPES = ("32x32b", "16x64b", "16x128b", "16x256b", "16x32bx2")


def replace(s: Statement, block: Block) -> None:
    """Write what replaces a tcgen05 instruction. Raises HopperError if nothing can."""
    action = s.mods[1]
    if action in ("wait::ld", "wait::st", "relinquish_alloc_permit"):
        return
    writers = {
        "alloc": _alloc,
        "dealloc": _dealloc,
        "cp": _copy,
        "ld": _load,
        "st": _store,
        "mma": _mma,
        "commit": _commit,
        "fence::before_thread_sync": _fence,
        "fence::after_thread_sync": _fence,
    }
    if action not in writers:
        raise s.unsupported()
    writers[action](s, block)


def _group(s: Statement) -> int:
    return 2 if s.has("cta_group::2") else 1


def _fence(s: Statement, block: Block) -> None:
    block.emit("fence.acq_rel.cluster")


def _alloc(s: Statement, block: Block) -> None:
    address = block.shared(s, s.operands[0])
    block.call("hopper_alloc", ("b32", address), ("b32", s.operands[1]))


def _dealloc(s: Statement, block: Block) -> None:
    block.call("hopper_dealloc", ("b32", s.operands[0]), ("b32", s.operands[1]))


def _copy(s: Statement, block: Block) -> None:
    shape = next((code for name, code in COPY_SHAPES.items() if s.opcode.endswith(name)), None)
    if shape is None:
        raise s.unsupported()
    taddr = block.address(s.operands[0])
    block.call(
        "hopper_cp",
        ("b32", taddr),
        ("b64", s.operands[1]),
        ("b32", str(shape)),
        ("b32", str(_group(s))),
    )


def register_cells(shape: str, count: int) -> list[tuple[int, int]]:
    """(lane, column) of each register of a thread, relative to that of its register 0."""
    if shape in ("32x32b", "16x32bx2"):
        return [(0, i) for i in range(count)]
    if shape == "16x64b":
        return [(0, 2 * i) for i in range(count)]
    if shape == "16x128b":
        return [(8 * (i % 2), 4 * (i // 2)) for i in range(count)]
    return [(8 * (i // 2 % 2), 8 * (i // 4) + i % 2) for i in range(count)]


def _cells(s: Statement, block: Block, taddr: str, split: str, count: int, packed: bool):
    """The register with the address of register 0's cell, and the others' byte offsets."""
    shape = next((m for m in s.mods if m in LANE_SHAPES), None)
    if shape is None:
        raise s.unsupported()
    code = LANE_SHAPES.index(shape)
    base = block.call(
        "hopper_lane",
        ("b32", block.address(taddr)),
        ("b32", str(code)),
        ("b32", split),
        ("b32", str(int(packed))),
        result="b64",
    )
    step = 2 if packed else 1
    cells = register_cells(shape, count)
    return base, [lane * LANE_BYTES + column * step * CELL_BYTES for lane, column in cells]


def _load(s: Statement, block: Block) -> None:
    if s.has("red"):
        raise s.unsupported()
    packed = s.has("pack::16b")
    target, address, *rest = s.operands
    registers, split = elements(target), rest[0] if rest else "0"
    base, offsets = _cells(s, block, address, split, len(registers), packed)
    low, high = (block.register("b32") for _ in range(2)) if packed else ("", "")
    for register, offset in zip(registers, offsets, strict=True):
        if packed:
            block.emit(f"ld.relaxed.gpu.global.b32 {low}, [{base}+{offset}]")
            block.emit(f"ld.relaxed.gpu.global.b32 {high}, [{base}+{offset + CELL_BYTES}]")
            block.emit(f"prmt.b32 {register}, {low}, {high}, 0x5410")
        else:
            block.emit(f"ld.relaxed.gpu.global.b32 {register}, [{base}+{offset}]")


def _store(s: Statement, block: Block) -> None:
    packed = s.has("unpack::16b")
    address, *rest, source = s.operands
    registers, split = elements(source), rest[0] if rest else "0"
    base, offsets = _cells(s, block, address, split, len(registers), packed)
    part = block.register("b32") if packed else ""
    for register, offset in zip(registers, offsets, strict=True):
        if packed:
            block.emit(f"and.b32 {part}, {register}, 0xFFFF")
            block.emit(f"st.relaxed.gpu.global.b32 [{base}+{offset}], {part}")
            block.emit(f"shr.u32 {part}, {register}, 16")
            block.emit(f"st.relaxed.gpu.global.b32 [{base}+{offset + CELL_BYTES}], {part}")
        else:
            block.emit(f"st.relaxed.gpu.global.b32 [{base}+{offset}], {register}")


def _mma(s: Statement, block: Block) -> None:
    kind = next((m[6:] for m in s.mods if m.startswith("kind::")), "none")
    if kind not in ("mxf4", "mxf4nvf4") or s.has("sp"):
        raise s.unsupported("only dense kind::mxf4 and mxf4nvf4 are carried over to Hopper")
    d, a, b, idesc, sfa, sfb, enable = s.operands
    in_tmem = a.startswith("[")
    block32 = s.has("block32") or s.has("scale_vec::2X") or kind == "mxf4"
    flags = 2 * (_group(s) == 2) + 4 * block32 + 8 * in_tmem
    accumulate = block.flag(enable)
    block.emit(f"or.b32 {accumulate}, {accumulate}, {flags}")
    if in_tmem:
        a = block.made("cvt.u64.u32", block.address(a), kind="b64")
    block.call(
        "hopper_mma_fp4",
        ("b32", block.address(d)),
        ("b64", a),
        ("b64", b),
        ("b32", idesc),
        ("b32", block.address(sfa)),
        ("b32", block.address(sfb)),
        ("b32", accumulate),
    )


def _commit(s: Statement, block: Block) -> None:
    barrier = block.shared(s, s.operands[0])
    mask = block.as_32(s.operands[1]) if len(s.operands) > 1 else "0"
    block.call("hopper_commit", ("b32", barrier), ("b32", mask))


def leave_out(
    s: Statement, block: Block, cluster: int = LARGEST_CLUSTER, values: bool = False
) -> None:
    """Write what replaces a tcgen05 instruction if nothing is to be computed.

    Addresses are zero. Loaded values are zero; with `values` they are numbers that ptxas cannot
    know, so that it keeps the code of an epilogue. A commit arrives at those of `cluster` CTAs that
    its mask names.

    The arrive does not release. Nothing was read from the stage, so there is nothing to release,
    and a releasing arrive at another CTA costs the issuing thread about half a microsecond, where a
    commit of the tensor core costs nothing.
    """
    action = s.mods[1]
    if action == "alloc":
        block.emit(f"st.shared.b32 [{block.shared(s, s.operands[0])}], 0")
    elif action == "ld":
        seed = block.made("mov.u32", "%laneid") if values else ""
        for i, register in enumerate(elements(s.operands[0])):
            block.emit(f"xor.b32 {register}, {seed}, {i}" if values else f"mov.b32 {register}, 0")
    elif action == "commit":
        barrier = block.shared(s, s.operands[0])
        if len(s.operands) == 1:
            block.emit(f"{RELAXED_ARRIVE} _, [{barrier}]")
        else:
            _arrive_at_all(block, barrier, block.as_32(s.operands[1]), cluster)


def _arrive_at_all(block: Block, barrier: str, mask: str, cluster: int) -> None:
    """Arrive at the barrier of every CTA in the mask. A rank takes its thread 20 clk, in the mask
    or not (H200: the MMA warp of a cluster of 4 took 414 clk a stage for 16 ranks)."""
    bit, there, chosen = block.register("b32"), block.register("b32"), block.register("pred")
    for rank in range(cluster):
        block.emit(f"and.b32 {bit}, {mask}, {1 << rank}")
        block.emit(f"setp.ne.u32 {chosen}, {bit}, 0")
        block.emit(f"@{chosen} mapa.shared::cluster.u32 {there}, {barrier}, {rank}")
        block.emit(f"@{chosen} {RELAXED_ARRIVE} _, [{there}]")
