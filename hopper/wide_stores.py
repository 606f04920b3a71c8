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
    all_, odd = block.register("pred"), block.register("pred")
    mask, lane, half = (block.register("b32") for _ in range(3))
    block.emit(f"activemask.b32 {mask}")
    block.emit(f"setp.ne.u32 {all_}, {mask}, {ALL}")
    block.emit(f"@{all_} bra HOPPER_HALVES_{number}")
    block.emit(f"mov.u32 {lane}, %laneid")
    block.emit(f"and.b32 {half}, {lane}, 1")
    block.emit(f"setp.ne.u32 {odd}, {half}, 0")
    block.emit(f"shr.u32 {lane}, {lane}, 1")
    low, high = words[:4], words[4:]
    for _ in range(2):
        theirs = [
            _choice(block, odd, _of(block, lane, b), _of(block, lane, a))
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


def _choice(block: Block, predicate: str, yes: str, no: str) -> str:
    found = block.register("b32")
    block.emit(f"selp.b32 {found}, {yes}, {no}, {predicate}")
    return found


def _of(block: Block, lane: str, value: str) -> str:
    """Another lane's value."""
    found = block.register("b32")
    block.emit(f"shfl.sync.idx.b32 {found}, {value}, {lane}, 31, {ALL}")
    return found


def _address_of(block: Block, lane: str, base: str, half: str) -> str:
    """The address of the first or the second half of another lane's sector."""
    parts = [block.register("b32") for _ in range(2)]
    place = block.register("b64")
    block.emit(f"mov.b64 {{{', '.join(parts)}}}, {base}")
    block.emit(f"mov.b64 {place}, {{{', '.join(_of(block, lane, part) for part in parts)}}}")
    behind = block.register("b64")
    block.emit(f"mul.wide.u32 {behind}, {half}, 16")
    block.emit(f"add.s64 {place}, {place}, {behind}")
    return place


def _store(block: Block, opcode: str, at: str, words: Sequence[str], rest: Sequence[str]) -> None:
    block.emit(", ".join([f"{opcode} [{at}]", f"{{{', '.join(words)}}}", *rest]))
