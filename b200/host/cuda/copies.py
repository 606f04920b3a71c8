"""What CUDA refuses of a copy or a fill: direction, freed memory, bytes behind an allocation."""

from __future__ import annotations

from enum import Enum

from b200.errors import Fault
from b200.host import refusals
from b200.host.cuda.modules import OF_THE_GPU, Modules
from b200.host.refusals import Refused, invalid


class Side(Enum):
    """Whose memory an address is in. ANY: both may use it, or it is not known whose it is."""

    HOST, GPU, ANY = "the host's", "the GPU's", ""


# cudaMemcpyKind -> its name, and whose memory it writes and reads; 4 is cudaMemcpyDefault
_KINDS = {
    0: ("cudaMemcpyHostToHost", Side.HOST, Side.HOST),
    1: ("cudaMemcpyHostToDevice", Side.GPU, Side.HOST),
    2: ("cudaMemcpyDeviceToHost", Side.HOST, Side.GPU),
    3: ("cudaMemcpyDeviceToDevice", Side.GPU, Side.GPU),
    4: ("cudaMemcpyDefault", Side.ANY, Side.ANY),
}


def check_copy(modules: Modules, to: int, source: int, nbytes: int, kind: int) -> None:
    """Refused where CUDA refuses a copy. kind: a cudaMemcpyKind."""
    if kind not in _KINDS:
        raise Refused(refusals.INVALID_DIRECTION, f"a copy of kind {kind}, expected 0 to 4")
    if not nbytes:
        return
    name, *sides = _KINDS[kind]
    for does, address, side in zip(("writes", "reads"), (to, source), sides, strict=True):
        _check_range(modules, does, address, nbytes)
        found = side_of(modules, address)
        if Side.ANY not in (side, found) and side != found:
            what = modules.name_at(address) or f"{address:#x}"
            raise invalid(
                f"a copy of {nbytes} bytes by {name} {does} {what}, which is {found.value} memory:"
                f" expected {side.value} (missing: another direction, or the other order of"
                " destination and source)"
            )


def check_fill(modules: Modules, to: int, nbytes: int) -> None:
    if not nbytes:
        return
    _check_range(modules, "writes", to, nbytes)
    if side_of(modules, to) is Side.HOST:
        raise invalid(
            f"a fill of {nbytes} bytes at {to:#x}, which is the host's memory: expected the GPU's"
        )


def side_of(modules: Modules, address: int) -> Side:
    """Whose memory an address is in. Only a program with a `main` has memory that is surely the
    host's: tensors of a torch extension are the CPU's memory on both sides.
    """
    reserved = modules.reserved_at(address)
    if reserved is not None:
        return Side.GPU if reserved.by in OF_THE_GPU else Side.ANY
    if modules.view is None or modules.region_at(address) is not None:
        return Side.ANY
    try:
        modules.gpu.memory.region(address)
    except Fault:
        return Side.HOST
    return Side.ANY


def _check_range(modules: Modules, does: str, address: int, nbytes: int) -> None:
    reserved = modules.reserved_at(address)
    if reserved is None:
        if freed := modules.freed_at(address):
            raise invalid(f"a copy or fill {does} {nbytes} bytes of {freed}")
        return
    behind = address + nbytes - reserved.first - reserved.size
    if behind > 0:
        raise invalid(
            f"a copy or fill {does} {nbytes} bytes from byte {address - reserved.first} of"
            f" {modules.name_at(address)} on: {behind} bytes behind its end"
        )
