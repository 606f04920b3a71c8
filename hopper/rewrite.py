"""Rewrites PTX that was compiled for sm_100a into PTX for sm_90a.

Everything that Hopper has stays as it is. The rest is replaced:

    tcgen05               calls of the device functions (device/), by the thread or warp that would
                          issue the instruction
    TMA                   coordinate 0 is halved where the tensormap is marked as one of 4-bit
                          elements (byte_tensormaps.py); `.cta_group::1` is dropped; a load with
                          `.cta_group::2` goes through a barrier of ours (device/barriers.cu)
    f32x2 arithmetic      two f32 operations
    256-bit ld and st     two of 128 bits
    3-operand min, max    two of two operands
    clusterlaunchcontrol  every request is refused: the whole grid is launched anyway
    setmaxnreg            dropped; it changes no result
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from hopper import pair_loads, tmem_text, wide_stores
from hopper.byte_tensormaps import MARK, MARK_OFFSET, LaunchFacts
from hopper.errors import HopperError
from hopper.parameter_flow import parameters_behind
from hopper.statements import (
    Block,
    Statement,
    closing,
    elements,
    finder,
    statement,
    without_comments,
)

TARGET = "sm_90a"
LARGEST_CLUSTER = tmem_text.LARGEST_CLUSTER
NO_MAPS: Mapping[str, bool] = {}
Writer = Callable[[Statement, Block], None]  # writes what takes the place of an instruction
PRIVATE_BYTES = pair_loads.BEHIND  # of shared memory; as in device/barriers.cu


@dataclass(frozen=True)
class Retargeted:
    """A PTX module for sm_90a.

    tmem: whether it needs tensor memory in global memory. private_bytes: dynamic shared memory to
    add to what the kernel asks for. edits_maps: whether it changes dimensions of tensormaps on the
    device; this goes wrong for maps of 4-bit elements.
    """

    text: str
    tmem: bool
    private_bytes: int
    edits_maps: bool

    def smem(self, asked: int) -> int:
        """Bytes of dynamic shared memory to launch with, if the kernel asks for `asked` bytes."""
        return -(-asked // 8) * 8 + self.private_bytes if self.private_bytes else asked


def retarget(
    text: str,
    device: str,
    tcgen05: Writer = tmem_text.replace,
    four_bit: Mapping[str, bool] = NO_MAPS,
    facts: LaunchFacts | None = None,
    whole_sectors: bool = False,
) -> Retargeted:
    """Rewrite a PTX module and add the device functions (PTX for sm_90a). Raises HopperError.

    tcgen05: a function that writes what replaces these instructions. four_bit: parameter that is a
    tensormap -> whether of 4-bit elements. facts: those of the launch of the module's one kernel.
    With them, loads for the other CTA of a pair do not wait (pair_loads.py), and a copy whose map
    is not known from `four_bit` looks up the kind of the map in the facts; without them it loads
    the map's mark. whole_sectors: 256-bit stores write a sector at once (wide_stores.py).
    """
    text = without_comments(text).replace("\0", "")
    if not re.search(r"\.target\s+sm_10[03][af]?\b", text):
        target = re.search(r"\.target\s+(\S+)", text)
        raise HopperError(
            "unsupported", f"PTX for {target[1] if target else 'no target'}: expected sm_100a"
        )
    behind = parameters_behind(text, four_bit)
    kinds = {register: {four_bit[name] for name in names} for register, names in behind.items()}
    module = _Module(_dynamic_symbol(text), tcgen05, kinds, facts, whole_sectors)
    body = _PATTERN.sub(module.replace, text)
    if module.private and facts is not None:
        body = pair_loads.framed(body, module.dynamic or "")
    return Retargeted(
        _merge(body, device) if module.calls else _retarget_header(body, _version(body)),
        tmem=module.calls,
        private_bytes=PRIVATE_BYTES if module.private else 0,
        edits_maps=bool(re.search(r"tensormap\.replace\.tile\.(global_dim|box_dim)", body)),
    )


def without_tensor_core(
    text: str,
    device: str,
    four_bit: Mapping[str, bool] = NO_MAPS,
    cluster: int = LARGEST_CLUSTER,
) -> Retargeted:
    """As retarget, but without tcgen05 except for its arrives: the load pipeline remains, and an
    epilogue of zeros. cluster: CTAs of a cluster, at most."""
    return retarget(text, device, partial(tmem_text.leave_out, cluster=cluster), four_bit)


def without_releases(
    text: str,
    device: str,
    four_bit: Mapping[str, bool] = NO_MAPS,
    cluster: int = LARGEST_CLUSTER,
) -> Retargeted:
    """As without_tensor_core, and the kernel's own arrives at other CTAs do not release. The time
    saved against without_tensor_core is the cost of the releases."""
    found = without_tensor_core(text, device, four_bit, cluster)
    relaxed = found.text.replace(tmem_text.RELEASING_ARRIVE, tmem_text.RELAXED_ARRIVE)
    return replace(found, text=relaxed)


def loads_and_epilogue(
    text: str, device: str, kernel: str, facts: LaunchFacts | None, cluster: int
) -> Retargeted:
    """The form in which programs are compared: one kernel with its loads, barriers, schedule and
    epilogue, without tensor core. facts: None if tensormaps are not parameters. Raises HopperError.
    """
    tcgen05 = partial(tmem_text.leave_out, cluster=cluster, values=True)
    return retarget(only(text, kernel), device, tcgen05, facts=facts, whole_sectors=True)


def only(text: str, kernel: str) -> str:
    """The module with `kernel` alone: without other kernels, and without line information, because
    that names them.
    """
    text = re.sub(r"^[ \t]*\.loc\s[^\n]*", "", without_comments(text), flags=re.MULTILINE)
    text = re.sub(r"\.section\s+\.debug_\w+\s*\{[^}]*\}", "", text)
    parts, at = [], 0
    for entry in re.finditer(r"(?:\.(?:visible|weak)\s+)?\.entry\s+([\w$]+)", text):
        if entry[1] != kernel:
            parts.append(text[at : entry.start()])
            at = closing(text, text.index("{", entry.end())) + 1
    return "".join([*parts, text[at:]])


def _dynamic_symbol(text: str) -> str | None:
    found = re.search(r"\.extern\s+\.shared\s+(?:\.align\s+\d+\s+)?\.b8\s+([\w$]+)\s*\[", text)
    return found[1] if found else None


def _version(text: str) -> tuple[int, int]:
    found = re.search(r"\.version\s+(\d+)\.(\d+)", text)
    if found is None:
        raise HopperError("unsupported", "the PTX has no .version")
    return int(found[1]), int(found[2])


def _retarget_header(text: str, version: tuple[int, int]) -> str:
    text = re.sub(r"\.version\s+\S+", f".version {version[0]}.{version[1]}", text, count=1)
    return re.sub(r"\.target\s+[^\n]+", f".target {TARGET}", text, count=1)


def _merge(text: str, device: str) -> str:
    """One module: the header with the newer version, the device functions, then the kernels."""
    device = without_comments(device)
    version = max(_version(text), _version(device))
    functions = re.sub(r"\.(version|target|address_size)[^\n]*\n", "", device)
    header = re.search(r"\.address_size\s+64\s*\n", text)
    if header is None:
        raise HopperError("unsupported", "the PTX has no .address_size 64")
    merged = text[: header.end()] + functions + text[header.end() :]
    return _retarget_header(merged, version)


class _Module:
    """One rewriting. calls: a device function is called; private: a private barrier is needed;
    kinds: registers with the address of a tensormap, and whether it may be of 4-bit elements.
    """

    def __init__(
        self,
        dynamic: str | None,
        tcgen05: Writer,
        kinds: Mapping[str, set[bool]],
        facts: LaunchFacts | None,
        whole_sectors: bool,
    ):
        self.dynamic, self.tcgen05, self.kinds = dynamic, tcgen05, kinds
        self.facts, self.whole_sectors = facts, whole_sectors
        self.calls, self.private, self.number = False, False, 0

    def replace(self, match: re.Match) -> str:
        found = statement(match)
        handler = _handler(found)
        block = Block()
        handler(self, found, block)
        self.number += 1
        self.calls = self.calls or any("call " in line for line in block.lines)
        return block.text(found.guard, self.number) if block.lines else ""


Handler = Callable[[_Module, Statement, Block], None]


def _drop(module: _Module, s: Statement, block: Block) -> None:
    """No effect on a result."""


def _packed_floats(module: _Module, s: Statement, block: Block) -> None:
    """add, sub, mul, fma on two fp32 in 64 bits (PTX ISA 9.7.3)."""
    target, *sources = s.operands
    halves = []
    for source in sources:
        pair = [block.register("f32") for _ in range(2)]
        block.emit(f"mov.b64 {{{', '.join(pair)}}}, {source}")
        halves.append(pair)
    opcode = s.opcode.replace(".f32x2", ".f32")
    results = [block.made(opcode, *(pair[i] for pair in halves), kind="f32") for i in range(2)]
    block.emit(f"mov.b64 {target}, {{{', '.join(results)}}}")


def _wide_access(module: _Module, s: Statement, block: Block) -> None:
    """A 256-bit ld or st: two of 128 bits."""
    load = s.mods[0] == "ld"
    vector = s.operands[0] if load else s.operands[1]
    address = s.operands[1] if load else s.operands[0]
    values, rest = elements(vector), list(s.operands[2:])
    half = len(values) // 2
    opcode = re.sub(r"\.L2::evict_\w+", "", s.opcode)  # of 256-bit accesses alone
    if module.whole_sectors and not load and s.has("global"):
        opcode = re.sub(r"\.v(8|4)\.\w+", ".v4.b32", opcode)
        wide_stores.write(block, opcode, address, values, rest, module.number)
        return
    opcode = re.sub(r"\.v(8|4)\b", f".v{half}", opcode)
    base = block.address(address, "b64") if "shared" not in s.opcode else block.address(address)
    for i in range(2):
        part = "{" + ", ".join(values[i * half : (i + 1) * half]) + "}"
        at = f"[{base}+{16 * i}]"
        block.emit(f"{opcode} " + ", ".join(([part, at] if load else [at, part]) + rest))


def _three_operands(module: _Module, s: Statement, block: Block) -> None:
    """min or max of three f32."""
    target, a, b, c = s.operands
    block.emit(f"{s.opcode} {target}, {block.made(s.opcode, a, b, kind='f32')}, {c}")


def _tensor_copy(module: _Module, s: Statement, block: Block) -> None:
    """A tensor TMA operation: coordinate 0 scaled as the tensormap is marked. A mark is a load from
    the parameters that every CTA waits for, 250 clk the first time (docs/lab/hopper.md)."""
    if any(m in s.opcode for m in ("gather4", "scatter4", "im2col")):
        raise s.unsupported()
    place = next(i for i, o in enumerate(s.operands) if re.match(r"\[[^\]]*,\s*\{", o))
    found = re.fullmatch(r"\[\s*([^,\]]+),\s*(\{[^}]*\})\s*\]", s.operands[place])
    if found is None:
        raise s.unsupported(f"operand {s.operands[place]}")
    pointer, vector = found.groups()
    first, *others = elements(vector)
    map_ = block.address(f"[{pointer}]", "b64")
    coordinate = block.made("mov.b32", first)
    kinds = module.kinds.get(pointer, {True, False})
    if len(kinds) == 2 and module.facts is not None:
        halved = pair_loads.fact(block, module.facts, map_, 1)
        block.emit(f"shr.s32 {coordinate}, {coordinate}, {halved}")
    elif len(kinds) == 2:
        mark = block.made("ld.b32", f"[{map_}+{MARK_OFFSET}]")
        four_bit = block.made("setp.eq.u32", mark, f"{MARK:#x}", kind="pred")
        block.emit(f"@{four_bit} shr.s32 {coordinate}, {coordinate}, 1")
    elif True in kinds:
        block.emit(f"shr.s32 {coordinate}, {coordinate}, 1")
    operands = list(s.operands)
    operands[place] = f"[{map_}, {{{', '.join([coordinate, *others])}}}]"
    opcode = re.sub(r"\.cta_group::[12]", "", s.opcode)
    if s.has("cta_group::2") and "mbarrier::complete_tx::bytes" in s.opcode:
        _pair_load(module, s, block, opcode, operands, map_)
    else:
        block.emit(f"{opcode} {', '.join(operands)}")


def _pair_load(
    module: _Module, s: Statement, block: Block, opcode: str, operands: list[str], map_: str
) -> None:
    """A load whose barrier may be in the peer CTA."""
    if module.dynamic is None:
        raise s.unsupported(".cta_group::2 in a kernel without dynamic shared memory")
    module.private = True
    if module.facts is not None:
        pair_loads.write(s, block, opcode, operands, module.facts, map_, module.number)
        return
    destination, barrier = block.address(operands[0]), block.address(operands[2])
    rest, mask = operands[3:], "0"
    if s.has("multicast::cluster"):
        mask = block.as_32(rest.pop(0))
        opcode = opcode.replace(".multicast::cluster", "")
    base = block.made("mov.u32", module.dynamic)
    own = block.call("hopper_pair_begin", ("b64", map_), ("b32", base), result="b32")
    block.emit(f"{opcode} {', '.join([f'[{destination}]', operands[1], f'[{own}]', *rest])}")
    block.call(
        "hopper_pair_end",
        ("b64", map_),
        ("b32", base),
        ("b32", destination),
        ("b32", barrier),
        ("b32", mask),
    )


def _try_cancel(module: _Module, s: Statement, block: Block) -> None:
    """A refused request: sixteen zero bytes and their count on the barrier."""
    if s.has("multicast::cluster::all"):
        raise s.unsupported()
    response, barrier = (block.shared(s, o) for o in s.operands)
    zero = block.made("mov.b64", 0, kind="b64")
    block.emit(f"st.shared.v2.b64 [{response}], {{{zero}, {zero}}}")
    block.emit("fence.acq_rel.cta")
    block.emit(f"mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [{barrier}], 16")


def _query_cancel(module: _Module, s: Statement, block: Block) -> None:
    """A refused request was refused."""
    if s.has("is_canceled"):
        block.emit(f"setp.ne.u32 {s.operands[0]}, 0, 0")
    else:
        targets = elements(s.operands[0]) if s.operands[0].startswith("{") else [s.operands[0]]
        for target in (t for t in targets if t != "_"):
            block.emit(f"mov.b32 {target}, 0")


def _replace_field(module: _Module, s: Statement, block: Block) -> None:
    if s.has("elemtype") and int(s.operands[-1], 0) >= 13:
        raise s.unsupported("a 4- or 6-bit element type is set on the device")
    block.emit(f"{s.opcode} {', '.join(s.operands)}")


def _tcgen05(module: _Module, s: Statement, block: Block) -> None:
    module.tcgen05(s, block)


# Opcode pattern -> what takes its place; the first that matches.
_HANDLERS: list[tuple[str, Handler]] = [
    (r"tcgen05\.", _tcgen05),
    (r"cp\.(?:reduce\.)?async\.bulk\.(?:prefetch\.)?tensor\.", _tensor_copy),
    (r"(?:add|sub|mul|fma)\.(?:[\w.]*\.)?f32x2", _packed_floats),
    (r"(?:ld|st)\.[\w.:]*?(?:v8\.[bfsu]32|v4\.[bfsu]64)", _wide_access),
    (r"(?:min|max)\.(?:[\w.]*\.)?f32(?=\s+[^,;]+,[^,;]+,[^,;]+,[^,;]+;)", _three_operands),
    (r"setmaxnreg\.", _drop),
    (r"clusterlaunchcontrol\.try_cancel", _try_cancel),
    (r"clusterlaunchcontrol\.query_cancel", _query_cancel),
    (r"tensormap\.replace\.", _replace_field),
]
_PATTERN = finder([pattern for pattern, _ in _HANDLERS])


def _handler(s: Statement) -> Handler:
    text = f"{s.opcode} {', '.join(s.operands)};"
    return next(handler for pattern, handler in _HANDLERS if re.match(pattern, text))
