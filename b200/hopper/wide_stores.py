"""256-bit stores to global memory where stores are timed.

In two stores of 128 bits each sector is written in two halves, which costs an H200 2.9 times the
time of whole ones (docs/hopper.md), a B200 nothing. So neighbouring lanes exchange halves: the
first store writes the even lanes' sectors, the second the odd lanes'. Where not all lanes of the
warp take part, two halves it is.
"""

from __future__ import annotations

from collections.abc import Sequence

from b200.hopper.statements import Block

ALL = "0xffffffff"


def write(
    block: Block,
    opcode: str,
    address: str,
    values: Sequence[str],
    rest: Sequence[str],
    number: int,
) -> None:
    """opcode: of the 128-bit store, with `.v4.b32`. values: eight of 32 bits or four of 64. number:
    of the statement, for its labels.
    """
    base, words = block.address(address, "b64"), _words(block, values)
    all_, odd = block.register("pred"), block.register("pred")
    mask, lane = block.register("b32"), block.register("b32")
    block.emit(f"activemask.b32 {mask}")
    block.emit(f"setp.ne.u32 {all_}, {mask}, {ALL}")
    block.emit(f"@{all_} bra HOPPER_HALVES_{number}")
    block.emit(f"mov.u32 {lane}, %laneid")
    block.emit(f"and.b32 {lane}, {lane}, 1")
    block.emit(f"setp.ne.u32 {odd}, {lane}, 0")
    low, high = words[:4], words[4:]
    got = [_swapped(block, _choice(block, odd, a, b)) for a, b in zip(low, high, strict=True)]
    first = [_choice(block, odd, theirs, mine) for theirs, mine in zip(got, low, strict=True)]
    second = [_choice(block, odd, mine, theirs) for theirs, mine in zip(got, high, strict=True)]
    other, behind, others_end = (block.register("b64") for _ in range(3))
    parts = [block.register("b32") for _ in range(2)]
    block.emit(f"mov.b64 {{{', '.join(parts)}}}, {base}")
    block.emit(f"mov.b64 {other}, {{{', '.join(_swapped(block, part) for part in parts)}}}")
    block.emit(f"add.s64 {behind}, {base}, 16")
    block.emit(f"add.s64 {others_end}, {other}, 16")
    even_sector = _choice(block, odd, others_end, base, "b64")
    odd_sector = _choice(block, odd, behind, other, "b64")
    _store(block, opcode, even_sector, first, rest)
    _store(block, opcode, odd_sector, second, rest)
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


def _choice(block: Block, predicate: str, yes: str, no: str, kind: str = "b32") -> str:
    found = block.register(kind)
    block.emit(f"selp.{kind} {found}, {yes}, {no}, {predicate}")
    return found


def _swapped(block: Block, value: str) -> str:
    """The neighbouring lane's."""
    found = block.register("b32")
    block.emit(f"shfl.sync.bfly.b32 {found}, {value}, 1, 31, {ALL}")
    return found


def _store(block: Block, opcode: str, at: str, words: Sequence[str], rest: Sequence[str]) -> None:
    block.emit(", ".join([f"{opcode} [{at}]", f"{{{', '.join(words)}}}", *rest]))
