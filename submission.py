"""NVFP4 gemv, gemm, dual gemm and group gemm on a B200: one kernel.

THE PROBLEM   C[M, N] = A[M, K] B[N, K], for each of L batches. A and B are e2m1 codes, with a ue4m3
    scale factor for each 16 of them along K: SFA and SFB. Sums are fp32, C is fp16.

    problem   own: the large operand   shared: the small   C
    gemm      b                        a                   c
    group     b of each group          a of each group     c of each group
    dual      b1 and b2, a product     a                   c = silu(A B1) * (A B2)
              of each
    gemv      the matrix: a            row 0 of b          c, transposed

THE MMA   has M on the 128 lanes of tensor memory, and N on its columns. With `swap_ab`, the
    default, its A is the own operand, and C is stored transposed; else the shared one. Only
    `Config.exchange` says so. A, B, M, N, SFA and SFB are the MMA's, the input's in `read_problem`.

ONE TILE   gemm with 128 tokens, 7168 rows of weights, K 16384: Config(cta_group=2, cluster_n=2)
    M is 7168, N 128. A pair of CTAs computes 256 x 64. The two pairs of a cluster need the same A:
    they load it by turns and multicast it. A stage of a CTA has 128 rows of A (16 KB), 32 of the
    pair's 64 rows of B (4 KB), SFA of its rows (2 KB), SFB of all 64 in an atom of 128 (2 KB). A
    k-tile of 256 is 4 MMAs of 256 x 64 x 64, each after the copies of its scales to tensor memory.

WARPS   of a CTA, in this order
    4 or 8   epilogue, one or two warpgroups that take epilogue tiles by turns: tensor memory ->
             registers -> global. Warp w reads a quarter of the lanes, w % 4
    1        load: TMA boxes of A and B, and of scale-factor atoms
    1        MMA: scales to tensor memory, block-scaled MMAs. The leader of a CTA pair, which is its
             even CTA, issues for both

PIPELINES   (mbarriers; s: stage, p: product, a: accumulator stage)
    barrier        producer -> consumer  arrivals that complete a phase
    full[s][p]     load -> MMA           1 expect_tx of each load warp, two in a pair, and the bytes
                                         of product p; the shared operand counts with p = 0
    empty[s][p]    MMA -> load           1 commit of each MMA warp that issues and reads what this
                                         CTA loads: cluster_n of them
    acc_full[a]    MMA -> epilogue       1 commit: the tile is complete
    acc_empty[a]   epilogue -> MMA       each epilogue warp, of both CTAs of a pair
    partials_full  epilogue -> epilogue  1 expect_tx, and the bytes of the other CTAs' partial sums
    MMAs read both CTAs of a pair: both arrive on full[s][p] and acc_empty[a] of the leader.

MEETINGS   (the cluster's barrier; named barriers of the CTA; the end of another launch)
    meeting    epilogue             load                 MMA
    CLUSTER 1  arrives, waits       arrives, waits       arrives, waits
    SETUP      arrives, waits       arrives              arrives, waits
    LAUNCH                          waits for the one before
    TEARDOWN   arrives, waits       arrives, waits       arrives, waits
    CLUSTER 2  arrives, waits       arrives, waits       arrives, waits

SHARED MEMORY                                 TENSOR MEMORY (columns)
    stage 0  A    [operand][128 rows][128 B]      sums [accumulator stage][product][N]
             B    [operand][rows][128 B]          SFA  [operand][K block][4]
             SFA  [operand][K block][512 B]       SFB  [operand][K block][atom][4]
             SFB  [operand][atom][K block][512 B]
    stage 1 ...                                   There is room for one k-tile of scales. A copy
    transposition buffers, 1 KB a warp            may overwrite those of the MMA before it: one
    partial sums received (K split)               thread's copies and MMAs run in order. NVIDIA's
    barriers, address of tensor memory            kernels rely on it; the PTX ISA lists copy ->
                                                  MMA, and not MMA -> copy.

LAUNCHES   overlap: a CTA starts where the launch before has left room, and sets up. Its load warp
    alone waits for that launch. So a warp reads or writes global memory that another launch may
    touch only behind a wait for bytes that the load warp has brought, as acc_full is.
    No two CTAs fit an SM, so none holds tensor memory that an earlier launch waits for.
"""

import array
import functools
import itertools
import operator
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import cutlass
import cutlass.cute as cute
import torch
from cutlass import Boolean, Float4E2M1FN, Float32, Int16, Int32, Int64, Uint32, const_expr

# `_mlir` is private to the DSL, as `_trait` in tensormap_address is: tried with 4.3.5 to 4.8.1.
from cutlass._mlir.dialects import cute as cute_ir
from cutlass._mlir.dialects import cute_nvgpu as cute_nvgpu_ir
from cutlass._mlir.dialects import llvm
from cutlass.cute.nvgpu import cpasync, tcgen05
from cutlass.cutlass_dsl import dsl_user_op
from cutlass.pipeline import PipelineState
from cutlass.utils import HardwareInfo

from task import input_t, output_t

# ---- the chip, and the sizes of a tile -----------------------------------------------------------

# By CTAs of a cluster, how many are resident at a time on 148 SMs in 8 GPCs. 8 are portable.
CLUSTERS = {1: 148, 2: 74, 4: 33, 8: 15}
SMEM_BYTES = 232_448  # what one CTA may ask for
TMEM_COLUMNS = 512
MAX_GROUPS = (32_764 - 72) // (4 * 128 + 3 * 8 + 5 * 4)  # bytes of parameters; 72: schedule, gaps

CTA_M = 128  # rows of A of a CTA
BOX_N = 64, 56, 48, *range(72, 129, 8), *range(40, 0, -8)  # rows of a box of B, preferred first
TILE_K = 256  # elements of K in a stage: a row of a box with 128-byte swizzle
ROW_BYTES = TILE_K // 2  # of a row of A or B in a stage
C_TYPE, C_PTX, C_BYTES = torch.float16, "f16", 2  # of all inputs; or torch.bfloat16, "bf16", 2
K_BLOCK = 64  # elements of K in one MMA and in one scale-factor atom
K_BLOCKS = TILE_K // K_BLOCK
ATOM_ROWS = 128  # of A or B in a scale-factor atom: 32 x 4, 4 scales of each
ATOM_BYTES = 512
ATOM_COLUMNS = 4  # of tensor memory
SF_BYTES = K_BLOCKS * ATOM_BYTES  # scales of 128 rows in a stage
LANE_BIT = 16  # of the lane in an address of tensor memory, whose low half is the column
GEMV_ROWS = 128  # of the operand that has a gemv's vector as its first

OVERLAPS_LAUNCHES = True  # programmatic dependent launch; False: a launch starts when all is done
EVICT_FIRST = 0x12F0000000000000  # L2 policy, as CUTLASS encodes it: read once, so first to go

WARPGROUP = 4  # epilogue warps: warp w reaches quarter w % 4 of the 128 lanes of tensor memory
TENSORMAP_WARP, SCALE_WARP = 1, 2  # epilogue warps that prefetch at the start
SETUP_BARRIER = 1  # all warps: barriers are initialised, tensor memory is allocated
TEARDOWN_BARRIER = 2  # all warps: tensor memory has been read


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


# ---- problem, configuration, plan ----------------------------------------------------------------


class Shape(NamedTuple):
    """Sizes of a group."""

    shared: int  # rows of the shared operand
    own: int  # rows of each own operand
    k: int
    l: int  # batches


class Problem(NamedTuple):
    """The key of PICKS and of caches. A gemm and a group gemm of one group are the same."""

    num_products: int
    groups: tuple[Shape, ...]
    is_gemv: bool = False  # the shared operand is the first of GEMV_ROWS rows


@dataclass(frozen=True)
class Config:
    """What `pick` chooses. `Plan` has what follows from it and the problem."""

    tile_n: int = 64  # most columns of an output tile
    swap_ab: bool = True  # A of the MMA is the own operand, the large one
    cta_group: int = 1  # 1: an MMA has M 128; 2: 256, over a CTA pair
    split_k: int = 1  # CTAs or pairs of a cluster along K, which add their sums
    cluster_n: int = 1  # CTAs or pairs of a cluster along N, which share A by multicast
    persistent: bool = False  # a cluster computes several tiles, else one

    def exchange(self, own, shared) -> tuple:
        """What the own and the shared operand have -> what A and B have, or M and N; and back."""
        return (own, shared) if self.swap_ab else (shared, own)

    def size(self, shape: Shape) -> tuple[int, int]:
        """M and N."""
        return self.exchange(shape.own, shape.shared)

    @property
    def ctas_per_split(self) -> int:
        """CTAs of a cluster that work on the same part of K."""
        return self.cta_group * self.cluster_n

    @property
    def cluster(self) -> int:
        return self.ctas_per_split * self.split_k

    @property
    def n_step(self) -> int:
        """N of an MMA is a multiple of it."""
        return 8 * self.cta_group

    def tiles(self, shape: Shape) -> tuple[int, int]:
        """Tiles of a group along M of all batches, and along N; those of a cluster count as one."""
        m, n = self.size(shape)
        m_tiles = shape.l * ceil_div(m, CTA_M * self.cta_group)
        return m_tiles, ceil_div(n, self.tile_n * self.cluster_n)


def tile_count(config: Config, problem: Problem) -> int:
    return sum(operator.mul(*config.tiles(shape)) for shape in problem.groups)


def longest_first(config: Config, problem: Problem) -> list[int]:
    """Numbers of the groups in the order in which they are computed: by k-tiles and their bytes."""
    work = [shape.k * (CTA_M + config.size(shape)[1]) for shape in problem.groups]
    return sorted(range(len(work)), key=lambda group: -work[group])


def check(config: Config, problem: Problem) -> "Plan":
    """The plan of a configuration for a problem; ValueError with the reason if it is illegal."""

    def need(legal: bool, reason: str):
        if not legal:
            raise ValueError(f"{reason}: {config}")

    need(config.swap_ab or not problem.is_gemv, "the vector of a gemv is B of the MMA")
    need(config.cta_group in (1, 2), "an MMA runs on one CTA or on a pair")
    is_width = config.tile_n in range(config.n_step, 257, config.n_step)
    need(is_width, "N is 8 to 256 by 8, in a pair by 16")
    need(config.cluster in CLUSTERS, "a cluster has 1, 2, 4 or 8 CTAs")
    need(tile_count(config, problem) < 2**22, "tile numbers, also times stages, have 32 bits")
    plan = Plan(config, problem)
    # `issue_mmas` begins at the first or the third of the four tensor-memory columns of an atom.
    on_atoms = config.tile_n % 64 == 0 or (config.cluster_n == 1 and plan.one_n_tile)
    need(on_atoms, "tiles begin at a multiple of 64 columns, as scales do in an atom")
    need(plan.num_stages >= 2, "shared memory holds two stages")
    need(plan.tmem_allocated <= TMEM_COLUMNS, f"a CTA has {TMEM_COLUMNS} columns of tensor memory")
    if config.split_k > 1:
        need(not config.persistent, "a K split has room for the partial sums of one tile")
        k_tiles = min(ceil_div(shape.k, TILE_K) for shape in problem.groups)
        need(k_tiles >= config.split_k, f"each part of a K split has a k-tile, of {k_tiles}")
    return plan


@functools.cache
def clusters_at_once(size: int) -> int:
    """Clusters of `size` CTAs that are resident at a time, one CTA an SM: by the driver of a B200,
    since chips differ; else, or if its answer is not within a factor of two, by the table."""
    expected = found = CLUSTERS[size]
    try:
        if torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 10:
            found = HardwareInfo(torch.cuda.current_device()).get_max_active_clusters(size)
    except Exception:  # whatever it is, the kernel runs without the answer
        pass
    return found if expected / 2 <= found <= 2 * expected else expected


class Operand(NamedTuple):
    """An operand of the MMA, and where its k-tile lies in a stage and in tensor memory."""

    number: int  # among all, A first
    is_a: bool
    codes: int  # offsets in a stage
    scales: int
    scales_tmem: int  # first column
    boxes: int  # that a CTA loads, at most
    box_rows: int
    atoms: int  # of scale factors, at most


class Plan(Config):
    """A configuration, legal or not, and all else that the kernel knows at compile time. Plans that
    have equal attributes share one. Offsets are in bytes, those of tensor memory in columns."""

    def __init__(self, config: Config, problem: Problem):
        super().__init__(**vars(config))
        self.num_products = products = problem.num_products
        self.num_groups = len(problem.groups)
        self.num_a, self.num_b = self.exchange(products, 1)  # operands
        m_sizes, n_sizes = zip(*map(self.size, problem.groups))
        self.one_n_tile = max(n_sizes) <= self.tile_n * self.cluster_n  # so no A is read twice
        self.one_batch = all(shape.l == 1 for shape in problem.groups)
        self.cta_n = self.tile_n // self.cta_group  # rows of B that a CTA loads
        self.max_b_atoms = ceil_div(self.tile_n, ATOM_ROWS)
        self.box_m = min(CTA_M, 8 * ceil_div(max(m_sizes), 8))  # rows of A in a TMA box
        self.box_n = self.choose_box_n(n_sizes)
        self.choose_epilogue([shape.own for shape in problem.groups])
        # With two accumulator stages the epilogue of a tile overlaps the MMAs of the next one.
        self.acc_columns = products * self.tile_n  # of an accumulator stage
        num_atoms = self.num_a + self.num_b * self.max_b_atoms
        scale_columns = num_atoms * K_BLOCKS * ATOM_COLUMNS
        two_fit = 2 * self.acc_columns + scale_columns <= TMEM_COLUMNS
        self.num_acc_stages = 2 if self.persistent and two_fit else 1
        sums = self.num_acc_stages * self.acc_columns
        self.tmem_allocated = max(32, 1 << (sums + scale_columns - 1).bit_length())
        code_bytes = (self.num_a * CTA_M + self.num_b * self.cta_n) * ROW_BYTES
        self.stage_bytes = code_bytes + num_atoms * SF_BYTES
        self.operands: tuple[Operand, ...] = ()
        codes, atoms = 0, 0  # of the operands before
        for number in range(self.num_a + self.num_b):
            is_a = number < self.num_a
            rows, box_rows = (CTA_M, self.box_m) if is_a else (self.cta_n, self.box_n)
            boxes, max_atoms = (1, 1) if is_a else (rows // box_rows, self.max_b_atoms)
            columns = sums + atoms * K_BLOCKS * ATOM_COLUMNS
            place = codes, code_bytes + atoms * SF_BYTES, columns
            self.operands += (Operand(number, is_a, *place, boxes, box_rows, max_atoms),)
            codes, atoms = codes + rows * ROW_BYTES, atoms + max_atoms
        a, b = self.operands[: self.num_a], self.operands[self.num_a :]
        self.own, (self.shared,) = self.exchange(a, b)
        # As many stages as fit beside what does not depend on them.
        self.lay_out_smem(0)
        room = max(0, SMEM_BYTES - self.smem_bytes)
        self.lay_out_smem(room // (self.stage_bytes + 16 * products))
        self.num_threads = 32 * (self.load_warp_id + 2)

    def choose_box_n(self, n_sizes: Sequence[int]) -> int:
        """The preferred box that divides a tile. Groups, whose last tiles differ in width, take
        smaller boxes where padding would be more than a sixth of N."""
        last_widths = [ceil_div(n % self.tile_n, self.cta_group) for n in n_sizes]
        for box in BOX_N:
            padding = sum(-width % box for width in last_widths) if len(n_sizes) > 1 else 0
            if self.cta_n % box == 0 and padding <= sum(n_sizes) // (6 * self.cta_group):
                return box
        return 8

    def choose_epilogue(self, row_lengths: list[int]):
        """row_lengths: elements of a row of C in memory, of each group."""
        self.warpgroups = 2 if self.num_products * self.tile_n >= 128 else 1  # of the epilogue
        self.load_warp_id = WARPGROUP * self.warpgroups  # the MMA warp comes after it
        # Columns of an epilogue tile: 16, if each warpgroup of each part of a K split has one then.
        # Not swapped, C is contiguous along N, where 8 elements are half a sector of 32 bytes.
        in_16 = not self.swap_ab or self.tile_n >= 16 * self.split_k * self.warpgroups
        self.epi_n = 16 if self.tile_n % 16 == 0 and in_16 else 8
        # A lane stores 32 bytes, 16 elements of a row of C, else one. Swapped, C is contiguous
        # along M, across lanes, so it is transposed through shared memory.
        self.wide_stores = self.epi_n == 16 and all(n % 16 == 0 for n in row_lengths)
        self.stores_via_smem = self.wide_stores and self.swap_ab
        # Epilogue tiles that a part of a K split adds up; bytes of one that a warp sends, a product
        self.owned_epi_tiles = ceil_div(ceil_div(self.tile_n, self.epi_n), self.split_k)
        self.partial_bytes = 32 * self.epi_n * 4

    def lay_out_smem(self, num_stages: int):
        """What lies behind so many stages. None needs padding: each size is a multiple of what the
        next region is aligned to."""
        stage_barriers = 8 * num_stages * self.num_products
        acc_barriers = 8 * self.num_acc_stages
        # [sender][epilogue tile][product][quarter]
        partials = (self.split_k - 1) * self.owned_epi_tiles * self.num_products * WARPGROUP
        self.num_stages = num_stages
        self.transposition = num_stages * self.stage_bytes
        self.partials = self.transposition + 1024 * self.load_warp_id * self.stores_via_smem
        self.full = self.partials + partials * self.partial_bytes
        self.empty = self.full + stage_barriers
        self.acc_full = self.empty + stage_barriers
        self.acc_empty = self.acc_full + acc_barriers
        self.partials_full = self.acc_empty + acc_barriers
        self.tmem_address = self.partials_full + 8
        self.smem_bytes = self.tmem_address + 8

    def __eq__(self, other) -> bool:
        return isinstance(other, Plan) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((*vars(self).values(),))


# ---- PTX that the DSL has no word for, arithmetic, descriptors -----------------------------------

TYPES = {"r": Int32, "l": Int64, "h": Int16, "f": Float32}  # by constraint of inline assembly


@functools.cache
def ptx(text: str, operands: str = "", results: str = ""):
    """A device function that issues `text`, in which $0... stand for results, then for operands.
    operands, results: a letter of TYPES for each. Of several results the function returns a list.
    """
    constraints = ",".join([*(f"={letter}" for letter in results), *operands])

    @dsl_user_op
    def issue(*args, loc=None, ip=None):
        where = {"loc": loc, "ip": ip}
        pairs = zip(operands, args, strict=True)
        values = [TYPES[letter](arg).ir_value(**where) for letter, arg in pairs]
        kinds = [TYPES[letter].mlir_type for letter in results]
        out_type = llvm.StructType.get_literal(kinds) if len(kinds) > 1 else next(iter(kinds), None)
        out = llvm.inline_asm(out_type, values, text, constraints, has_side_effects=True, **where)
        if len(kinds) < 2:
            return TYPES[results](out) if results else None
        parts = [llvm.extractvalue(kind, out, [i], **where) for i, kind in enumerate(kinds)]
        return [TYPES[letter](part) for letter, part in zip(results, parts)]

    return issue


# Barriers. The DSL's remote arrives are .release at cluster scope: a fence of all memory, which
# takes hundreds to thousands of cycles. Here they hand over tensor memory, which the fences of
# tcgen05 order, or a number of bytes.
mbarrier_expect_remote = ptx(
    "mbarrier.arrive.expect_tx.relaxed.cluster.shared::cluster.b64 _, [$0], $1;", "rr"
)
mbarrier_arrive_remote = ptx("mbarrier.arrive.release.cta.shared::cluster.b64 _, [$0];", "r")
mapa = ptx("mapa.shared::cluster.u32 $0, $1, $2;", "rr", "r")
tcgen05_fence_before = ptx("tcgen05.fence::before_thread_sync;")
tcgen05_fence_after = ptx("tcgen05.fence::after_thread_sync;")

# An Int32 that all lanes have, in a way that ptxas knows: it goes to a uniform register.
uniform = ptx("redux.sync.or.b32 $0, $1, -1;", "r", "r")

# Prefetches of what has no pointer type: the address of a parameter, a number of bytes.
prefetch_tensormap = ptx("prefetch.tensormap [$0];", "l")
bulk_prefetch = ptx("cp.async.bulk.prefetch.L2.global [$0], $1;", "lr")

ld_shared_b32 = ptx("ld.shared.b32 $0, [$1];", "r", "r")
ld_shared_v4 = ptx("ld.shared.v4.b32 {$0, $1, $2, $3}, [$4];", "r", "rrrr")
ld_shared_v4_f32 = ptx("ld.shared.v4.f32 {$0, $1, $2, $3}, [$4];", "r", "ffff")
st_async_v4_f32 = ptx(
    "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [$0], {$1, $2, $3, $4}, [$5];",
    "rffffr",
)
st_global_b16 = ptx("st.global.L1::no_allocate.b16 [$0], $1;", "lh")
st_global_v8 = ptx(
    "st.global.L1::no_allocate.v8.b32 [$0], {$1, $2, $3, $4, $5, $6, $7, $8};", "lrrrrrrrr"
)
stmatrix_x4_trans = ptx(
    "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [$0], {$1, $2, $3, $4};", "rrrrr"
)

cvt_c_x2 = ptx(f"cvt.rn.{C_PTX}x2.f32 $0, $2, $1;", "ff", "r")  # $1 goes to the low half
cvt_c = ptx(f"cvt.rn.{C_PTX}.f32 $0, $1;", "f", "h")
exp2_at_most_2_12 = ptx("min.f32 $0, $1, 0f41400000;\nex2.approx.ftz.f32 $0, $0;", "f", "f")
pack_x2 = ptx("mov.b64 $0, {$1, $2};", "ff", "l")  # two fp32 side by side
unpack_x2 = ptx("mov.b64 {$0, $1}, $2;", "l", "ff")
mul_x2 = ptx("mul.rn.f32x2 $0, $1, $2;", "ll", "l")
fma_x2 = ptx("fma.rn.f32x2 $0, $1, $2, $3;", "lll", "l")


def tma_load(to, tensormap, coordinates, barrier, cta_group, mask=None, policy=None):
    """A box from global to shared memory, of each CTA of `mask` at the same offset if it is given.
    cta_group: 2 if the barrier is that of the pair's leader. policy: of the L2."""
    operands, types = [to, tensormap, *coordinates, barrier], "rlrrrr"
    space, group = ("cluster", ".cta_group::2") if cta_group == 2 else ("cta", "")
    multicast, hint, last = "", "", ""
    if mask is not None:
        space, multicast, last, types = "cluster", ".multicast::cluster", ", $6", types + "h"
        operands.append(mask)
    if policy is not None:
        hint, last, types = ".L2::cache_hint", f"{last}, ${len(operands)}", types + "l"
        operands.append(policy)
    text = f"cp.async.bulk.tensor.3d.shared::{space}.global.tile.mbarrier::complete_tx::bytes"
    text += f"{multicast}{group}{hint} [$0], [$1, {{$2, $3, $4}}], [$5]{last};"
    ptx(text, types)(*operands)


def tcgen05_cp(cta_group, address, descriptor):
    """A scale-factor atom to 4 columns, the same in all four quarters of the lanes."""
    ptx(f"tcgen05.cp.cta_group::{cta_group}.32x128b.warpx4 [$0], $1;", "rl")(address, descriptor)


def tcgen05_mma(cta_group, d_tmem, a_desc, b_desc, idesc, sfa_tmem, sfb_tmem, accumulate):
    """D = A B, plus D unless `accumulate` is 0."""
    text = (
        "{\n.reg .pred P;\nsetp.ne.b32 P, $6, 0;\n"
        f"tcgen05.mma.cta_group::{cta_group}.kind::mxf4nvf4.block_scale.block16"
        ".collector::a::discard [$0], $1, $2, $3, [$4], [$5], P;\n}"
    )
    ptx(text, "rllrrrr")(d_tmem, a_desc, b_desc, idesc, sfa_tmem, sfb_tmem, accumulate)


def tcgen05_ld(addresses, columns, transposable):
    """32 lanes x `columns` columns from each address, and the wait: a list of values for each.
    transposable: two 16x256b loads, of rows 0-15 and 16-31, in the form that stmatrix takes. Of 16
    columns value 8r + 4o + 2h + j is row 16r + 8h + lane / 4, column 8o + 2 * (lane % 4) + j.
    Else 32x32b: value i is row lane, column i."""
    shape, first_lanes = ("16x256b", (0, 16)) if transposable else ("32x32b", (0,))
    repeat = columns // 8 if transposable else columns
    per_load, total = columns // len(first_lanes), columns * len(addresses)
    text, operands = "", []
    for address, lane in itertools.product(addresses, first_lanes):
        first = per_load * len(operands)
        names = ", ".join(f"${i}" for i in range(first, first + per_load))
        source = f"[${total + len(operands)}]"
        text += f"tcgen05.ld.sync.aligned.{shape}.x{repeat}.b32 {{{names}}}, {source};\n"
        operands.append(address + (lane << LANE_BIT))
    text += "tcgen05.wait::ld.sync.aligned;"
    values = ptx(text, "r" * len(operands), "f" * total)(*operands)
    return [values[i : i + columns] for i in range(0, total, columns)]


@dsl_user_op
def tensormap_address(atom, *, loc=None, ip=None):
    """Generic address of a tensormap that is a kernel parameter."""
    kind = cute_ir.PtrType.get(Int64.mlir_type, cute.AddressSpace.generic, 64)
    executable = cute_nvgpu_ir.atom_make_exec_tma(atom._trait.value, loc=loc, ip=ip)
    return cute_nvgpu_ir.get_tma_desc_addr(kind, executable, loc=loc, ip=ip).toint(loc=loc, ip=ip)


def packed(values) -> list:
    """Each pair of values as two elements of C, in a register."""
    return [cvt_c_x2(low, high) for low, high in zip(values[::2], values[1::2])]


def silu(values):
    """x / (1 + e^-x) of each x, as x h / (1 + h^2) * h with h = e^(x/2); two share a reciprocal.

    To a relative (|x| + 8) 2^-23 for every finite x, since no step leaves the range of fp32 before
    the result does: h is 2^12 at most, where 1 + h^-2 is 1, and 2^-79 where the result rounds to 0.
    Of the error |x| is the rounded exponent's, 4 ex2.approx's, whose result counts twice, 1
    rcp.approx's, 3 that of six roundings. Below 2^-126 it is an absolute 2^-149."""
    found = []
    for values_x2 in zip(values[::2], values[1::2]):
        x = pack_x2(*values_x2)
        exponents = unpack_x2(mul_x2(x, pack_x2(0.7213475204444817, 0.7213475204444817)))
        h = pack_x2(*map(exp2_at_most_2_12, exponents))
        first, second = unpack_x2(fma_x2(h, h, pack_x2(1.0, 1.0)))
        reciprocal = cute.arch.rcp_approx(first * second)
        over = mul_x2(pack_x2(second, first), pack_x2(reciprocal, reciprocal))  # 1 / (1 + h^2)
        found += unpack_x2(mul_x2(mul_x2(x, mul_x2(over, h)), h))
    return found


def select(condition, a, b):
    """a if condition else b, without a branch: of Int32, of Int64, or of each of a sequence."""
    if isinstance(a, (list, tuple)):
        return [select(condition, x, y) for x, y in zip(a, b)]
    kind = Int64 if Int64 in (type(a), type(b)) else Int32
    return kind(cutlass.select_(condition, kind(a), kind(b)))


def div(a, b):
    """Quotient of non-negative Int32: DSL integers divide as Python's, rounding down at a cost."""
    return Int32(Uint32(a) // Uint32(b))


def mod(a, b):
    return Int32(Uint32(a) % Uint32(b))


def div_up(a, b):
    return div(a + (b - 1), b)


def within(index: int, count):
    """Whether `index` is below `count`, which is at least 1: index 0 needs no test."""
    return Boolean(True) if index == 0 else count > index


# Shared-memory matrix descriptors without an address (PTX ISA, "Shared memory descriptor"), lengths
# in units of 16 bytes: at bit 32 from 8 rows to the next 8, at 46 the version of tcgen05, at 61 the
# swizzle, 2 for 128 bytes. At 16 the leading dimension, which counts in neither layout used here.
SCALE_DESCRIPTOR = 1 << 16 | 128 >> 4 << 32 | 1 << 46
CODE_DESCRIPTOR = 1 << 16 | 1024 >> 4 << 32 | 1 << 46 | 2 << 61  # K-major
K_BLOCK_STEP = K_BLOCK // 2 >> 4  # from a K block to the next one, in units of 16 bytes
SMEM_OFFSET = 0x3FFFF  # of a shared address, what lies inside the CTA; the rank is at bit 24
# Instruction descriptor of a block-scaled MMA without M / 128, at bit 27, and N / 8, at bit 17 (PTX
# ISA, "Instruction descriptor"): A and B are e2m1, scales ue4m3, which is 0 at bit 23.
INSTRUCTION_DESCRIPTOR = 1 << 7 | 1 << 10


# ---- kernel: what host, launch and kernel hand each other, what a CTA knows ----------------------


class Words:
    """What `bind` hands to `Kernel.__call__`, which is compiled host code. Of each group, in the
    order of their tiles: addresses of the codes and of the scales of each operand, A first, then
    `MORE`. stored_n: rows of B in memory, more than n in a gemv.

    A struct by the DSL's protocol JitArgument, since the host spends time on each argument."""

    MORE = "c", "m", "n", "k", "l", "stored_n"

    def __init__(self, groups: Sequence[Sequence[int]]):
        self.memory = array.array("q", itertools.chain(*groups))
        self.of_a_group = len(groups[0])

    def __c_pointers__(self):
        return [self.memory.buffer_info()[0]]

    def __get_mlir_types__(self):
        return [llvm.StructType.get_literal([Int64.mlir_type] * len(self.memory))]

    def __new_from_mlir_values__(self, values):
        count = range(len(self.memory))
        words = [Int64(llvm.extractvalue(Int64.mlir_type, values[0], [i])) for i in count]
        return [words[i : i + self.of_a_group] for i in count[:: self.of_a_group]]


class Group(NamedTuple):
    """What the kernel knows of a group: numbers, or lists (`select`) with A operands first."""

    code_maps: list  # addresses of tensormaps
    scale_maps: list
    scales: list  # addresses of scale factors
    c: Int64
    first_tile: Int32  # its number among the tiles of all groups
    m: Int32
    n: Int32
    k: Int32
    l: Int32


def ring(depth) -> PipelineState:
    """A ring's first stage: its consumer waits for the phase, its producer for the one before."""
    return PipelineState(depth, Int32(0), Int32(0), Int32(0))


@dataclass(frozen=True)
class Tile:
    """An output tile, of which this CTA has 128 rows."""

    group: Group
    batch: Int32
    m: Int32  # first row of this CTA
    n: Int32  # first column
    width: Int32  # columns to compute, a multiple of Config.n_step
    b_atoms: Int32  # scale-factor atoms that these lie in
    k_begin: Int32  # first k-tile of this part of a K split
    k_count: Int32  # k-tiles of this part

    def atom(self, operand: Operand, index: int = 0):
        """Number of a scale-factor atom of this tile, or of the last one of the batch."""
        first, extent = (self.m, self.group.m) if operand.is_a else (self.n, self.group.n)
        atoms = div_up(extent, ATOM_ROWS)
        first = div(first, ATOM_ROWS) + index
        return self.batch * atoms + cutlass.min(first, atoms - 1)


class Cta:
    """What a CTA knows at run time, and what its warps do.

    In methods under @cute.jit the DSL compiles `if` and `for`, unless they say const_expr or
    range_constexpr; comprehensions are Python. The other methods are plain Python that runs while
    the kernel is traced.

    Tiles are dealt in rounds, the longest first, a tile to each cluster. The last round may not
    reach all, so it goes to those that had the shortest tiles. Who has none of it fills fewer
    stages: the others get more of DRAM, and all end together."""

    def __init__(self, plan: Plan, groups: list[Group], schedule: Sequence):
        self.plan, self.groups = plan, groups
        clusters, full_rounds, last, stages_if_idle = schedule
        # Shared address of its memory, with its rank at bit 24. Where ptxas knows the symbol, it
        # makes the address anew at each use, and keeps what the loops need in vector registers.
        self.smem = uniform(cute.arch.get_dyn_smem(cutlass.Uint8, 1024).toint())
        # Rank in the cluster: (k_rank * cluster_n + n_rank) * cta_group + pair_rank.
        self.rank = uniform(cute.arch.block_idx_in_cluster()) if plan.cluster > 1 else Int32(0)
        self.pair_rank = mod(self.rank, plan.cta_group)  # 0: the leader of the pair
        self.n_rank = mod(div(self.rank, plan.cta_group), plan.cluster_n)
        # Which part of a K split.
        self.k_rank = div(self.rank, plan.ctas_per_split) if plan.split_k > 1 else Int32(0)
        # Its cluster's place in a round, and in the last round; tiles, and stages that it fills.
        self.slot = self.last_slot = div(Int32(cute.arch.block_idx()[0]), plan.cluster)
        self.num_tiles, self.num_stages = Int32(1), Int32(plan.num_stages)
        self.full_rounds, self.num_clusters = full_rounds, clusters
        if plan.persistent:
            self.last_slot = clusters - 1 - self.slot
            has_last = last > self.last_slot
            self.num_stages = select(has_last, plan.num_stages, stages_if_idle)
            self.num_tiles = full_rounds + select(has_last, 1, 0)
        self.mma_group = tcgen05.CtaGroup.TWO if plan.cta_group == 2 else tcgen05.CtaGroup.ONE

    @cute.jit
    def run(self, warp_id):
        if warp_id == self.plan.load_warp_id:
            self.load_warp()
        elif warp_id < self.plan.load_warp_id:
            self.epilogue_warp(warp_id)
        else:
            self.mma_warp()

    def tile_at(self, i) -> Tile:
        """This CTA's part of its cluster's i-th tile.

        A GPC merges what its CTAs read at the same time. Without clusters neighbours are in one
        GPC, and get the same own operand. Clusters take GPCs by turns, so those of one GPC are
        eight apart: tiles run along M first, and they get the same B."""
        plan = self.plan
        number = self.slot
        if plan.persistent:
            slot = select(i < self.full_rounds, self.slot, self.last_slot)
            number = i * self.num_clusters + slot
        group = self.groups[0]
        for later in self.groups[1:]:
            group = Group(*select(number >= later.first_tile, later, group))
        index, batch = number - group.first_tile, Int32(0)
        m_tiles = div_up(group.m, CTA_M * plan.cta_group)
        n_tiles = 1 if plan.one_n_tile else div_up(group.n, plan.tile_n * plan.cluster_n)
        if not plan.one_batch:
            tiles = m_tiles * n_tiles
            index, batch = mod(index, tiles), div(index, tiles)
        m_first = plan.cluster > 1 or not plan.swap_ab
        if m_first and not plan.one_n_tile:
            m_tile, n_tile = mod(index, m_tiles), div(index, m_tiles)
        else:
            m_tile, n_tile = div(index, n_tiles), mod(index, n_tiles)
        m = (m_tile * plan.cta_group + self.pair_rank) * CTA_M
        n = (n_tile * plan.cluster_n + self.n_rank) * plan.tile_n
        # A tile beyond the last column computes one step of N, which is not stored.
        rest = (group.n - n + (plan.n_step - 1)) & -plan.n_step
        width = cutlass.max(cutlass.min(rest, Int32(plan.tile_n)), Int32(plan.n_step))
        k_tiles = div_up(group.k, TILE_K)
        k_begin = div(self.k_rank * k_tiles, plan.split_k)
        k_count = div((self.k_rank + 1) * k_tiles, plan.split_k) - k_begin
        b_atoms = div_up(mod(n, ATOM_ROWS) + width, ATOM_ROWS)
        return Tile(group, batch, m, n, width, b_atoms, k_begin, k_count)

    # ---- kernel: barriers, meetings --------------------------------------------------------------

    def bar(self, first: int, index=0, product: int | None = None):
        """This CTA's mbarrier number `index` of a pipeline, which begins at `first`."""
        if product is not None:
            index = index * self.plan.num_products + product
        address = self.smem + first + 8 * index
        return cute.make_ptr(Int64, address, cute.AddressSpace.smem, assumed_align=8)

    def in_leader(self, barrier):
        """Shared address of the same barrier in a pair's leader: bit 24 is the last of the rank."""
        address = barrier.toint()
        return address & ~(1 << 24) if self.plan.cta_group == 2 else address

    def prepare_barriers(self):
        plan, init = self.plan, cute.arch.mbarrier_init
        for stage, product in itertools.product(range(plan.num_stages), range(plan.num_products)):
            init(self.bar(plan.full, stage, product), plan.cta_group)
            init(self.bar(plan.empty, stage, product), plan.cluster_n)
        for stage in range(plan.num_acc_stages):
            init(self.bar(plan.acc_full, stage), 1)
            init(self.bar(plan.acc_empty, stage), plan.load_warp_id * plan.cta_group)
        init(self.bar(plan.partials_full), 1)
        cute.arch.mbarrier_init_fence()
        if plan.split_k > 1:
            sent = (plan.split_k - 1) * plan.num_products * WARPGROUP * plan.partial_bytes
            num_bytes = self.num_owned(self.tile_at(Int32(0))) * sent
            cute.arch.mbarrier_arrive_and_expect_tx(self.bar(plan.partials_full), num_bytes)

    def cta_sync(self, barrier_id: int):
        cute.arch.barrier(barrier_id=barrier_id, number_of_threads=self.plan.num_threads)

    def cluster_sync(self):
        if self.plan.cluster > 1:
            cute.arch.cluster_arrive_relaxed()  # after mbarrier_init_fence
            cute.arch.cluster_wait()

    def teardown_sync(self):
        """Past here tensor memory has been read, and no CTA of the cluster will write to another or
        arrive on its barriers: each has waited for all that is sent to it."""
        self.cta_sync(TEARDOWN_BARRIER)
        self.cluster_sync()

    # ---- kernel: load warp -----------------------------------------------------------------------

    @cute.jit
    def load_warp(self):
        plan = self.plan
        with cute.arch.elect_one():
            self.prepare_barriers()
        self.cluster_sync()
        cute.arch.barrier_arrive(barrier_id=SETUP_BARRIER, number_of_threads=plan.num_threads)
        cute.arch.griddepcontrol_launch_dependents()
        with cute.arch.elect_one():
            state = ring(self.num_stages)
            for i in cutlass.range(self.num_tiles, unroll=1):
                tile = self.tile_at(i)
                for j in cutlass.range(tile.k_count, unroll=1):
                    if j == 0:  # what the loop needs is computed by now
                        cute.arch.griddepcontrol_wait()
                    self.load_stage(tile, tile.k_begin + j, state)
                    state.advance()
            if const_expr(plan.ctas_per_split > 1):  # commits of other CTAs are on their way
                for _ in cutlass.range(self.num_stages, unroll=1):
                    for product in cutlass.range_constexpr(plan.num_products):
                        self.wait_empty(state, product)
                    state.advance()
        self.teardown_sync()

    def load_stage(self, tile: Tile, k_tile, state: PipelineState):
        """Fill a stage: for each product expect its bytes, whoever sends them, and send this CTA's.

        A product's own operand is loaded once that product's MMAs have released the stage; the
        shared one, whose bytes count with product 0, once those of all have."""
        plan, shared_bytes = self.plan, self.bytes_of(tile, self.plan.shared)
        for product, own in enumerate(plan.own):
            self.wait_empty(state, product)
            num_bytes = self.bytes_of(tile, own) + (shared_bytes if product == 0 else 0)
            full = self.bar(plan.full, state.index, product)
            if plan.cta_group == 2:
                mbarrier_expect_remote(self.in_leader(full), num_bytes)
            else:
                cute.arch.mbarrier_arrive_and_expect_tx(full, num_bytes)
            self.load(tile, k_tile, state, own, product)
        self.load(tile, k_tile, state, plan.shared, 0)

    def extent(self, tile: Tile, operand: Operand) -> tuple:
        """Boxes and scale-factor atoms of an operand that a CTA receives."""
        if operand.is_a:
            return 1, 1
        return div_up(div(tile.width, self.plan.cta_group), operand.box_rows), tile.b_atoms

    def bytes_of(self, tile: Tile, operand: Operand):
        boxes, atoms = self.extent(tile, operand)
        return boxes * (operand.box_rows * ROW_BYTES) + atoms * SF_BYTES

    def wait_empty(self, state: PipelineState, product: int):
        cute.arch.mbarrier_wait(self.bar(self.plan.empty, state.index, product), state.phase ^ 1)

    @cute.jit
    def load(self, tile: Tile, k_tile, state: PipelineState, operand: Operand, product: int):
        """This CTA's rows of an operand of a k-tile, and all scales.

        CTAs that share A issue by turns and multicast to all. Scales are the next one's turn, so
        that no CTA issues both."""
        plan, number = self.plan, operand.number
        sharers = sum(1 << (i * plan.cta_group) for i in range(plan.cluster_n))
        first = self.k_rank * plan.ctas_per_split + self.pair_rank
        is_multicast = operand.is_a and plan.cluster_n > 1
        mask = Int32(sharers) << first if const_expr(is_multicast) else None
        # Swapped these are the weights, of which one tile along N makes one read.
        is_read_once = operand.is_a and plan.swap_ab and plan.one_n_tile
        policy = Int64(EVICT_FIRST) if is_read_once else None
        barrier = self.in_leader(self.bar(plan.full, state.index, product))
        how = barrier, plan.cta_group, mask, policy
        b_row = tile.n + self.pair_rank * div(tile.width, plan.cta_group)
        first_row = tile.m if const_expr(operand.is_a) else b_row
        stage = self.smem + state.index * plan.stage_bytes
        boxes, atoms = self.extent(tile, operand)
        for box in cutlass.range_constexpr(operand.boxes):
            if within(box, boxes) if mask is None else self.is_turn(k_tile + number):
                row = box * operand.box_rows
                to = stage + (operand.codes + row * ROW_BYTES)
                at = k_tile * TILE_K, first_row + row, tile.batch
                tma_load(to, tile.group.code_maps[number], at, *how)
        for atom in cutlass.range_constexpr(operand.atoms):
            if within(atom, atoms) if mask is None else self.is_turn(k_tile + number + 1):
                to = stage + (operand.scales + atom * SF_BYTES)
                at = 0, k_tile * K_BLOCKS, tile.atom(operand, atom)
                tma_load(to, tile.group.scale_maps[number], at, *how)

    def is_turn(self, number):
        """Whether this CTA issues a multicast, of those that share A."""
        return mod(number, self.plan.cluster_n) == self.n_rank

    # ---- kernel: MMA warp ------------------------------------------------------------------------

    @cute.jit
    def mma_warp(self):
        plan, is_pair = self.plan, self.plan.cta_group == 2
        address = self.smem + plan.tmem_address
        holder = cute.make_ptr(Int32, address, cute.AddressSpace.smem, assumed_align=8)
        self.cluster_sync()  # in a pair the peer must run before tensor memory is allocated
        cute.arch.alloc_tmem(plan.tmem_allocated, holder, is_two_cta=is_pair)
        cute.arch.relinquish_tmem_alloc_permit(is_two_cta=is_pair)
        self.cta_sync(SETUP_BARRIER)
        tmem_base = ld_shared_b32(address)
        num_tiles = select(self.pair_rank == 0, self.num_tiles, 0)  # of a pair the leader issues
        state = ring(self.num_stages)
        acc = ring(plan.num_acc_stages)
        for i in cutlass.range(num_tiles, unroll=1):
            state = self.mma_tile(self.tile_at(i), tmem_base, acc, state)
            acc.advance()
        self.teardown_sync()
        allocated = cute.arch.retrieve_tmem_ptr(Float32, 16, holder)
        cute.arch.dealloc_tmem(allocated, plan.tmem_allocated, is_two_cta=is_pair)

    @cute.jit
    def mma_tile(self, tile: Tile, tmem_base, acc: PipelineState, state: PipelineState):
        """All MMAs of a tile; the next stage.

        A commit to all load warps that send to this CTA or pair releases what a product has read;
        the last product's, what products share."""
        plan = self.plan
        if const_expr(plan.persistent):
            # The tcgen05_fence_after of this wait is that of the next one, for full[s][p].
            cute.arch.mbarrier_wait(self.bar(plan.acc_empty, acc.index), acc.phase ^ 1)
        tmem = tmem_base, tmem_base + acc.index * plan.acc_columns
        count, senders = plan.ctas_per_split, None
        if const_expr(count > 1):
            senders = Int32((1 << count) - 1) << (self.k_rank * count)
        for j in cutlass.range(tile.k_count, unroll=1):
            for product in cutlass.range_constexpr(plan.num_products):
                cute.arch.mbarrier_wait(self.bar(plan.full, state.index, product), state.phase)
                tcgen05_fence_after()
                accumulate = select(j > 0, 1, 0)
                with cute.arch.elect_one():
                    self.issue_mmas(tile, tmem, state.index, accumulate, product)
                    empty = self.bar(plan.empty, state.index, product)
                    tcgen05.commit(empty, senders, self.mma_group)
            state.advance()
        pair_mask = Int32(3) << self.rank if const_expr(plan.cta_group == 2) else None
        with cute.arch.elect_one():
            tcgen05.commit(self.bar(plan.acc_full, acc.index), pair_mask, self.mma_group)
        return state

    @cute.jit
    def issue_mmas(self, tile: Tile, tmem, stage, accumulate, product: int):
        """The MMAs of a k-tile for one product, each after the copies of its scales.

        accumulate: 0 in the first k-tile, whose first MMA overwrites the sums. The first product
        copies the shared operand's scales, too. An MMA waits for all copies before it, those of a
        whole k-tile for 128 cycles: so copies stand between MMAs. Beyond K all codes are zeros."""
        plan = self.plan
        tmem_base, acc_tmem = tmem
        offset = (self.smem & SMEM_OFFSET) + stage * plan.stage_bytes
        codes_desc = Int64(offset >> 4) + CODE_DESCRIPTOR
        scales_desc = Int64(offset >> 4) + SCALE_DESCRIPTOR
        idesc = (tile.width << 14) + (INSTRUCTION_DESCRIPTOR | plan.cta_group << 27)
        own = plan.own[product]
        a, b = plan.exchange(own, plan.shared)
        copied = (a, b) if product == 0 else (own,)
        d_tmem = acc_tmem + product * plan.tile_n
        a_desc, b_desc = codes_desc + (a.codes >> 4), codes_desc + (b.codes >> 4)
        for block in cutlass.range_constexpr(K_BLOCKS):
            # Atoms of neighbours along N stand side by side, as an MMA of N > 128 reads them.
            sfa_tmem, sfb_tmem = (
                tmem_base + (operand.scales_tmem + ATOM_COLUMNS * block * operand.atoms)
                for operand in (a, b)
            )
            for operand in copied:
                for i in cutlass.range_constexpr(operand.atoms):
                    if within(i, tile.b_atoms):
                        to = (sfa_tmem if operand.is_a else sfb_tmem) + ATOM_COLUMNS * i
                        offset = operand.scales + (i * K_BLOCKS + block) * ATOM_BYTES
                        tcgen05_cp(plan.cta_group, to, scales_desc + (offset >> 4))
            # An atom has 32 of the tile's N in each of its 4 columns of tensor memory: a tile that
            # starts at row 64 of it begins at the third.
            sfb_tmem = sfb_tmem + ((tile.n & (ATOM_ROWS - 1)) >> 5)
            descs = a_desc + K_BLOCK_STEP * block, b_desc + K_BLOCK_STEP * block, idesc
            adds = accumulate if block == 0 else 1
            tcgen05_mma(plan.cta_group, d_tmem, *descs, sfa_tmem, sfb_tmem, adds)

    # ---- kernel: epilogue warps ------------------------------------------------------------------

    @cute.jit
    def epilogue_warp(self, warp_id):
        plan = self.plan
        if warp_id == TENSORMAP_WARP:
            self.prefetch_tensormaps(self.tile_at(Int32(0)))
        if warp_id == SCALE_WARP:
            self.prefetch_scales(self.tile_at(Int32(0)))
        self.cluster_sync()
        self.cta_sync(SETUP_BARRIER)
        self.quarter = warp_id & 3  # of the lanes of tensor memory
        self.warpgroup = warp_id >> 2
        self.lane = Int32(cute.arch.lane_idx())
        tmem_base = ld_shared_b32(self.smem + plan.tmem_address)
        quarter_tmem = tmem_base + ((self.quarter * 32) << LANE_BIT)
        acc = ring(plan.num_acc_stages)
        for i in cutlass.range(self.num_tiles, unroll=1):
            tile = self.tile_at(i)
            self.finish_tile(tile, quarter_tmem + acc.index * plan.acc_columns, acc)
            if const_expr(plan.persistent):
                # Only if a later tile takes this stage, so that each arrival is awaited.
                if i + plan.num_acc_stages < self.num_tiles:
                    tcgen05_fence_before()
                    with cute.arch.elect_one():
                        mbarrier_arrive_remote(self.in_leader(self.bar(plan.acc_empty, acc.index)))
            acc.advance()
        self.teardown_sync()

    def prefetch_tensormaps(self, tile: Tile):
        with cute.arch.elect_one():
            for address in [*tile.group.code_maps, *tile.group.scale_maps]:
                prefetch_tensormap(address)

    def prefetch_scales(self, tile: Tile):
        """The own operands' scale factors of the first stages, to the L2. They need no tensormap,
        so DRAM has work while tensormaps are fetched."""
        plan = self.plan
        k_blocks = div(tile.group.k, K_BLOCK)
        first_block = tile.k_begin * K_BLOCKS
        blocks = cutlass.min(tile.k_count, Int32(plan.num_stages)) * K_BLOCKS
        blocks = cutlass.min(blocks, k_blocks - first_block)
        offset = (Int64(tile.atom(plan.own[0])) * k_blocks + first_block) * ATOM_BYTES
        with cute.arch.elect_one():
            for operand in plan.own:
                bulk_prefetch(tile.group.scales[operand.number] + offset, blocks * ATOM_BYTES)

    @cute.jit
    def finish_tile(self, tile: Tile, acc_tmem, acc: PipelineState):
        """Store a tile once it is complete, an epilogue tile at a time: of a K split those that
        this part owns, after what others own has been sent."""
        plan = self.plan
        cute.arch.mbarrier_wait(self.bar(plan.acc_full, acc.index), acc.phase)
        tcgen05_fence_after()
        if const_expr(plan.split_k > 1):
            self.send_partials(tile, acc_tmem)
        owned = self.num_owned(tile)
        for number in cutlass.range(self.warpgroup, owned, plan.warpgroups, unroll=1):
            column = (number * plan.split_k + self.k_rank) * plan.epi_n
            sums = self.read(acc_tmem + column)
            if const_expr(plan.split_k > 1):
                sums = self.with_partials(sums, number)
            values = sums[0]
            if const_expr(plan.num_products == 2):
                values = [gate * up for gate, up in zip(silu(sums[0]), sums[1])]
            self.store(tile, values, column)

    def read(self, tmem) -> list:
        """Sums of an epilogue tile of each product, from this address on."""
        plan = self.plan
        addresses = [tmem + product * plan.tile_n for product in range(plan.num_products)]
        return tcgen05_ld(addresses, plan.epi_n, plan.stores_via_smem)

    @cute.jit
    def store(self, tile: Tile, values: list, epi_column):
        """Store an epilogue tile: 32 rows of this warp, columns from `epi_column` of the tile on.
        values: fp32 of all columns, where `tcgen05_ld` leaves them (`plan.stores_via_smem`)."""
        plan, group = self.plan, tile.group
        # Where this lane stores: one row of all columns; via SMEM (`transpose`) 16 of one column.
        m = tile.m + self.quarter * 32
        n = tile.n + epi_column
        if const_expr(plan.stores_via_smem):
            m = m + (self.lane & 1) * 16
            n = n + (self.lane >> 1)
        else:
            m = m + self.lane
        columns_left = select(m < group.m, group.n - n, 0)
        # C is [l][shared][own] in memory.
        own, shared = plan.exchange(m, n)
        num_own, num_shared = plan.exchange(group.m, group.n)
        index = (Int64(tile.batch) * num_shared + shared) * num_own + own
        _, column_step = plan.exchange(1, num_own)
        to = group.c + index * C_BYTES
        if const_expr(plan.wide_stores):
            registers = self.transpose(values) if plan.stores_via_smem else packed(values)
            if columns_left > 0:
                st_global_v8(to, *registers)
        else:
            for i in cutlass.range_constexpr(plan.epi_n):
                if columns_left > i:
                    st_global_b16(to + Int64(column_step) * (C_BYTES * i), cvt_c(values[i]))

    def transpose(self, values: list) -> list:
        """16 columns x 32 rows, through shared memory: each lane gets 16 rows of column lane / 2,
        two a word. A column is 64 bytes there: four pieces of 8 rows, at their number XOR bits 1
        and 2 of the column. So stmatrix (a piece of 8 columns) and the loads (two pieces of 4
        columns) touch every bank once."""
        number = self.warpgroup * WARPGROUP + self.quarter
        buffer = self.smem + self.plan.transposition + number * 1024
        column, piece = self.lane & 7, self.lane >> 3
        to = buffer + column * 64 + ((piece ^ (column >> 1)) << 4)
        cute.arch.sync_warp()
        for octet in range(2):  # of columns: 4 registers of rows 0-15, then 4 of rows 16-31
            rows = values[4 * octet :][:4] + values[8 + 4 * octet :][:4]
            stmatrix_x4_trans(to + octet * 512, *packed(rows))
        cute.arch.sync_warp()
        column, piece = self.lane >> 1, (self.lane & 1) * 2
        line = buffer + column * 64
        swizzle = (column >> 1) & 3
        low = ld_shared_v4(line + ((piece ^ swizzle) << 4))
        return low + ld_shared_v4(line + (((piece + 1) ^ swizzle) << 4))

    # ---- kernel: K split -------------------------------------------------------------------------

    # Each part of K owns every split_k-th epilogue tile. It adds the partial sums of the others to
    # its own, from the part after it on, around: timing does not change the result. Sums travel as
    # they lie in registers.

    def num_owned(self, tile: Tile):
        """Epilogue tiles of this part."""
        # The difference may be negative, but not below -(split_k - 1), which div_up adds.
        return div_up(div_up(tile.width, self.plan.epi_n) - self.k_rank, self.plan.split_k)

    @cute.jit
    def send_partials(self, tile: Tile, acc_tmem):
        """Send what other parts own."""
        plan = self.plan
        for i in cutlass.range(div_up(tile.width, plan.epi_n), unroll=1):
            owner, number = mod(i, plan.split_k), div(i, plan.split_k)
            if owner != self.k_rank and mod(number, plan.warpgroups) == self.warpgroup:
                self.send(self.read(acc_tmem + i * plan.epi_n), owner, number)

    def with_partials(self, sums: list, number) -> list:
        """The sums of an owned epilogue tile, with those of all other parts."""
        plan = self.plan
        # The first wait is for the partial sums of all.
        cute.arch.mbarrier_wait(self.bar(plan.partials_full), 0)
        for sender, product in itertools.product(range(plan.split_k - 1), range(len(sums))):
            at = self.partial(sender, number, product) + self.lane * 16
            quads = [ld_shared_v4_f32(at + n * 128) for n in range(0, plan.epi_n, 4)]
            received = itertools.chain(*quads)
            sums[product] = [a + b for a, b in zip(sums[product], received)]
        return sums

    def partial(self, sender, number, product: int):
        """Address of what this quarter of `sender` sends of its owner's epilogue tile `number`."""
        plan = self.plan
        index = (sender * plan.owned_epi_tiles + number) * plan.num_products + product
        index = index * WARPGROUP + self.quarter
        return self.smem + plan.partials + index * plan.partial_bytes

    def send(self, sums: list, owner, number):
        """Send this part of an epilogue tile to its owner. Sender 0 is the part after the owner."""
        split_k = self.plan.split_k
        rank = self.rank + (owner - self.k_rank) * self.plan.ctas_per_split
        sender = mod(self.k_rank - owner + (split_k - 1), split_k)
        barrier = mapa(self.bar(self.plan.partials_full).toint(), rank)
        for product, values in enumerate(sums):
            to = mapa(self.partial(sender, number, product), rank) + self.lane * 16
            for n in range(0, self.plan.epi_n, 4):
                st_async_v4_f32(to + n * 128, *values[n : n + 4], barrier)


# ---- host: compiled launch -----------------------------------------------------------------------


class Kernel:
    """The kernel of one plan. Calling it launches; that is compiled host code."""

    def __init__(self, plan: Plan):
        self.plan = plan

    @cute.kernel
    def kernel(self, maps, addresses, sizes, schedule):
        """Kernel parameters. maps, addresses, sizes: three parts of each `Group`. schedule:
        clusters, full rounds, tiles of the last round, stages that a cluster fills without one."""
        groups = []
        for atoms, (*scales, c), numbers in zip(maps, addresses, sizes):
            tensormaps = [tensormap_address(atom) for atom in atoms]
            count = len(self.plan.operands)
            groups.append(Group(tensormaps[:count], tensormaps[count:], scales, c, *numbers))
        warp_id = cute.arch.make_warp_uniform(cute.arch.thread_idx()[0] >> 5)
        Cta(self.plan, groups, schedule).run(warp_id)

    @cute.jit
    def __call__(self, words):
        plan = self.plan
        maps, addresses, sizes, tiles = [], [], [], Int32(0)
        for *operands, c, m, n, k, l, stored_n in words:
            m, n, k, l, stored_n = map(Int32, (m, n, k, l, stored_n))
            maps.append(self.tensormaps(operands, m, n, k, l, stored_n))
            addresses.append([*operands[1::2], c])
            sizes.append([tiles, m, n, k, l])
            m_tiles = l * div_up(m, CTA_M * plan.cta_group)
            tiles = tiles + m_tiles * div_up(n, plan.tile_n * plan.cluster_n)
        clusters = tiles
        if const_expr(plan.persistent):
            clusters = cutlass.min(tiles, Int32(clusters_at_once(plan.cluster)))
        full_rounds = div(tiles - 1, clusters)  # those before the last one
        last = tiles - full_rounds * clusters  # tiles of the last round
        # Stages that a cluster without a tile in the last round fills: in proportion to its tiles,
        # and up to two more where many have a last tile, since too few cost more than too many.
        fewer = plan.num_stages * full_rounds * clusters + 2 * last * (full_rounds + 1)
        idle = cutlass.min(div(fewer, clusters * (full_rounds + 1)), Int32(plan.num_stages))
        schedule = [clusters, full_rounds, last, idle]
        self.kernel(maps, addresses, sizes, schedule).launch(
            grid=(clusters * plan.cluster, 1, 1),
            block=(plan.num_threads, 1, 1),
            cluster=(plan.cluster, 1, 1),
            smem=plan.smem_bytes,
            min_blocks_per_mp=1,
            use_pdl=OVERLAPS_LAUNCHES,
        )

    def tensormaps(self, addresses, m, n, k, l, stored_n) -> list:
        """TMA atoms of the codes of each operand, which is [l][rows][k] in memory; then of the
        scales of each, as [l, atom of rows][K block][256 Int16]."""
        swizzle = tcgen05.make_smem_layout_atom(tcgen05.SmemLayoutAtomKind.K_SW128, Float4E2M1FN)
        num_int16, k_blocks = ATOM_BYTES // 2, div(k, K_BLOCK)
        row_step, k = cute.assume(Int64(k), K_BLOCK), cute.assume(k, K_BLOCK)
        codes, scales = [], []
        for operand, code, scale in zip(self.plan.operands, addresses[0::2], addresses[1::2]):
            rows, stored = (m, m) if operand.is_a else (n, stored_n)
            box = (operand.box_rows, TILE_K)
            smem = cute.tile_to_shape(swizzle, box, order=(0, 1))
            strides = (row_step, 1, cute.assume(Int64(stored) * row_step, K_BLOCK))
            codes.append(self.tma_atom(Float4E2M1FN, code, (rows, k, l), strides, box, smem))
            box = (num_int16, K_BLOCKS, 1)
            size = (num_int16, k_blocks, l * div_up(stored, ATOM_ROWS))
            strides = (1, num_int16, cute.assume(Int64(k_blocks) * num_int16, num_int16))
            scales.append(self.tma_atom(Int16, scale, size, strides, box, cute.make_layout(box)))
        return codes + scales

    def tma_atom(self, dtype, address, size, strides, box, smem):
        pointer = cute.make_ptr(dtype, address, cute.AddressSpace.gmem, assumed_align=16)
        tensor = cute.make_tensor(pointer, cute.make_layout(size, stride=strides))
        load = cpasync.CopyBulkTensorTileG2SOp(tcgen05.CtaGroup.ONE)
        return cpasync.make_tiled_tma_atom(load, tensor, smem, box)[0]


@functools.cache
def compile_kernel(plan: Plan):
    """Kernel.__call__, compiled, for all problems with this plan."""
    words = [0] * (2 * len(plan.operands) + len(Words.MORE))
    return cute.compile(Kernel(plan), Words([words] * plan.num_groups))


# ---- host: input, launch -------------------------------------------------------------------------

# The way of a tensor: `unpack` names it; `read_problem` tells `Problem`, the key of PICKS; `Plan`
# tells the kernel; `forms_of` and `bind` say what it must be; `words_of` puts its address into
# `Words`, which `compile_kernel` counts; `__call__` and `kernel` bring it to `Group`.
Groups = list[dict[str, torch.Tensor]]  # of each group the tensors that count, by name
COMPILING = threading.Lock()  # one thread at a time compiles


def unpack(data) -> tuple[Groups, output_t]:
    """For each group the tensors that count: codes, scales, c; and what is to be returned."""
    match data:
        case a, b, _, _, sfa, sfb, c:  # gemv, gemm
            return [{"a": a, "b": b, "sfa_permuted": sfa, "sfb_permuted": sfb, "c": c}], c
        case a, b1, b2, _, _, _, sfa, sfb1, sfb2, c:  # dual gemm
            scales = {"sfa_permuted": sfa, "sfb1_permuted": sfb1, "sfb2_permuted": sfb2}
            return [{"a": a, "b1": b1, "b2": b2, **scales, "c": c}], c
        case [*operands], _, [*scales], [*sizes] if len(operands) == len(scales) == len(sizes) > 0:
            items = [(*abc, *pair) for abc, pair in zip(operands, scales)]
            if all(len(tensors) == 5 for tensors in items):
                names = "a", "b", "c", "sfa_permuted", "sfb_permuted"
                groups = [dict(zip(names, tensors)) for tensors in items]
                return groups, [tensors["c"] for tensors in groups]
    found = f"{len(data)} items" if isinstance(data, (tuple, list)) else type(data).__name__
    raise TypeError(
        "data: expected 7 tensors (gemv, gemm), 10 (dual gemm) or 4 lists with an item for each "
        f"group (group gemm), found {found}"
    )


def operand_names(problem: Problem) -> tuple[list[str], str]:
    """Of the own operands, and of the shared one."""
    if problem.is_gemv:
        return ["a"], "b"
    return ["b1", "b2"] if problem.num_products == 2 else ["b"], "a"


@functools.cache
def forms_of(problem: Problem) -> Groups:
    """What the tensors of each group must be: tensors on no device."""

    def dense(dtype: torch.dtype, order: tuple[int, ...], *shape: int) -> torch.Tensor:
        """order: dimensions, the outermost in memory first."""
        stored = torch.zeros([shape[dim] for dim in order], dtype=dtype, device="meta")
        return stored.permute([order.index(dim) for dim in range(len(order))])

    own_names, shared_name = operand_names(problem)
    groups = []
    for shared, own, k, l in problem.groups:
        c = (own, shared) if problem.is_gemv else (shared, own)
        forms = {"c": dense(C_TYPE, (2, 0, 1), *c, l)}
        rows = dict.fromkeys(own_names, own)
        rows[shared_name] = GEMV_ROWS if problem.is_gemv else shared
        for name, extent in rows.items():
            forms[name] = dense(torch.float4_e2m1fn_x2, (2, 0, 1), extent, k // 2, l)
            atoms = 32, 4, ceil_div(extent, ATOM_ROWS), 4, k // K_BLOCK, l
            scales = dense(torch.float8_e4m3fn, (5, 2, 4, 0, 1, 3), *atoms)
            forms[f"sf{name}_permuted"] = scales
        groups.append(forms)
    return groups


def expect(holds: bool, name: str, expected, found, error: type[Exception] = ValueError):
    if not holds:
        raise error(f"{name}: expected {expected}, found {found}")


def label(key: str, group: int, num_groups: int) -> str:
    """What errors call a tensor."""
    return f"{key}[{group}]" if num_groups > 1 else key


def problem_of(data, groups: Groups) -> Problem:
    """The problem that `data` poses; TypeError or ValueError names what is wrong with it."""
    forms = tuple(
        (item.shape, item.stride(), item.dtype, item.device)
        if isinstance(item, torch.Tensor)
        else type(item).__name__
        for tensors in groups
        for item in tensors.values()
    )
    sizes = data[3] if len(data) == 4 else ()
    sizes = tuple(tuple(size) if isinstance(size, list) else size for size in sizes)
    return read_problem(len(data), tuple(groups[0]), sizes, forms)


@functools.cache
def read_problem(count: int, names: tuple[str, ...], sizes: tuple, forms: tuple) -> Problem:
    """As `problem_of`, by the number of items, the names of a group's tensors, the sizes given, and
    of all tensors shape, strides, dtype and device."""
    groups = [dict(zip(names, forms[i:])) for i in range(0, len(forms), len(names))]
    shapes, is_gemv = [], False
    for group, found in enumerate(groups):
        called = {key: label(key, group, len(groups)) for key in names}
        for key, form in found.items():
            expect(isinstance(form, tuple), called[key], "a tensor", form, TypeError)
            expect(form[-1] == forms[0][-1], called[key], forms[0][-1], form[-1])
        sources = "a", "b1" if count == 10 else "b", "c"  # sizes come from these
        for key in sources:
            shape = found[key][0]
            is_legal = len(shape) == 3 and 0 < min(shape) <= max(shape) < 2**30
            expect(is_legal, called[key], "3 dimensions of 1 to 2^30 - 1", f"shape {list(shape)}")
        (m, half_k, l), (n, *_), c = (found[key][0] for key in sources)
        k = 2 * half_k
        expect(k % K_BLOCK == 0, called["a"], f"K a multiple of {K_BLOCK}", k)
        if sizes:
            expect(sizes[group] == (m, n, k, l), f"sizes[{group}]", (m, n, k, l), sizes[group])
        is_gemv = count == 7 and n == GEMV_ROWS and c[1] == 1
        shapes.append(Shape(1, m, k, l) if is_gemv else Shape(m, n, k, l))
    problem = Problem(2 if count == 10 else 1, tuple(shapes), is_gemv)
    expect(len(groups) <= MAX_GROUPS, "sizes", f"at most {MAX_GROUPS} groups", len(groups))
    for group, expected in enumerate(forms_of(problem)):
        for key, (shape, strides, dtype, _) in groups[group].items():
            name, must = label(key, group, len(groups)), expected[key]
            expect(dtype == must.dtype, name, f"dtype {must.dtype}", dtype, TypeError)
            expect(shape == must.shape, name, f"shape {list(must.shape)}", list(shape))
            pairs = zip(shape, zip(strides, must.stride()))
            is_dense = all(size == 1 or found == wanted for size, (found, wanted) in pairs)
            expect(is_dense, name, f"strides {list(must.stride())}", list(strides))
    return problem


def words_of(problem: Problem, config: Config) -> tuple[operator.itemgetter, list]:
    """What takes the tensors of a group in the order of `Words`; and of each group, in the
    order of their tiles, its number and its sizes."""
    own, shared = operand_names(problem)
    a, b = config.exchange(own, [shared])
    pairs = [(name, f"sf{name}_permuted") for name in a + b]
    groups = []
    for group in longest_first(config, problem):
        shape = problem.groups[group]
        m, n = config.size(shape)
        groups.append((group, [m, n, shape.k, shape.l, GEMV_ROWS if problem.is_gemv else n]))
    return operator.itemgetter(*itertools.chain(*pairs), "c"), groups


@functools.cache
def kernel_for(problem: Problem, config: Config):
    """Kernel.__call__, compiled, for a problem in a configuration, and its `words_of`."""
    return compile_kernel(check(config, problem)), words_of(problem, config)


def bind(problem: Problem, groups: Groups, config: Config) -> Callable[[], None]:
    """The launch for the tensors of each group. ValueError if they are not on the current device,
    or if an address is illegal: TMA takes multiples of 16 bytes; c has 32, for wide stores."""
    device = groups[0]["c"].device
    if device.type == "cuda":
        current = torch.cuda.current_device()
        expect(device.index == current, "c", f"cuda:{current}, the current device", device)
    with COMPILING:
        kernel, (tensors_of, order) = kernel_for(problem, config)
    words = []
    for group, sizes in order:
        addresses = [tensor.data_ptr() for tensor in tensors_of(groups[group])]
        if functools.reduce(operator.or_, addresses) % 32:
            for key, tensor in groups[group].items():
                name, multiple = label(key, group, len(groups)), 32 if key == "c" else 16
                is_legal = tensor.data_ptr() % multiple == 0
                expect(is_legal, name, f"an address of {multiple} bytes", hex(tensor.data_ptr()))
        words.append(addresses + sizes)
    return functools.partial(kernel, Words(words))


# ---- the choice: cost model, table ---------------------------------------------------------------


@dataclass(frozen=True)
class CostModel:
    """Constants of `estimate`, in SM cycles and bytes a cycle of the whole chip, fitted to modelled
    times (docs/lab/tuning.md)."""

    start: float = 3030  # from the launch to the first MMA
    meet: float = 250  # more than that, until the CTAs of a cluster have met
    dram: float = 4000  # bytes a cycle
    l2: float = 10200  # bytes a cycle, from the L2 to all SMs
    fill: float = 1.74  # what a byte from DRAM costs the L2, in bytes that an SM reads
    merged: float = 0.4  # part of own operands that neighbours without a cluster read together
    refill: float = 2220  # until a stage that is released is full again
    epilogue: float = 11.7  # a column
    split: float = 390  # each further part of K
    exchange: float = 29.5  # a column of partial sums, each further part of K
    restart: float = 2350  # a further wave of clusters, unless they are persistent


COSTS = CostModel()
ELEMENT_BYTES = 0.5 + 1 / 16  # its code, and its part of a scale
CLOSE = 1.015  # estimates within this ratio are alike
MODELLED = "modelled"  # what a row of the table stands on, unless a GPU has measured it


def soft_max(values: Iterable[float], power: int) -> float:
    """The largest value, and somewhat more where others are near: what overlaps is not free."""
    return sum(value**power for value in values) ** (1 / power)


def tile_cycles(plan: Plan, n: int, k: int) -> tuple[float, float]:
    """Of the main loop of a tile, its MMAs against the filling of stages; and of its epilogue, with
    the exchange of a K split."""
    # An MMA, of both CTAs of a pair: at the rate of the tensor core, or what it takes at least.
    rate, least = n / 2, 32 + n / 4 if plan.cta_group == 1 else 35 + n / 8
    mmas = K_BLOCKS * plan.num_products * max(rate, least)
    k_tiles = ceil_div(ceil_div(k, TILE_K), plan.split_k)
    main_loop = k_tiles * soft_max((mmas, COSTS.refill / plan.num_stages), 4)
    stored = min(n, plan.epi_n * ceil_div(ceil_div(n, plan.epi_n), plan.split_k))
    exchange = COSTS.split + COSTS.exchange * plan.num_products * stored
    return main_loop, COSTS.epilogue * stored + (plan.split_k - 1) * exchange


def memory_cycles(plan: Plan, shape: Shape) -> tuple[float, float]:
    """Of DRAM for the bytes that a group needs, and of the L2 for all that its boxes load."""
    (m, n), (m_tiles, n_tiles) = plan.size(shape), plan.tiles(shape)
    needed = (plan.num_a * m + plan.num_b * n) * shape.l  # rows
    # Of all tiles of a column or row of them; a CTA pair loads a box each.
    a_read = plan.num_a * n_tiles * plan.cta_group * plan.box_m
    b_read = plan.num_b * plan.cta_group * plan.box_n * ceil_div(n, plan.cta_group * plan.box_n)
    own_read, _ = plan.exchange(a_read, b_read)
    merged = COSTS.merged * own_read if plan.cluster == 1 else 0
    row_bytes = shape.k * ELEMENT_BYTES
    l2 = m_tiles * (a_read + b_read - merged) + COSTS.fill * needed
    return row_bytes * needed / COSTS.dram, row_bytes * l2 / COSTS.l2


def estimate(config: Config, problem: Problem) -> float:
    """Rough SM cycles, to rank configurations: start, main loops against DRAM and L2, the last
    epilogue, and further waves of clusters."""
    plan = Plan(config, problem)
    tiles = []  # (main loop, epilogue) in the order in which clusters take them
    for group in longest_first(config, problem):
        shape = problem.groups[group]
        _, n = config.size(shape)
        width = config.n_step * ceil_div(min(n, config.tile_n), config.n_step)
        tiles += [tile_cycles(plan, width, shape.k)] * operator.mul(*config.tiles(shape))
    # The longest tile of each round, or wave: at least what any cluster has.
    longest = tiles[:: clusters_at_once(config.cluster)]
    main_loops = sum(main_loop for main_loop, _ in longest)
    dram, l2 = map(sum, zip(*(memory_cycles(plan, shape) for shape in problem.groups)))
    cycles = COSTS.start + longest[-1][1] + (COSTS.meet if config.cluster > 1 else 0)
    if not config.persistent:
        cycles += (len(longest) - 1) * COSTS.restart
    return cycles + soft_max((main_loops, dram, l2), 5)


def legal_configs(problem: Problem) -> list[Config]:
    """The configurations that `pick` weighs; persistent ones where there are several waves."""
    found = []
    is_vector = all(shape.shared <= 8 for shape in problem.groups)
    for swap_ab in (True,) if is_vector else (True, False):
        m_sizes, n_sizes = zip(*(Config(swap_ab=swap_ab).size(shape) for shape in problem.groups))
        n = max(n_sizes)
        tiles = {64, 128, 192, 256} if n > 8 else {8}
        if 8 < n <= 256:  # one tile, not wider than it must be
            tiles |= {16 * ceil_div(n, 16), 32 * ceil_div(n, 32)}
        pairs = (1, 2) if min(m_sizes) > CTA_M else (1,)
        levers = sorted(tiles), [swap_ab], pairs, CLUSTERS, (1, 2, 4), (False, True)
        for config in itertools.starmap(Config, itertools.product(*levers)):
            try:
                check(config, problem)
            except ValueError:
                continue
            has_waves = tile_count(config, problem) > clusters_at_once(config.cluster)
            if has_waves or not config.persistent:
                found.append(config)
    return found


def by_estimate(problem: Problem) -> Config:
    """The configuration by the cost model: of those close to the best estimate, that with the
    fewest CTAs in a cluster, then the fewest levers besides the tile, then the best estimate."""
    estimates = {config: estimate(config, problem) for config in legal_configs(problem)}

    def order(config: Config) -> tuple:
        levers = vars(config).items() - vars(Config(tile_n=config.tile_n)).items()
        return config.cluster, len(levers), estimates[config]

    limit = CLOSE * min(estimates.values())
    return min((config for config in estimates if estimates[config] <= limit), key=order)


class Pick(NamedTuple):
    """The configuration of a problem, and the GPU and the day on which it was measured to be the
    fastest; without these it is the fastest by modelled times."""

    config: Config
    basis: str = MODELLED


PICKS: dict[Problem, Pick] = {
    Problem(1, (Shape(1, 7168, 16384, 1),), is_gemv=True): Pick(Config(tile_n=8)),
    Problem(1, (Shape(1, 4096, 7168, 8),), is_gemv=True): Pick(Config(tile_n=8, persistent=True)),
    Problem(1, (Shape(1, 7168, 2048, 4),), is_gemv=True): Pick(Config(tile_n=8, persistent=True)),
    Problem(1, (Shape(128, 7168, 16384, 1),)): Pick(Config(cta_group=2, cluster_n=2)),
    Problem(1, (Shape(128, 4096, 7168, 1),)): Pick(Config(split_k=2, cluster_n=2)),
    Problem(1, (Shape(128, 7168, 2048, 1),)): Pick(Config(cta_group=2)),
    Problem(2, (Shape(256, 4096, 7168, 1),)): Pick(Config(swap_ab=False, cta_group=2, cluster_n=2)),
    Problem(2, (Shape(512, 4096, 7168, 1),)): Pick(
        Config(tile_n=128, swap_ab=False, cta_group=2, cluster_n=2)
    ),
    Problem(2, (Shape(256, 3072, 4096, 1),)): Pick(Config(swap_ab=False, cta_group=2, cluster_n=4)),
    Problem(2, (Shape(512, 3072, 7168, 1),)): Pick(
        Config(tile_n=128, swap_ab=False, cta_group=2, cluster_n=2)
    ),
    Problem(1, tuple(Shape(m, 4096, 7168, 1) for m in (80, 176, 128, 72, 64, 248, 96, 160))): Pick(
        Config(tile_n=256, cta_group=2, persistent=True)
    ),
    Problem(1, tuple(Shape(m, 7168, 2048, 1) for m in (40, 76, 168, 72, 164, 148, 196, 160))): Pick(
        Config(tile_n=224, cta_group=2, persistent=True)
    ),
    Problem(1, tuple(Shape(m, 3072, 4096, 1) for m in (192, 320))): Pick(Config(tile_n=128)),
    Problem(1, tuple(Shape(m, 4096, 1536, 1) for m in (128, 384))): Pick(
        Config(tile_n=128, swap_ab=False)
    ),
}


@functools.cache
def pick(problem: Problem) -> Config:
    """The configuration of a problem: that of the table, or by the cost model where there is none.
    What was modelled counts on a chip that holds as many clusters as `CLUSTERS` says."""
    if problem not in PICKS:
        return by_estimate(problem)
    config, basis = PICKS[problem]
    fits = clusters_at_once(config.cluster) >= CLUSTERS[config.cluster]
    return config if fits or basis != MODELLED else by_estimate(problem)


def launch(problem: Problem, groups: Groups, config: Config | None = None):
    """Compute a problem on the tensors of each group, in its pick if no configuration is given."""
    bind(problem, groups, config or pick(problem))()


def custom_kernel(data: input_t) -> output_t:
    """Compute c of any of the four problems (top of this file) in place, and return it.

    The launch is the current device's default queue's: a side queue has to wait for it, and a graph
    that is being captured does not get it."""
    groups, result = unpack(data)
    launch(problem_of(data, groups), groups)
    return result
