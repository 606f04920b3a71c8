"""256-bit stores to global memory, for runs that time stores.

Hopper needs two stores of 128 bits. If each store writes half of every sector, an H200 takes 2.9
times as long as for whole sectors (docs/lab/hopper.md); a B200 loses nothing. So lanes exchange
halves: the first store writes the sectors of lanes 0 to 15, the second those of lanes 16 to 31,
with two lanes for a sector. Sectors that follow one another stay together. If not all lanes of the
warp take part, each store writes half of every sector.
"""

from __future__ import annotations

from collections.abc import Sequence

from hopper.statements import Block

ALL = "0xffffffff"


def write(
    block: Block,
    opcode: str,
    address: str,
    values: Sequence[str],
    rest: Sequence[str],
    number: int,
) -> None:
    """Write the two stores. opcode: of the 128-bit store, with `.v4.b32`. values: eight operands of
    32 bits or four of 64. number: of the statement, for its labels.
    """
    base, words = block.address(address, "b64"), _words(block, values)
    some = block.made("setp.ne.u32", block.made("activemask.b32"), ALL, kind="pred")
    block.emit(f"@{some} bra HOPPER_HALVES_{number}")
    lane = block.made("mov.u32", "%laneid")
    half = block.made("and.b32", lane, 1)
    odd = block.made("setp.ne.u32", half, 0, kind="pred")
    block.emit(f"shr.u32 {lane}, {lane}, 1")
    low, high = words[:4], words[4:]
    for _ in range(2):
        theirs = [
            block.made("selp.b32", _of(block, lane, b), _of(block, lane, a), odd)
            for a, b in zip(low, high, strict=True)
        ]
        _store(block, opcode, _address_of(block, lane, base, half), theirs, rest)
        block.emit(f"add.u32 {lane}, {lane}, 16")
    block.emit(f"bra HOPPER_STORED_{number}")
    block.lines.append(f"HOPPER_HALVES_{number}:")
    _store(block, opcode, base, low, rest)
    _store(block, opcode, f"{base}+16", high, rest)
    block.lines.append(f"HOPPER_STORED_{number}:")


def _words(block: Block, values: Sequence[str]) -> list[str]:
    """The 256 bits as eight registers."""
    words = [block.register("b32") for _ in range(8)]
    for i, value in enumerate(values):
        if len(values) == 8:
            block.emit(f"mov.b32 {words[i]}, {value}")
        else:
            block.emit(f"mov.b64 {{{words[2 * i]}, {words[2 * i + 1]}}}, {value}")
    return words


def _of(block: Block, lane: str, value: str) -> str:
    """Another lane's value."""
    return block.made("shfl.sync.idx.b32", value, lane, 31, ALL)


def _address_of(block: Block, lane: str, base: str, half: str) -> str:
    """The address of the first or the second half of another lane's sector."""
    parts = [block.register("b32") for _ in range(2)]
    block.emit(f"mov.b64 {{{', '.join(parts)}}}, {base}")
    theirs = f"{{{', '.join(_of(block, lane, part) for part in parts)}}}"
    place = block.made("mov.b64", theirs, kind="b64")
    behind = block.made("mul.wide.u32", half, 16, kind="b64")
    return block.made("add.s64", place, behind, kind="b64")


def _store(block: Block, opcode: str, at: str, words: Sequence[str], rest: Sequence[str]) -> None:
    block.emit(", ".join([f"{opcode} [{at}]", f"{{{', '.join(words)}}}", *rest]))
