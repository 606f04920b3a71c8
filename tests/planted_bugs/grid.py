"""Planted bugs in global memory: CTAs in each other's way, tensormaps that describe something else."""

from __future__ import annotations

import torch

from b200.chip.copies.tensormap import TensorMap
from tests.planted_bugs.case import PlantedBug, Source
from tests.planted_bugs.cta import ints, start


def _own_word(k: Source):
    """%r5: word %tid.x of shared memory, with %r0 the thread and %r1 the base."""
    k("shl.b32 %r2, %r0, 2;")
    k("add.u32 %r3, %r1, %r2;")
    k("ld.shared.u32 %r5, [%r3];")


def tiles(bug: bool) -> Source:
    """Every CTA writes a tile; with the bug two CTAs have the same."""
    k = start(32)
    k("mov.u32 %r50, %ctaid.x;")
    k("mad.lo.u32 %r54, %r50, 32, %r0;")
    if bug:
        k("shr.u32 %r50, %r50, 1;")
    k("mad.lo.u32 %r53, %r50, 32, %r0;")
    store_out(k, "%r53", "%r54")
    return k


def store_out(k: Source, index: str, value: str):
    k(f"mul.wide.u32 %rd8, {index}, 4;")
    k("add.u64 %rd9, %rd0, %rd8;")
    k(f"st.global.u32 [%rd9], {value};", "store")


def strides(bug: bool) -> Source:
    """out[token][head][32]: a CTA is a head; the bug steps tokens by the head's stride."""
    k = start(32)
    k("mov.u32 %r50, %ctaid.x;")
    for token in range(2):
        k(f"mad.lo.u32 %r53, %r50, 32, {token * (32 if bug else 64)};")
        k("add.u32 %r53, %r53, %r0;")
        k(f"mad.lo.u32 %r54, %r50, 32, {token * 64};")
        k("add.u32 %r54, %r54, %r0;")
        store_out(k, "%r53", "%r54")
    return k


def next_tile(bug: bool, bulk: bool) -> Source:
    """CTAs write a tile each and read one again: the next CTA's with the bug, with ld or a copy."""
    k = start(32, ".param .u64 out, .param .u64 scratch, .param .u64 copied")
    k("mov.u32 %r50, %ctaid.x;")
    k("mad.lo.u32 %r53, %r50, 32, %r0;")
    k("mul.wide.u32 %rd8, %r53, 4;")
    k("add.u64 %rd9, %rd1, %rd8;")
    k("st.global.u32 [%rd9], %r53;", "store")
    k(f"xor.b32 %r51, %r50, {int(bug)};")
    k("mad.lo.u32 %r54, %r51, 32, %r0;")
    k("mul.wide.u32 %rd10, %r54, 4;")
    k("add.u64 %rd11, %rd1, %rd10;")
    if bulk:
        k("mul.wide.u32 %rd10, %r51, 128;")
        k("add.u64 %rd12, %rd1, %rd10;")
        k("fence.proxy.async;")
        k("bar.warp.sync -1;")
        k.only(0, lambda: _bulk(k))
        k("bar.sync 0;")
        k.wait("%r1+1024", 0)
        k("ld.shared.u32 %r5, [%r3];")
    else:
        k("ld.global.u32 %r5, [%rd11];", "read")
    k("add.u64 %rd9, %rd2, %rd8;")
    k("st.global.u32 [%rd9], %r5;")
    return k


def _bulk(k: Source):
    k("mbarrier.init.shared::cta.b64 [%r1+1024], 1;")
    k("fence.mbarrier_init.release.cluster;")
    k("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1+1024], 128;")
    k(
        "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r1], [%rd12], 128, "
        "[%r1+1024];",
        "read",
    )


def neighbour(name: str, title: str, bulk: bool) -> PlantedBug:
    """A tile is read that another CTA writes in the same launch."""
    return PlantedBug(
        name,
        title,
        lambda bug: next_tile(bug, bulk),
        "global",
        ("is read that another CTA writes in the same launch", "a second launch, or a flag"),
        ("read", "store"),
        lambda: [torch.zeros(128, dtype=torch.int32) for _ in range(3)],
        lambda a: torch.arange(128, dtype=torch.int32),
        grid=(4, 1, 1),
    )


def sums(bug: bool) -> Source:
    """Partial sums of CTAs: floats added in the order of arrival, or integers."""
    k = start(32)
    k("mul.wide.u32 %rd8, %r0, 4;")
    k("add.u64 %rd9, %rd0, %rd8;")
    kind, one = ("f32", "0x3f800000") if bug else ("u32", "1")
    k(f"mov.b32 %r5, {one};")
    k(f"red.global.add.{kind} [%rd9], %r5;", "red")
    return k


def edge(bug: bool) -> Source:
    """The last CTA's tile reaches over the end of the output."""
    k = start(32)
    k("mov.u32 %r50, %ctaid.x;")
    k("mad.lo.u32 %r53, %r50, 32, %r0;")
    k("mul.wide.u32 %rd8, %r53, 4;")
    k("add.u64 %rd9, %rd0, %rd8;")
    k("setp.lt.u32 %p4, %r53, 50;" if not bug else "setp.lt.u32 %p4, %r53, 64;")
    k("@%p4 st.global.u32 [%rd9], %r53;", "store")
    return k


# --- tensormaps ---------------------------------------------------------------------------------

SOURCE = torch.arange(16 * 64, dtype=torch.int32).reshape(16, 64)


def tensormap(**changes) -> bytes:
    fields = {
        "address": SOURCE.data_ptr(),
        "format": 2,
        "dims": (64, 16),
        "strides": (256,),
        "box": (32, 2),
    }
    return TensorMap(**{**fields, **changes}).encode()


def tma() -> Source:
    """Load a box of 2 x 32 integers and write it."""
    k = Source(".param .align 64 .b8 map[128], .param .u64 out", 64)
    k("mov.u32 %r0, %tid.x;")
    k("mov.u32 %r1, dyn;")
    k("ld.param.u64 %rd0, [out];")
    k("mov.b64 %rd1, map;")
    k("cvta.param.u64 %rd1, %rd1;")
    k.only(0, lambda: _box(k, "%rd1", "{32, 6}"))
    k("bar.sync 0;")
    k.wait("%r1+1024", 0)
    _own_word(k)
    k("mul.wide.u32 %rd8, %r0, 4;")
    k("add.u64 %rd9, %rd0, %rd8;")
    k("st.global.u32 [%rd9], %r5;")
    return k


def _box(k: Source, address: str, coords: str, nbytes: int = 256):
    k("mbarrier.init.shared::cta.b64 [%r1+1024], 1;")
    k("fence.mbarrier_init.release.cluster;")
    k(f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1+1024], {nbytes};", "expect")
    k(
        "cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes "
        f"[%r1], [{address}, {coords}], [%r1+1024];",
        "load",
    )


def every_tile(bug: bool) -> Source:
    """Each CTA loads a tile of 4 x 32 integers; the bug names the row before the column."""
    return _tiles("{%r52, %r51}" if bug else "{%r51, %r52}", 4)


def rows_apart(bug: bool) -> Source:
    """Each CTA loads a tile of 4 x 32 integers; the bug goes on by 8 rows."""
    return _tiles("{%r51, %r52}", 8 if bug else 4)


def _tiles(coordinates: str, rows: int) -> Source:
    """Two tiles side by side for every `rows` rows, a CTA each."""
    k = Source(".param .align 64 .b8 map[128], .param .u64 out", 128)
    k("mov.u32 %r0, %tid.x;")
    k("mov.u32 %r1, dyn;")
    k("ld.param.u64 %rd0, [out];")
    k("mov.b64 %rd1, map;")
    k("cvta.param.u64 %rd1, %rd1;")
    k("mov.u32 %r50, %ctaid.x;")
    k("and.b32 %r51, %r50, 1;")
    k("shl.b32 %r51, %r51, 5;")
    k("shr.u32 %r52, %r50, 1;")
    k(f"mul.lo.u32 %r52, %r52, {rows};")
    k.only(0, lambda: _box(k, "%rd1", coordinates, 512))
    k("bar.sync 0;")
    k.wait("%r1+1024", 0)
    _own_word(k)
    k("mad.lo.u32 %r53, %r50, 128, %r0;")
    store_out(k, "%r53", "%r5")
    return k


def edited(bug: bool) -> Source:
    """A tensormap in global memory gets the address of the next tensor, after the load that used
    it, or during it.
    """
    k = Source(".param .u64 map, .param .u64 next, .param .u64 out", 32)
    k("mov.u32 %r0, %tid.x;")
    k("mov.u32 %r1, dyn;")
    for i, name in enumerate(("out", "map", "next")):
        k(f"ld.param.u64 %rd{i}, [{name}];")

    def load():
        k("fence.proxy.tensormap::generic.acquire.sys [%rd1], 128;")
        _box(k, "%rd1", "{32, 6}")

    k.only(0, load)
    k("bar.sync 0;")
    if not bug:
        k.wait("%r1+1024", 0)
    k.only(
        0, lambda: k("tensormap.replace.tile.global_address.global.b1024.b64 [%rd1], %rd2;", "edit")
    )
    if bug:
        k.wait("%r1+1024", 0)
    _own_word(k)
    store_out(k, "%r0", "%r5")
    return k


def replaced(fence: str, barrier: bool) -> Source:
    """Warp 0 gives a tensormap another address, warp 1 loads with it. fence: by the "user" of it,
    by its "editor", "early" by the editor before the edit, or "".
    """
    acquire = "fence.proxy.tensormap::generic.acquire.gpu [%rd1], 128;"
    k = Source(".param .u64 map, .param .u64 next, .param .u64 out", 64)
    k("mov.u32 %r0, %tid.x;")
    k("mov.u32 %r1, dyn;")
    for i, name in enumerate(("out", "map", "next")):
        k(f"ld.param.u64 %rd{i}, [{name}];")
    if fence == "early":
        k.only(0, lambda: k(acquire))
    k.only(
        0, lambda: k("tensormap.replace.tile.global_address.global.b1024.b64 [%rd1], %rd2;", "edit")
    )
    if fence == "editor":
        k.only(0, lambda: k(acquire))
    if barrier:
        k("bar.sync 0;")

    def load():
        if fence == "user":
            k(acquire)
        _box(k, "%rd1", "{32, 6}")

    k.only(32, load)
    k("bar.sync 0;")
    k.wait("%r1+1024", 0)
    _own_word(k)
    store_out(k, "%r0", "%r5")
    return k


KEEP = []  # tensors whose addresses a kernel has


def edited_args():
    raw = torch.zeros(256, dtype=torch.uint8)
    at = -raw.data_ptr() % 64
    raw[at : at + 128] = torch.frombuffer(bytearray(tensormap()), dtype=torch.uint8)
    KEEP.append(raw)
    return [raw.data_ptr() + at, SOURCE, torch.zeros(32, dtype=torch.int32)]


def replaced_args():
    return [*edited_args()[:2], torch.zeros(64, dtype=torch.int32)]


def edit(name, title, words, fence: str, barrier: bool, good: str = "user") -> PlantedBug:
    """A tensormap that one warp edits and another uses. good: the fence of the right kernel."""
    return PlantedBug(
        name,
        title,
        lambda bug: replaced(fence if bug else good, barrier or not bug),
        "tensormap",
        words,
        ("load", "edit"),
        replaced_args,
        lambda a: SOURCE[6:8, 32:64].reshape(-1),
    )


def wrong_map(name: str, title: str, words, marks, **changes) -> PlantedBug:
    """A tensormap that describes another tensor than the one in memory."""
    flag = []
    kind = changes.pop("kind", "fault")

    def build(bug: bool) -> Source:
        flag[:] = [bug]
        return tma()

    def args():
        return [tensormap(**(changes if flag[0] else {})), torch.zeros(64, dtype=torch.int32)]

    return PlantedBug(
        name, title, build, kind, words, marks, args, lambda a: SOURCE[6:8, 32:64].reshape(-1)
    )


def steps(load: str) -> Source:
    """Two steps over one tensor, each of which reads what the neighbour has left there."""
    k = start(32, ".param .u64 out")
    k("xor.b32 %r4, %r2, 4;")
    k("cvt.u64.u32 %rd1, %r4;")
    k("cvt.u64.u32 %rd2, %r2;")
    k("add.u64 %rd1, %rd0, %rd1;")
    k("add.u64 %rd2, %rd0, %rd2;")
    k("st.global.u32 [%rd2], %r0;", "store")
    k("bar.sync 0;")
    k(f"ld.global.{load}u32 %r5, [%rd1];", "read")
    k("bar.sync 0;")
    k("st.global.u32 [%rd2], %r5;")
    return k


def beside(load: bool, away: int) -> Source:
    """A copy of a tensor, read or written `away` bytes beside where it lies."""
    k = start(32, ".param .u64 from, .param .u64 to")
    k("cvt.u64.u32 %rd2, %r2;")
    k("add.u64 %rd3, %rd0, %rd2;")
    k("add.u64 %rd4, %rd1, %rd2;")
    k(f"ld.global.u32 %r5, [%rd3+{away if load else 0}];", "load")
    k(f"st.global.u32 [%rd4+{0 if load else away}], %r5;", "store")
    return k


def of_a_pool(name: str, title: str, load: bool, away: int) -> PlantedBug:
    def args() -> list:
        pool = torch.arange(5 * 32, dtype=torch.int32).reshape(5, 32)
        return [pool[1], pool[3]]

    does, where = "reads" if load else "writes", "in front of" if away < 0 else "behind"
    return PlantedBug(
        name,
        title,
        lambda bug: beside(load, away if bug else 0),
        "global",
        (f"{does} {where} the tensor that it was given, inside its allocation", "missing: a guard"),
        ("load" if load else "store",),
        args,
        lambda a: torch.arange(32, 64, dtype=torch.int32),
    )


def non_coherent(name: str, title: str, load: str, words: str) -> PlantedBug:
    return PlantedBug(
        name,
        title,
        lambda bug: steps(load if bug else ""),
        "global",
        (words, "missing: a plain load"),
        ("read", "store"),
        ints(32),
        lambda a: torch.arange(32, dtype=torch.int32).reshape(16, 2).flip(1).reshape(-1),
    )


PLANTED = [
    of_a_pool("row_in_front", "the row in front of a pool's tensor is read", True, -128),
    of_a_pool("row_behind", "the row behind a pool's last tensor is written", False, 128),
    of_a_pool("rows_behind", "three rows behind, the allocation's last one, is read", True, 384),
    non_coherent(
        "non_coherent_load",
        "ld.global.nc of what the launch has written",
        "nc.",
        "global: a non-coherent load reads what st.global writes in the same launch",
    ),
    non_coherent(
        "non_coherent_load_past_the_cache",
        "ld.global.nc.L1::no_allocate of what the launch has written",
        "nc.L1::no_allocate.",
        "global (portability): a non-coherent load reads what st.global writes in the same launch",
    ),
    PlantedBug(
        "two_ctas_one_tile",
        "two CTAs write the same tile",
        tiles,
        "global",
        ("two CTAs write the same address",),
        ("store",),
        ints(128),
        lambda a: torch.arange(128, dtype=torch.int32),
        grid=(4, 1, 1),
    ),
    PlantedBug(
        "head_stride_for_token_stride",
        "the stride of the heads is used for the tokens",
        strides,
        "global",
        ("two CTAs write the same address",),
        ("store",),
        ints(128),
        lambda a: torch.arange(128, dtype=torch.int32),
        grid=(2, 1, 1),
    ),
    neighbour("tile_of_another_cta", "a CTA reads the tile that its neighbour writes", False),
    neighbour("copy_of_another_ctas_tile", "a bulk copy reads what the neighbour writes", True),
    PlantedBug(
        "float_sums_in_any_order",
        "CTAs add floats to one tensor with red",
        sums,
        "order",
        ("depends on which comes first",),
        ("red",),
        ints(32),
        lambda a: torch.full((32,), 4, dtype=torch.int32),
        grid=(4, 1, 1),
    ),
    PlantedBug(
        "store_behind_the_end",
        "the last tile is stored without a guard",
        edge,
        "fault",
        ("is in no tensor's allocation",),
        ("store",),
        ints(50),
        lambda a: torch.arange(50, dtype=torch.int32),
        grid=(2, 1, 1),
    ),
    PlantedBug(
        "tensormap_edited_in_flight",
        "the tensormap gets a new address while a load that uses it is under way",
        edited,
        "tensormap",
        ("edited while an operation that uses it is under way",),
        ("edit", "load"),
        edited_args,
        lambda a: SOURCE[6, 32:64],
    ),
    edit(
        "tensormap_used_without_fence",
        "no tensormap fence between the edit of a tensormap and its use",
        ("used without a fence after its edit", "fence.proxy.tensormap::generic.acquire"),
        fence="",
        barrier=True,
    ),
    edit(
        "tensormap_fenced_before_its_edit",
        "the editor's tensormap fence stands before the edit (right: after it, before the barrier)",
        ("used without a fence after its edit", "that it has waited for"),
        fence="early",
        barrier=True,
        good="editor",
    ),
    edit(
        "tensormap_used_without_barrier",
        "nothing orders the edit of a tensormap and its use by another warp",
        ("used that another warp edits, with nothing to order the two",),
        fence="user",
        barrier=False,
    ),
    PlantedBug(
        "coordinates_swapped",
        "the row's coordinate stands before the column's",
        every_tile,
        "coverage",
        ("lies wholly outside of its tensor", "two may be swapped", "at (0, 32)"),
        ("load",),
        lambda: [tensormap(box=(32, 4)), torch.zeros(1024, dtype=torch.int32)],
        lambda a: SOURCE.reshape(4, 4, 2, 32).transpose(1, 2).reshape(-1),
        grid=(8, 1, 1),
    ),
    PlantedBug(
        "rows_between_boxes",
        "boxes of 4 rows stand 8 rows apart",
        rows_apart,
        "coverage",
        ("rows 4-7 of", "are never loaded", "boxes stand 8 apart", "a box has 4 of 16 rows"),
        ("load",),
        lambda: [tensormap(box=(32, 4)), torch.zeros(512, dtype=torch.int32)],
        lambda a: SOURCE.reshape(4, 4, 2, 32).transpose(1, 2)[:2].reshape(-1),
        grid=(4, 1, 1),
    ),
    wrong_map(
        "one_stride_too_many",
        "a tensormap of rank 3 for a load of rank 2",
        ("a .2d instruction with a tensormap of rank 3",),
        ("load",),
        dims=(64, 16, 1),
        strides=(256, 4096),
        box=(32, 2, 1),
    ),
    wrong_map(
        "strides_in_wrong_order",
        "the dimensions of the tensormap are in the wrong order",
        ("describes more than its tensor has", "12096 too few", "its stride"),
        ("load",),
        kind="tensormap",
        dims=(16, 64),
        strides=(256,),
        box=(32, 2),
    ),
    wrong_map(
        "box_of_the_whole_tensor",
        "the box is the whole tensor, not one tile",
        ("the TMA load writes over the mbarrier", "4096 by", "3840 too many"),
        ("load", "expect"),
        kind="deadlock",
        box=(64, 16),
    ),
]
