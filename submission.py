"""NVFP4 gemv, gemm, dual gemm and group gemm on a B200: one kernel.

THE PROBLEM   C[M, N] = A[M, K] B[N, K], for each of L batches. A and B are e2m1 codes, with a ue4m3
    scale factor for each 16 of them along K: SFA and SFB. Sums are fp32, C is fp16. B is large
    (weights), A small (tokens). The names are the organisers', except in a gemv: its matrix, which
    they call a, is B here.

    problem   A                       B                C
    gemm      a                       b                c
    group     a of each group         b of each group  c of each group
    dual      a                       b1 and b2        c = silu(A B1) * (A B2): two products
    gemv      the vector: row 0 of b  the matrix: a    c, transposed: M is 1, N the organisers' M

THE MMA   has M on the 128 lanes of tensor memory, and N on its columns, in any multiple of 8 (of 16
    over a CTA pair). With `swap_ab`, the default, its A is the problem's B, its M the problem's N,
    and C is stored transposed. `for_mma` does that; behind it A, B, M, N, SFA and SFB are always
    the MMA's. "Own" is the operand that each product of a dual has for itself: the MMA's A if
    swapped, else its B. "Shared" is the other one. A problem of one product has one of each, too.

ONE TILE   gemm with M 128, N 7168, K 2048: Config(cta_group=2, cluster_n=2)
    Swapped, the MMA's M is 7168 and its N 128. A cluster has 2 CTA pairs; 28 clusters compute all.
    A pair computes a tile of 256 x 64, each CTA 128 of its rows. Both pairs need the same A, which
    is loaded once and multicast. Not so in the prefill: before the cluster has met, each leader CTA
    fills its stages by itself, here with all of its k-tiles. K is cut into 8 k-tiles of 256.
    A stage of a CTA has one k-tile: 128 rows of A (16 KB), 32 of the pair's 64 rows of B (4 KB),
    SFA of its rows (2 KB), SFB of all 64, in an atom of 128 (2 KB). 9 stages of 24 KB fit.
    A k-tile is 4 MMAs of 256 x 64 x 64, each after the copies of its SFA and SFB to tensor memory.
    Tensor memory: 64 columns of accumulator, 16 of SFA, 16 of SFB; 128 are allocated.

WARPS   of a CTA, in this order
    4 or 8   epilogue: tensor memory -> registers -> global, an epilogue tile of some columns at a
             time. Warp w reads a quarter of the lanes, w % 4; two warps of a quarter take turns
    1        load: TMA boxes of A and B, and of scale-factor atoms
    1        MMA: scales to tensor memory, block-scaled MMAs. The leader of a CTA pair, which is its
             even CTA, issues for both

PIPELINES   (mbarriers; s: stage, p: product, a: accumulator stage)
    barrier        producer -> consumer  arrivals that complete a phase
    full[s][p]     load -> MMA           1 expect_tx of each load warp, two in a pair, and the bytes
                                         of product p; the shared operand counts with p = 0
    empty[s][p]    MMA -> load           1 commit of each MMA warp that issues and reads what this
                                         CTA loads: cluster_n of them
    gate_full[a]   MMA -> epilogue       1 commit: the first product of a dual tile, the gate,
                                         which goes through silu, is complete (without a K split)
    acc_full[a]    MMA -> epilogue       1 commit: the tile is complete
    acc_empty[a]   epilogue -> MMA       each epilogue warp, of both CTAs of a pair
    partials_full  epilogue -> epilogue  1 expect_tx, and the bytes of the other CTAs' partial sums
    MMAs read shared memory of both CTAs of a pair. So both load warps arrive on full[s][p] of the
    leader, and the other CTA loads nothing before the cluster has met. The epilogue warps of both
    arrive on acc_empty[a] of the leader.

MEETINGS   (named barriers of the CTA, and two phases of the cluster's barrier; where it says
    "arrives; waits" there is work between the two)
    meeting    epilogue             load                 MMA
    CLUSTER 1  arrives, waits       arrives; waits       arrives, waits; in a pair before
                                    after the prefill    it allocates tensor memory
    SETUP      arrives, waits       arrives              arrives, waits
    LAUNCH                          waits before its first load: for the launch before this one
    PREFILL    warp 0 arrives       waits                   (without a cluster; else CLUSTER 1 does)
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

A K-TILE   in stage s, of one product; all roles work on different stages at the same time
    load       wait empty[s] -> expect full[s] -> TMA of A, B, SFA, SFB
    MMA        wait full[s] -> 4 times: copy SFA, copy SFB, MMA -> commit empty[s];
               after the last k-tile of a tile commit acc_full[a]
    epilogue   wait acc_full[a] -> load sums, an epilogue tile at a time -> convert, transpose,
               store -> arrive on acc_empty[a], if a later tile takes it

LAUNCHES   overlap (OVERLAPS_LAUNCHES): a CTA starts where the launch before has left room, and sets
    up. Only its load warp waits for that launch to end. All that reads or writes what another
    launch may touch comes behind this wait: bytes -> MMA -> sums -> c. What comes before it is in
    shared and tensor memory, and prefetches of tensormaps and scales into the L2, which change no
    value. The trigger stands there, too: once each CTA has started, the next launch may.

NUMERICS   silu(x) in fp32, to a relative (|x| + 8) 2^-23, for every finite x (see `silu`).
    A K split adds its parts in one order, so results do not depend on timing.
"""

import array
import functools
import itertools
import operator
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import cutlass
import cutlass.cute as cute
import torch
from cutlass import Boolean, Float4E2M1FN, Float32, Int16, Int32, Int64, Uint32, const_expr

# `_mlir` is private to the DSL, as `_trait` in tensormap_address is: tried with 4.5.2 and 4.8.1.
from cutlass._mlir.dialects import cute as cute_ir
from cutlass._mlir.dialects import cute_nvgpu as cute_nvgpu_ir
from cutlass._mlir.dialects import llvm
from cutlass.cute.nvgpu import cpasync, tcgen05
from cutlass.cutlass_dsl import dsl_user_op
from cutlass.utils import HardwareInfo

from task import input_t, output_t

# ---- the chip, and the sizes of a tile -----------------------------------------------------------

# Clusters that are resident at a time on 8 GPCs, of 1, 2, ... CTAs.
CLUSTERS = 148, 74, 45, 33, 26, 22, 15, 15
CLUSTER_SIZES = 1, 2, 4, 8  # that public kernels have on a B200; 8 CTAs are the portable limit
SMEM_BYTES = 232_448  # what one CTA may ask for
TMEM_COLUMNS = 512
PARAMETER_BYTES = 32_764  # of a kernel

CTA_M = 128  # rows of A of a CTA
TILE_K = 256  # elements of K in a stage: a row of a box with 128-byte swizzle
ROW_BYTES = TILE_K // 2  # of a row of A or B in a stage
A_BYTES = CTA_M * ROW_BYTES  # of an A operand in a stage
C_BYTES = 2  # of an element of C
K_BLOCK = 64  # elements of K in one MMA and in one scale-factor atom
LOG_K_BLOCK = 6
K_BLOCKS = TILE_K // K_BLOCK
ATOM_ROWS = 128  # of A or B in a scale-factor atom: 32 x 4, 4 scales of each
LOG_ATOM_ROWS = 7
ATOM_BYTES = 512
ATOM_COLUMNS = 4  # of tensor memory
LANE_BIT = 16  # of the lane in an address of tensor memory, whose low half is the column
SF_BYTES = K_BLOCKS * ATOM_BYTES  # scales of 128 rows in a stage
MIN_STAGES = 2  # one to load and one to compute; the last k-tiles of a dual hold two (gate_lead)
GEMV_ROWS = 128  # of the operand that has a gemv's vector as its first

OVERLAPS_LAUNCHES = True  # programmatic dependent launch; False: a launch starts when all is done
EVICT_FIRST = 0x12F0000000000000  # L2 policy, as CUTLASS encodes it: read once, so first to go

QUARTERS = 4  # of the 128 lanes of tensor memory: warp w reaches quarter w % 4
TENSORMAP_WARP, SCALE_WARP = 1, 2  # epilogue warps that prefetch at the start
SETUP_BARRIER = 1  # all warps: barriers are initialised, tensor memory is allocated
TEARDOWN_BARRIER = 2  # all warps: tensor memory has been read
PREFILL_BARRIER = 3  # warp 0 and the load warp: empty[s][p] is initialised


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def round_up(a: int, b: int) -> int:
    return ceil_div(a, b) * b


# ---- problem -------------------------------------------------------------------------------------


class GemmShape(NamedTuple):
    """Sizes of a group in elements; l: batches."""

    m: int
    n: int
    k: int
    l: int


class Problem(NamedTuple):
    """What is to be computed for each group, as the top of the file names it."""

    num_products: int
    groups: tuple[GemmShape, ...]
    is_gemv: bool = False  # A is the first of GEMV_ROWS rows


class MmaProblem(NamedTuple):
    """A problem with its operands where the MMA has them."""

    num_a: int  # operands
    num_b: int
    groups: tuple[GemmShape, ...]

    @property
    def num_products(self) -> int:
        return max(self.num_a, self.num_b)

    @property
    def max_n(self) -> int:
        return max(shape.n for shape in self.groups)


@functools.cache
def for_mma(problem: Problem, swap_ab: bool) -> MmaProblem:
    """The one place where A and B, and M and N, are exchanged."""
    if not swap_ab:
        return MmaProblem(1, problem.num_products, problem.groups)
    swapped = tuple(GemmShape(n, m, k, l) for m, n, k, l in problem.groups)
    return MmaProblem(problem.num_products, 1, swapped)


# ---- configuration -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Config:
    """What `pick` chooses. All other compile-time values follow from it and the problem."""

    tile_n: int = 64  # most columns of an output tile
    swap_ab: bool = True  # A of the MMA is the problem's B, the large operand
    cta_group: int = 1  # 1: an MMA has M 128; 2: 256, over a CTA pair
    split_k: int = 1  # CTAs or pairs of a cluster along K, which add their sums
    cluster_n: int = 1  # CTAs or pairs of a cluster along N, which share A by multicast
    persistent: bool = False  # a cluster computes several tiles, else one

    @property
    def ctas_per_split(self) -> int:
        """CTAs of a cluster that work on the same part of K."""
        return self.cta_group * self.cluster_n

    @property
    def cluster(self) -> int:
        """CTAs of a cluster."""
        return self.ctas_per_split * self.split_k

    @property
    def n_step(self) -> int:
        """N of an MMA is a multiple of it."""
        return 8 * self.cta_group

    @property
    def tile_m(self) -> int:
        return CTA_M * self.cta_group

    @property
    def cluster_tile_n(self) -> int:
        """Of the tiles of a cluster, side by side."""
        return self.tile_n * self.cluster_n


def cluster_tiles(config: Config, shape: GemmShape) -> int:
    """Tiles of a group, counted in clusters. shape: the MMA's."""
    m_tiles = ceil_div(shape.m, config.tile_m)
    return shape.l * m_tiles * ceil_div(shape.n, config.cluster_tile_n)


def tile_count(config: Config, problem: Problem) -> int:
    groups = for_mma(problem, config.swap_ab).groups
    return sum(cluster_tiles(config, shape) for shape in groups)


def tile_work(shape: GemmShape) -> int:
    """Groups are computed in descending order of it: those with the longest tiles first."""
    return shape.k * (CTA_M + shape.n)


def check(config: Config, problem: Problem) -> "Plan":
    """The plan of a configuration for a problem, or ValueError with the reason why it has none.
    This is the one statement of what is legal."""

    def need(legal: bool, reason: str):
        if not legal:
            raise ValueError(f"{reason}: {config}")

    mma = for_mma(problem, config.swap_ab)
    need(config.swap_ab or not problem.is_gemv, "the vector of a gemv is B of the MMA")
    need(config.cta_group in (1, 2), "an MMA runs on one CTA or on a pair")
    is_width = config.tile_n in range(config.n_step, 257, config.n_step)
    need(is_width, "N is 8 to 256 by 8, in a pair by 16")
    one_tile = config.cluster_n == 1 and mma.max_n <= config.tile_n
    on_atoms = one_tile or config.tile_n % 64 == 0
    # `issue_mmas` begins at the first or the third of the four tensor-memory columns of an atom.
    need(on_atoms, "tiles begin at a multiple of 64 columns, as scales do in an atom")
    need(config.cluster in CLUSTER_SIZES, "a cluster has 1, 2, 4 or 8 CTAs")
    # `stages_without_last_tile` multiplies tiles by stages.
    need(tile_count(config, problem) < 2**22, "tile numbers, also times stages, have 32 bits")
    plan = make_plan(config, problem)
    need(plan.num_stages >= MIN_STAGES, "shared memory holds two stages")
    need(plan.tmem_allocated <= TMEM_COLUMNS, f"a CTA has {TMEM_COLUMNS} columns of tensor memory")
    if config.split_k > 1:
        need(not config.persistent, "a K split has room for the partial sums of one tile")
        k_tiles = min(ceil_div(shape.k, TILE_K) for shape in problem.groups)
        need(k_tiles >= config.split_k, f"each part of a K split has a k-tile, of {k_tiles}")
    return plan


@functools.cache
def clusters_at_once(size: int) -> int:
    """Clusters of `size` CTAs that are resident at a time, one CTA an SM.

    The driver of a B200 is asked, since chips differ. The table answers without a B200, if the
    question fails, and if the answer is not within a factor of two of the table's."""
    expected = CLUSTERS[size - 1]
    try:
        if torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 10:
            found = HardwareInfo(torch.cuda.current_device()).get_max_active_clusters(size)
            if expected / 2 <= found <= 2 * expected:
                return found
    except Exception:  # whatever it is, the kernel runs without the answer
        pass
    return expected


# ---- plan ----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Plan(Config):
    """A configuration, and all else that the kernel knows at compile time. Problems with equal
    plans share a kernel. Offsets are in bytes, those of tensor memory in columns."""

    num_a: int  # operands
    num_b: int
    num_products: int
    num_groups: int
    one_n_tile: bool  # of each group, so that no A is read twice
    one_batch: bool
    # B of a tile, and TMA boxes
    cta_n: int  # rows of B that a CTA loads
    b_bytes: int  # of these in a stage
    max_b_atoms: int  # scale-factor atoms along N
    box_m: int  # rows of A in a box
    box_n: int  # rows of B
    # epilogue
    load_warp_id: int  # epilogue warps come before it, the MMA warp after it
    warps_per_quarter: int  # two take epilogue tiles by turns
    epi_n: int  # columns of an epilogue tile: 32 lanes of them are what a warp reads at a time
    wide_stores: bool  # 32 bytes a lane, else 2
    stores_via_smem: bool  # wide stores along M, contiguous in C if swapped
    gate_lead: int  # last k-tiles of a dual tile: product 0 of all of them is done before product 1
    partial_bytes: int  # of an epilogue tile of one product that a warp of a K split sends
    epi_tiles_per_owner: int  # of a tile, that one part of a K split adds up, at most
    # tensor memory
    tmem_sfa: int
    tmem_sfb: int
    tmem_allocated: int
    acc_columns: int  # of an accumulator stage
    num_acc_stages: int  # 2: the epilogue of a tile overlaps the MMAs of the next one
    # a stage, A first
    stage_b: int
    stage_sfa: int
    stage_sfb: int
    stage_bytes: int
    # shared memory, stages first
    num_stages: int
    transposition: int
    partials: int
    full: int  # barriers
    empty: int
    acc_full: int
    gate_full: int
    acc_empty: int
    partials_full: int
    tmem_address: int
    smem_bytes: int

    @property
    def num_threads(self) -> int:
        return 32 * (self.load_warp_id + 2)


# Rows of a box of B in the order of preference: about 64, then more, then fewer.
BOX_N = 64, 56, 48, *range(72, 129, 8), *range(40, 0, -8)


def choose_box_n(config: Config, mma: MmaProblem) -> int:
    """The preferred box that divides a tile. Groups, whose last tiles differ in width, take smaller
    boxes where padding would be more than a sixth of N."""
    cta_n = config.tile_n // config.cta_group
    last_widths = []
    if len(mma.groups) > 1:
        widths = (shape.n % config.tile_n for shape in mma.groups)
        last_widths = [ceil_div(width, config.cta_group) for width in widths]
    allowed = sum(shape.n for shape in mma.groups) // (6 * config.cta_group)
    for box in BOX_N:
        padding = sum(-width % box for width in last_widths)
        if cta_n % box == 0 and padding <= allowed:
            return box
    return 8


def choose_epilogue(config: Config, mma: MmaProblem) -> dict[str, int]:
    tile = config.tile_n
    warps_per_quarter = 2 if mma.num_products * tile >= 128 else 1
    # Not swapped, C is contiguous along N, where 8 fp16 are half a sector of 32 bytes.
    epi_n = 16 if not config.swap_ab and tile % 16 == 0 else 8
    # Each warp of each part of a K split has an epilogue tile, if the tile has so many.
    widest = tile // (config.split_k * warps_per_quarter)
    for columns in (64 // mma.num_products, 32, 16):
        if tile % columns == 0 and columns <= widest:
            epi_n = columns
            break
    # Elements of a row of C in memory: stores of 32 bytes need 16 fp16.
    lengths = [shape.m if config.swap_ab else shape.n for shape in mma.groups]
    wide_stores = epi_n % 16 == 0 and all(length % 16 == 0 for length in lengths)
    return {
        "load_warp_id": warps_per_quarter * QUARTERS,
        "warps_per_quarter": warps_per_quarter,
        "epi_n": epi_n,
        "wide_stores": wide_stores,
        "stores_via_smem": wide_stores and config.swap_ab,
        "gate_lead": MIN_STAGES if mma.num_products == 2 and config.split_k == 1 else 0,
        "partial_bytes": 32 * epi_n * 4,
        "epi_tiles_per_owner": ceil_div(ceil_div(tile, epi_n), config.split_k),
    }


def lay_out_tmem(config: Config, mma: MmaProblem, max_b_atoms: int) -> dict[str, int]:
    acc_columns = mma.num_products * config.tile_n
    sfa = ATOM_COLUMNS * K_BLOCKS * mma.num_a
    sfb = ATOM_COLUMNS * K_BLOCKS * mma.num_b * max_b_atoms
    two_fit = 2 * acc_columns + sfa + sfb <= TMEM_COLUMNS
    num_acc_stages = 2 if config.persistent and two_fit else 1
    sums = num_acc_stages * acc_columns
    return {
        "tmem_sfa": sums,
        "tmem_sfb": sums + sfa,
        "tmem_allocated": max(32, 1 << (sums + sfa + sfb - 1).bit_length()),
        "acc_columns": acc_columns,
        "num_acc_stages": num_acc_stages,
    }


def offsets_of(begin: int, **sizes: int) -> dict[str, int]:
    """Where regions lie that follow each other from `begin` on, by name; a last one of size 0 names
    the end. None needs padding: each size is a multiple of what the next region is aligned to."""
    return dict(zip(sizes, itertools.accumulate(sizes.values(), initial=begin)))


def make_plan(config: Config, problem: Problem) -> Plan:
    """What follows from a configuration, legal or not (see `check`). As many stages as fit."""
    mma = for_mma(problem, config.swap_ab)
    products = mma.num_products
    cta_n = config.tile_n // config.cta_group
    max_b_atoms = ceil_div(config.tile_n, ATOM_ROWS)
    epilogue, tmem = choose_epilogue(config, mma), lay_out_tmem(config, mma, max_b_atoms)
    stage = offsets_of(
        mma.num_a * A_BYTES,
        stage_b=mma.num_b * cta_n * ROW_BYTES,
        stage_sfa=mma.num_a * SF_BYTES,
        stage_sfb=mma.num_b * max_b_atoms * SF_BYTES,
        stage_bytes=0,
    )
    # [sender][epilogue tile][product][quarter]
    num_partials = (config.split_k - 1) * epilogue["epi_tiles_per_owner"] * products * QUARTERS

    def shared_memory(num_stages: int) -> dict[str, int]:
        return offsets_of(
            num_stages * stage["stage_bytes"],
            transposition=1024 * epilogue["load_warp_id"] if epilogue["stores_via_smem"] else 0,
            partials=num_partials * epilogue["partial_bytes"],
            full=8 * num_stages * products,
            empty=8 * num_stages * products,
            acc_full=8 * tmem["num_acc_stages"],
            gate_full=8 * tmem["num_acc_stages"],
            acc_empty=8 * tmem["num_acc_stages"],
            partials_full=8,
            tmem_address=8,
            smem_bytes=0,
        )

    room = max(0, SMEM_BYTES - shared_memory(0)["smem_bytes"])
    num_stages = room // (stage["stage_bytes"] + 16 * products)
    return Plan(
        **vars(config),
        num_a=mma.num_a,
        num_b=mma.num_b,
        num_products=products,
        num_groups=len(mma.groups),
        one_n_tile=mma.max_n <= config.cluster_tile_n,
        one_batch=all(shape.l == 1 for shape in mma.groups),
        cta_n=cta_n,
        b_bytes=cta_n * ROW_BYTES,
        max_b_atoms=max_b_atoms,
        box_m=min(CTA_M, round_up(max(shape.m for shape in mma.groups), 8)),
        box_n=choose_box_n(config, mma),
        num_stages=num_stages,
        **epilogue,
        **tmem,
        **stage,
        **shared_memory(num_stages),
    )


# ---- PTX that the DSL has no word for ------------------------------------------------------------

TYPES = {"r": Int32, "l": Int64, "h": Int16, "f": Float32}  # by constraint of inline assembly


@functools.cache
def ptx(text: str, operands: str = "", results: str = "", pure: bool = False):
    """A device function that issues `text`, in which $0... stand for results, then for operands.

    operands, results: a letter of TYPES for each. The function takes the operands, and returns
    nothing, the result, or a list of several. pure: it has no effect besides."""
    constraints = ",".join([*(f"={letter}" for letter in results), *operands])

    @dsl_user_op
    def issue(*args, loc=None, ip=None):
        where = {"loc": loc, "ip": ip}
        pairs = zip(operands, args, strict=True)
        values = [TYPES[letter](arg).ir_value(**where) for letter, arg in pairs]
        types = [TYPES[letter].mlir_type for letter in results]
        is_struct = len(types) > 1
        out_type = llvm.StructType.get_literal(types) if is_struct else next(iter(types), None)
        effects = {"has_side_effects": not pure}
        out = llvm.inline_asm(out_type, values, text, constraints, **effects, **where)
        if is_struct:
            parts = [llvm.extractvalue(kind, out, [i], **where) for i, kind in enumerate(types)]
            return [TYPES[letter](part) for letter, part in zip(results, parts)]
        return TYPES[results](out) if results else None

    return issue


# Barriers. The DSL's remote arrives are .release at cluster scope: a fence of all memory, which
# takes hundreds to thousands of cycles.
mbarrier_expect_remote = ptx(
    "mbarrier.arrive.expect_tx.relaxed.cluster.shared::cluster.b64 _, [$0], $1;", "rr"
)
mbarrier_arrive_remote = ptx("mbarrier.arrive.release.cta.shared::cluster.b64 _, [$0];", "r")
mapa = ptx("mapa.shared::cluster.u32 $0, $1, $2;", "rr", "r")
redux_or = ptx("redux.sync.or.b32 $0, $1, -1;", "r", "r")
tcgen05_fence_before = ptx("tcgen05.fence::before_thread_sync;")
tcgen05_fence_after = ptx("tcgen05.fence::after_thread_sync;")

# Prefetches of what has no pointer type: the address of a parameter, a number of bytes.
prefetch_tensormap = ptx("prefetch.tensormap [$0];", "l")
bulk_prefetch = ptx("cp.async.bulk.prefetch.L2.global [$0], $1;", "lr")

# Loads and stores.
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

# Arithmetic. The first value goes to the low half.
cvt_f16x2 = ptx("cvt.rn.f16x2.f32 $0, $2, $1;", "ff", "r", pure=True)
cvt_f16 = ptx("cvt.rn.f16.f32 $0, $1;", "f", "h", pure=True)
exp2_at_most_2_12 = ptx(
    "min.f32 $0, $1, 0f41400000;\nex2.approx.ftz.f32 $0, $0;", "f", "f", pure=True
)
pack_x2 = ptx("mov.b64 $0, {$1, $2};", "ff", "l", pure=True)  # two fp32 side by side
unpack_x2 = ptx("mov.b64 {$0, $1}, $2;", "l", "ff", pure=True)
mul_x2 = ptx("mul.rn.f32x2 $0, $1, $2;", "ll", "l", pure=True)
fma_x2 = ptx("fma.rn.f32x2 $0, $1, $2, $3;", "lll", "l", pure=True)


def tma_load(to, tensormap, coordinates, barrier, pair, mask=None, policy=None):
    """A box from global to shared memory, of each CTA of `mask` at the same offset if it is given.

    pair: what a CTA receives counts on the barrier of its pair's leader. policy: of the L2."""
    operands, types = [to, tensormap, *coordinates, barrier], "rlrrrr"
    space, multicast, hint, last = "cluster" if pair else "cta", "", "", ""
    if mask is not None:
        space, multicast, last, types = "cluster", ".multicast::cluster", ", $6", types + "h"
        operands.append(mask)
    if policy is not None:
        hint, last, types = ".L2::cache_hint", f"{last}, ${len(operands)}", types + "l"
        operands.append(policy)
    group = ".cta_group::2" if pair else ""
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
    """32 lanes x `columns` columns from each address; a list of registers for each, complete on
    return, since one assembly text has the loads and the wait.

    transposable: two 16x256b loads, of rows 0-15 and 16-31, in the form that stmatrix takes:
    register 4o + 2h + j of a load is row 8h + lane / 4, column 8o + 2 * (lane % 4) + j.
    Else 32x32b: register i is row lane, column i."""
    if transposable:
        shape, repeat, first_lanes = "16x256b", columns // 8, (0, 16)
    else:
        shape, repeat, first_lanes = "32x32b", columns, (0,)
    registers_of_load = columns // len(first_lanes)
    total = columns * len(addresses)
    text = ""
    operands = []
    for address, lane in itertools.product(addresses, first_lanes):
        first = registers_of_load * len(operands)
        names = ", ".join(f"${first + i}" for i in range(registers_of_load))
        text += f"tcgen05.ld.sync.aligned.{shape}.x{repeat}.b32 {{{names}}}, "
        text += f"[${total + len(operands)}];\n"
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


# ---- device arithmetic, descriptors --------------------------------------------------------------


def silu(values):
    """x / (1 + e^-x) of each x, as x h / (1 + h^2) * h with h = e^(x/2); two values share a
    reciprocal.

    No step leaves the range of fp32 before the result does. h is 2^12 at most, where 1 + h^-2 is
    1, so products of two 1 + h^2 are below 2^50; at x = -104, where the result rounds to 0, it is
    2^-75. Relative errors, in 2^-23: |x| from the rounded exponent; 4 from ex2.approx, whose result
    counts twice; 1 from rcp.approx; 3 from six roundings. An absolute 2^-149 comes from results
    below 2^-126: 2^-21 in c, where the other factor is the largest that fp32 has."""
    found = []
    for values_x2 in zip(values[::2], values[1::2]):
        x = pack_x2(*values_x2)
        exponents = unpack_x2(mul_x2(x, pack_x2(0.7213475204444817, 0.7213475204444817)))
        h = pack_x2(*map(exp2_at_most_2_12, exponents))
        first, second = unpack_x2(fma_x2(h, h, pack_x2(1.0, 1.0)))
        shared = cute.arch.rcp_approx(first * second)
        over = mul_x2(pack_x2(second, first), pack_x2(shared, shared))  # 1 / (1 + h^2)
        found += unpack_x2(mul_x2(mul_x2(x, mul_x2(over, h)), h))
    return found


def uniform(value):
    """An Int32 that all lanes have, from a reduction over the warp, whose result ptxas knows to be
    uniform. Else it may take the value for different from lane to lane; MMAs and copies then move
    each operand to a uniform register, or get loops over lanes."""
    return redux_or(value)


def select(condition, a, b):
    """a if condition else b, of Int32 or Int64, without a branch."""
    kind = Int64 if Int64 in (type(a), type(b)) else Int32
    return kind(cutlass.select_(condition, kind(a), kind(b)))


def div(a, b):
    """Quotient of non-negative Int32: DSL integers divide as Python's, rounding down at a cost."""
    return Int32(Uint32(a) // Uint32(b))


def mod(a, b):
    return Int32(Uint32(a) % Uint32(b))


def div_up(a, b):
    return div(a + (b - 1), b)


def atoms_of(extent):
    """Scale-factor atoms of so many rows of A or B, an Int32."""
    return (extent + (ATOM_ROWS - 1)) >> LOG_ATOM_ROWS


def within(index: int, count):
    """Whether `index` is below `count`, which is at least 1: index 0 needs no test."""
    return Boolean(True) if index == 0 else count > index


def my_turn(copy, num_sharers: int, rank):
    """Whether this one of the CTAs that share A issues copy number `copy`."""
    return Boolean(True) if num_sharers == 1 else mod(copy, num_sharers) == rank


# Shared-memory matrix descriptors without an address (PTX ISA, "Shared memory descriptor"), lengths
# in units of 16 bytes: at bit 32 those from 8 rows to the next 8, at 46 the version of tcgen05, at
# 61 the swizzle, 2 for 128 bytes. The leading dimension, at 16, counts in neither layout used here;
# it is 16 bytes, as CUTLASS has it.
SCALE_DESCRIPTOR = 1 << 16 | 128 >> 4 << 32 | 1 << 46
CODE_DESCRIPTOR = 1 << 16 | 1024 >> 4 << 32 | 1 << 46 | 2 << 61  # K-major
K_BLOCK_STEP = K_BLOCK // 2 >> 4  # from a K block to the next one, in units of 16 bytes
SMEM_OFFSET = 0x3FFFF  # of a shared address, what lies inside the CTA; the rank is at bit 24


def instruction_descriptor(cta_group: int, n):
    """Of a block-scaled MMA (PTX ISA, "Instruction descriptor"); scales are ue4m3: 0 at bit 23."""
    fields = 1 << 7 | 1 << 10  # A and B are e2m1
    fields |= cta_group << 27  # M / 128
    return (n << 14) + fields  # N / 8 at bit 17


# ---- what host, launch and kernel hand each other ------------------------------------------------

# `bind` -> `Kernel.__call__`, which is compiled host code: 64-bit words
#     of each group the addresses of codes and scales of each operand, A first, and of C
#     of each group the sizes of GemmShape, and rows in memory of the MMA's B: more than n in a gemv
# `Kernel.__call__` -> `Kernel.kernel`, lists of kernel parameters
#     maps       of each group tensormaps of the codes, then of the scales of each operand
#     addresses  of each group those of the scales of each operand, of C
#     sizes      of each group first_tile, m, n, k, l
#     schedule   clusters, full_rounds, tiles of the last round, and stages_if_idle, which a
#                cluster fills that has none of these
NUM_SIZES = 5


def parameter_bytes(num_operands: int, num_groups: int) -> int:
    """Of the kernel, at most: tensormaps of 128 bytes, addresses of 8, sizes of 4."""
    group = 128 * 2 * num_operands + 8 * (num_operands + 1) + 4 * NUM_SIZES
    return num_groups * group + 64  # 16 of the schedule, the rest for alignment


class Words:
    """64-bit integers as one argument of a compiled function, by the DSL's protocol JitArgument: a
    struct, since the host spends time on each argument."""

    def __init__(self, values: list[int]):
        self.memory = array.array("q", values)

    def __c_pointers__(self):
        return [self.memory.buffer_info()[0]]

    def __get_mlir_types__(self):
        return [llvm.StructType.get_literal([Int64.mlir_type] * len(self.memory))]

    def __new_from_mlir_values__(self, values):
        count = range(len(self.memory))
        return [Int64(llvm.extractvalue(Int64.mlir_type, values[0], [i])) for i in count]


# ---- what a CTA knows at run time ----------------------------------------------------------------


class PipelineState:
    """A position in a ring of `depth` stages or accumulator stages: its index and its phase.

    The consumer of a position waits for its phase, the producer for the one before it."""

    def __init__(self, index, phase, depth):
        self.index, self.phase, self.depth = Int32(index), Int32(phase), depth

    def next(self) -> "PipelineState":
        is_last = self.index == self.depth - 1
        index = select(is_last, 0, self.index + 1)
        phase = select(is_last, self.phase ^ 1, self.phase)
        return PipelineState(index, phase, self.depth)

    # The DSL's protocol of what a loop carries on.
    def __extract_mlir_values__(self):
        return [self.index.ir_value(), self.phase.ir_value()]

    def __new_from_mlir_values__(self, values):
        return PipelineState(Int32(values[0]), Int32(values[1]), self.depth)


@dataclass(frozen=True)
class Group:
    """What the kernel knows of a group. Lists have A operands first."""

    code_maps: Sequence  # addresses of tensormaps
    scale_maps: Sequence
    scales: Sequence  # addresses of scale factors
    c: Int64
    first_tile: Int32  # its number among the tiles of all groups
    m: Int32
    n: Int32
    k: Int32
    l: Int32

    @classmethod
    def of(cls, values: Sequence) -> "Group":
        """From one list: the values of the three lists, one after the other, then the others."""
        lists, others = values[: -NUM_SIZES - 1], values[-NUM_SIZES - 1 :]
        count = len(lists) // 3
        return cls(lists[:count], lists[count : 2 * count], lists[2 * count :], *others)


@dataclass(frozen=True)
class Cta:
    """What a CTA knows at run time. rank = (k_rank * cluster_n + n_rank) * cta_group + pair_rank

    The tiles of a cluster are dealt in rounds: a tile to each cluster, the longest tiles first. The
    last round need not reach all clusters. It is dealt from the other end, to those that had the
    shortest tiles of each round before. A cluster that has none of it fills fewer stages, so that
    the others get more of DRAM and all end together."""

    smem: Int32  # shared address of its memory, with its rank at bit 24
    rank: Int32  # in the cluster
    pair_rank: Int32  # 0: the leader of the pair
    n_rank: Int32  # which tile of those that share A
    k_rank: Int32  # which part of a K split
    groups: list  # each as a list of the values of `Group`, between which `tile_at` selects
    num_tiles: Int32  # of its cluster
    num_stages: Int32  # that it fills
    slot: Int32  # its cluster's place in a round
    last_slot: Int32  # in the last round
    full_rounds: Int32  # those before the last one
    num_clusters: Int32


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

    def a_atom(self):
        return self.atom(self.m, self.group.m)

    def b_atom(self, index: int):
        return self.atom(self.n + ATOM_ROWS * index, self.group.n)

    def atom(self, first, extent):
        """Number of the scale-factor atom of a row, of `extent` in a batch; beyond the last atom,
        the last."""
        atoms = atoms_of(extent)
        return self.batch * atoms + cutlass.min(first >> LOG_ATOM_ROWS, atoms - 1)


@dataclass(frozen=True)
class StageLoad:
    """A k-tile on its way into a stage.

    is_prefill: the cluster has not met yet. So it waits for nobody, multicasts nothing and signals
    this CTA's barriers."""

    tile: Tile
    k_tile: Int32
    state: PipelineState
    is_prefill: bool


@dataclass(frozen=True)
class EpilogueWarp:
    """What an epilogue warp knows besides `Cta`."""

    quarter: Int32  # of the lanes of tensor memory
    turn: Int32  # which of the two warps of a quarter
    lane: Int32


# ---- kernel --------------------------------------------------------------------------------------


class Kernel:
    """The kernel of one plan.

    What the section "kernel: launch" has is host code; all else is device code. In methods under
    @cute.jit or @cute.kernel the DSL compiles `if` and `for`, unless they say const_expr or
    range_constexpr; comprehensions are Python. The other methods are plain Python that runs while
    the kernel is traced. A frozen dataclass of values passes into both as it is; what a loop
    changes needs the DSL's protocol, as `PipelineState` has it."""

    def __init__(self, plan: Plan):
        self.plan = plan
        self.num_operands = plan.num_a + plan.num_b
        is_pair = plan.cta_group == 2
        self.mma_group = tcgen05.CtaGroup.TWO if is_pair else tcgen05.CtaGroup.ONE

    # ---- kernel: start, tiles --------------------------------------------------------------------

    @cute.kernel
    def kernel(self, maps, addresses, sizes, schedule):
        groups = self.groups_of(maps, addresses, sizes)
        warp_id = cute.arch.make_warp_uniform(cute.arch.thread_idx()[0] >> 5)
        cta = self.start(groups, schedule)
        if warp_id == self.plan.load_warp_id:
            self.load_warp(cta)
        if warp_id == self.plan.load_warp_id + 1:
            self.mma_warp(cta)
        if warp_id < self.plan.load_warp_id:
            self.epilogue_warp(cta, warp_id)

    def groups_of(self, maps, addresses, sizes) -> list:
        """The values of `Group`, as a list for each."""
        count = self.num_operands
        groups = []
        for group in range(self.plan.num_groups):
            mine = [tensormap_address(atom) for atom in maps[2 * count * group :][: 2 * count]]
            mine += addresses[(count + 1) * group :][: count + 1]
            mine += sizes[NUM_SIZES * group :][:NUM_SIZES]
            groups.append(mine)
        return groups

    def start(self, groups: list, schedule: Sequence) -> Cta:
        plan = self.plan
        clusters, full_rounds, last, stages_if_idle = schedule
        smem = cute.arch.get_dyn_smem(cutlass.Uint8, 1024).toint()
        rank = Int32(0)
        if plan.cluster > 1:
            rank = uniform(cute.arch.block_idx_in_cluster())
        pair_rank = mod(rank, plan.cta_group)
        n_rank = mod(div(rank, plan.cta_group), plan.cluster_n)
        k_rank = div(rank, plan.ctas_per_split)
        slot = div(Int32(cute.arch.block_idx()[0]), plan.cluster)
        num_tiles, num_stages, last_slot = Int32(1), Int32(plan.num_stages), slot
        if plan.persistent:
            last_slot = clusters - 1 - slot
            has_last = last > last_slot
            num_stages = select(has_last, plan.num_stages, stages_if_idle)
            num_tiles = full_rounds + select(has_last, 1, 0)
        ranks = rank, pair_rank, n_rank, k_rank
        tiles = num_tiles, num_stages, slot, last_slot, full_rounds, clusters
        return Cta(smem, *ranks, groups, *tiles)

    def tile_at(self, cta: Cta, i) -> Tile:
        """This CTA's part of its cluster's i-th tile.

        Whether tiles run along M or along N first decides what the CTAs of a GPC share, which
        merges what they read at the same time. Without clusters neighbours are in one GPC, and have
        the same large operand. Clusters take GPCs by turns, so those of one GPC are eight apart:
        tiles run along M first, and they have the same B."""
        plan = self.plan
        number = cta.slot
        if plan.persistent:
            slot = select(i < cta.full_rounds, cta.slot, cta.last_slot)
            number = i * cta.num_clusters + slot
        values = cta.groups[0]
        for later in cta.groups[1:]:
            is_later = number >= later[-NUM_SIZES]  # its first_tile, the first of the sizes
            values = [select(is_later, a, b) for a, b in zip(later, values)]
        group = Group.of(values)
        index = number - group.first_tile
        batch = Int32(0)
        m_tiles = div_up(group.m, plan.tile_m)
        n_tiles = 1
        if not plan.one_n_tile:
            n_tiles = div_up(group.n, plan.cluster_tile_n)
        if not plan.one_batch:
            tiles = m_tiles * n_tiles
            index, batch = mod(index, tiles), div(index, tiles)
        if (plan.cluster > 1 or not plan.swap_ab) and not plan.one_n_tile:
            m_tile, n_tile = mod(index, m_tiles), div(index, m_tiles)
        else:
            m_tile, n_tile = div(index, n_tiles), mod(index, n_tiles)
        m = (m_tile * plan.cta_group + cta.pair_rank) * CTA_M
        n = (n_tile * plan.cluster_n + cta.n_rank) * plan.tile_n
        # A tile beyond the last column computes one step of N, which is not stored.
        rest = (group.n - n + (plan.n_step - 1)) & -plan.n_step
        width = cutlass.min(rest, Int32(plan.tile_n))
        width = cutlass.max(width, Int32(plan.n_step))
        k_tiles = div_up(group.k, TILE_K)
        k_begin = div(cta.k_rank * k_tiles, plan.split_k)
        k_count = div((cta.k_rank + 1) * k_tiles, plan.split_k) - k_begin
        b_atoms = atoms_of((n & (ATOM_ROWS - 1)) + width)
        return Tile(group, batch, m, n, width, b_atoms, k_begin, k_count)

    # ---- kernel: barriers, meetings --------------------------------------------------------------

    def bar(self, first: int, cta: Cta, index, product: int | None = None):
        """This CTA's mbarrier number `index` of a pipeline, which begins at `first`; of a product,
        where each has its own."""
        if product is not None:
            index = index * self.plan.num_products + product
        address = cta.smem + first + 8 * index
        return cute.make_ptr(Int64, address, cute.AddressSpace.smem, assumed_align=8)

    def in_leader(self, barrier):
        """Shared address of the same barrier in the CTA that issues the MMAs. In a pair that is the
        even one, and bit 24 is the last of the rank."""
        address = barrier.toint()
        return address & ~(1 << 24) if self.plan.cta_group == 2 else address

    def prepare_barriers(self, cta: Cta):
        """Initialise those that this plan waits for, but full[s][p], which the load warp does."""
        plan = self.plan
        for stage, product in itertools.product(range(plan.num_stages), range(plan.num_products)):
            cute.arch.mbarrier_init(self.bar(plan.empty, cta, stage, product), plan.cluster_n)
        for stage in range(plan.num_acc_stages):
            cute.arch.mbarrier_init(self.bar(plan.acc_full, cta, stage), 1)
            if plan.gate_lead > 0:
                cute.arch.mbarrier_init(self.bar(plan.gate_full, cta, stage), 1)
            if plan.persistent:
                arrivals = plan.load_warp_id * plan.cta_group
                cute.arch.mbarrier_init(self.bar(plan.acc_empty, cta, stage), arrivals)
        if plan.split_k > 1:
            cute.arch.mbarrier_init(self.bar(plan.partials_full, cta, 0), 1)
        cute.arch.mbarrier_init_fence()

    # Meetings: the table at the top of the file says who comes.

    def cluster_arrive(self):
        if self.plan.cluster > 1:
            cute.arch.cluster_arrive_relaxed()  # after mbarrier_init_fence

    def cluster_wait(self):
        if self.plan.cluster > 1:
            cute.arch.cluster_wait()

    def cta_sync(self, barrier_id: int):
        cute.arch.barrier(barrier_id=barrier_id, number_of_threads=self.plan.num_threads)

    def setup_sync(self):
        """Past here all barriers of the cluster are initialised and tensor memory is allocated."""
        self.cluster_arrive()
        self.cta_sync(SETUP_BARRIER)
        self.cluster_wait()

    def teardown_sync(self):
        """Past here tensor memory has been read, and no CTA of the cluster will write to another or
        arrive on its barriers: each has waited for all that is sent to it."""
        self.cta_sync(TEARDOWN_BARRIER)
        self.cluster_arrive()
        self.cluster_wait()

    # ---- kernel: load warp -----------------------------------------------------------------------

    @cute.jit
    def load_warp(self, cta: Cta):
        plan = self.plan
        first_tile = self.tile_at(cta, Int32(0))
        # Stages are filled before the cluster meets, except in the CTA of a pair that is not its
        # leader, whose loads complete on the leader's barriers. Leaders that work on one part of K
        # prefill equally many k-tiles, so none multicasts into such a stage.
        prefilled = cutlass.min(first_tile.k_count, cta.num_stages)
        prefilled = select(cta.pair_rank == 0, prefilled, 0)
        with cute.arch.elect_one():
            for stage in cutlass.range_constexpr(plan.num_stages):
                for product in cutlass.range_constexpr(plan.num_products):
                    full = self.bar(plan.full, cta, stage, product)
                    cute.arch.mbarrier_init(full, plan.cta_group)
            cute.arch.mbarrier_init_fence()
        self.cluster_arrive()
        cute.arch.barrier_arrive(barrier_id=SETUP_BARRIER, number_of_threads=plan.num_threads)
        if const_expr(OVERLAPS_LAUNCHES):
            cute.arch.griddepcontrol_launch_dependents()
            cute.arch.griddepcontrol_wait()
        with cute.arch.elect_one():
            for i in cutlass.range(prefilled, unroll=1):
                state = PipelineState(i, 0, cta.num_stages)
                k_tile = first_tile.k_begin + i
                self.load_stage(cta, StageLoad(first_tile, k_tile, state, is_prefill=True))
        if const_expr(plan.cluster > 1):
            self.cluster_wait()
        else:
            cute.arch.barrier(barrier_id=PREFILL_BARRIER, number_of_threads=64)
        with cute.arch.elect_one():
            # After the prefilled stages, which may be all, or none.
            state = PipelineState(prefilled - 1, 0, cta.num_stages).next()
            for i in cutlass.range(cta.num_tiles, unroll=1):
                tile = self.tile_at(cta, i)
                begin = select(i == 0, prefilled, 0)
                for j in cutlass.range(begin, tile.k_count, unroll=1):
                    k_tile = tile.k_begin + j
                    self.load_stage(cta, StageLoad(tile, k_tile, state, is_prefill=False))
                    state = state.next()
            if const_expr(plan.ctas_per_split > 1):  # commits of other CTAs are on their way
                for _ in cutlass.range(cta.num_stages, unroll=1):
                    for product in cutlass.range_constexpr(plan.num_products):
                        self.wait_empty(cta, state, product)
                    state = state.next()
        self.teardown_sync()

    def load_stage(self, cta: Cta, load: StageLoad):
        """Fill a stage: for each product expect its bytes, whoever sends them, and send this CTA's.

        A product's own operand is loaded once that product's MMAs have released the stage; the
        shared one once those of all have. The shared one's bytes count with product 0."""
        plan, tile = self.plan, load.tile
        is_dual = plan.num_products == 2
        # Bytes that arrive in this CTA, of an operand and its scales.
        a_bytes = plan.box_m * ROW_BYTES + SF_BYTES
        b_bytes = self.num_b_boxes(tile) * (plan.box_n * ROW_BYTES) + tile.b_atoms * SF_BYTES
        if plan.swap_ab:
            load_own, own_bytes, load_shared = self.load_a, a_bytes, self.load_b
        else:
            load_own, own_bytes, load_shared = self.load_b, b_bytes, self.load_a
        if not load.is_prefill:
            self.wait_empty(cta, load.state, 0)
        self.expect_full(cta, load, 0, a_bytes + b_bytes)
        load_own(cta, load, 0)
        if is_dual and not load.is_prefill:
            self.wait_empty(cta, load.state, 1)
        load_shared(cta, load, 0)
        if is_dual:
            self.expect_full(cta, load, 1, own_bytes)
            load_own(cta, load, 1)

    def wait_empty(self, cta: Cta, state: PipelineState, product: int):
        empty = self.bar(self.plan.empty, cta, state.index, product)
        cute.arch.mbarrier_wait(empty, state.phase ^ 1)

    def expect_full(self, cta: Cta, load: StageLoad, product: int, num_bytes):
        full = self.bar(self.plan.full, cta, load.state.index, product)
        if self.signals_leader(load):
            mbarrier_expect_remote(self.in_leader(full), num_bytes)
        else:
            cute.arch.mbarrier_arrive_and_expect_tx(full, num_bytes)

    def signals_leader(self, load: StageLoad) -> bool:
        return self.plan.cta_group == 2 and not load.is_prefill

    def full_address(self, cta: Cta, load: StageLoad, product: int):
        """Of full[s][p] in the CTA that issues the MMAs."""
        full = self.bar(self.plan.full, cta, load.state.index, product)
        return self.in_leader(full) if self.signals_leader(load) else full.toint()

    def num_b_boxes(self, tile: Tile):
        return div_up(div(tile.width, self.plan.cta_group), self.plan.box_n)

    @cute.jit
    def load_a(self, cta: Cta, load: StageLoad, operand: int):
        """An A operand of a k-tile and its scales.

        CTAs that share A issue by turns and multicast to all. Scales are the next one's turn, so
        that no CTA issues both. In a prefill each loads its own."""
        plan = self.plan
        tile = load.tile
        num_sharers = 1
        mask = None
        if const_expr(plan.cluster_n > 1 and not load.is_prefill):
            num_sharers = plan.cluster_n
            sharers = sum(1 << (i * plan.cta_group) for i in range(num_sharers))
            mask = Int32(sharers) << (cta.k_rank * plan.ctas_per_split + cta.pair_rank)
        # Swapped these are the weights, of which one tile along N makes one read.
        policy = Int64(EVICT_FIRST) if plan.swap_ab and plan.one_n_tile else None
        full = self.full_address(cta, load, operand)
        to_leader = self.signals_leader(load)
        stage = cta.smem + load.state.index * plan.stage_bytes
        if my_turn(load.k_tile + operand, num_sharers, cta.n_rank):
            to = stage + operand * A_BYTES
            at = load.k_tile * TILE_K, tile.m, tile.batch
            tma_load(to, tile.group.code_maps[operand], at, full, to_leader, mask, policy)
        if my_turn(load.k_tile + operand + 1, num_sharers, cta.n_rank):
            to = stage + (plan.stage_sfa + operand * SF_BYTES)
            at = 0, load.k_tile * K_BLOCKS, tile.a_atom()
            tma_load(to, tile.group.scale_maps[operand], at, full, to_leader, mask, policy)

    @cute.jit
    def load_b(self, cta: Cta, load: StageLoad, operand: int):
        """A B operand of a k-tile: this CTA's part of the rows, and all scales."""
        plan = self.plan
        tile = load.tile
        full = self.full_address(cta, load, operand)
        to_leader = self.signals_leader(load)
        code_map = tile.group.code_maps[plan.num_a + operand]
        scale_map = tile.group.scale_maps[plan.num_a + operand]
        num_boxes = self.num_b_boxes(tile)
        stage = cta.smem + load.state.index * plan.stage_bytes
        first_row = tile.n + cta.pair_rank * div(tile.width, plan.cta_group)
        for box in cutlass.range_constexpr(plan.cta_n // plan.box_n):
            if within(box, num_boxes):
                row = box * plan.box_n
                to = stage + (plan.stage_b + operand * plan.b_bytes + row * ROW_BYTES)
                at = load.k_tile * TILE_K, first_row + row, tile.batch
                tma_load(to, code_map, at, full, to_leader)
        for atom in cutlass.range_constexpr(plan.max_b_atoms):
            if within(atom, tile.b_atoms):
                offset = (operand * plan.max_b_atoms + atom) * SF_BYTES
                to = stage + (plan.stage_sfb + offset)
                at = 0, load.k_tile * K_BLOCKS, tile.b_atom(atom)
                tma_load(to, scale_map, at, full, to_leader)

    # ---- kernel: MMA warp ------------------------------------------------------------------------

    @cute.jit
    def mma_warp(self, cta: Cta):
        plan = self.plan
        is_pair = plan.cta_group == 2
        holder = cute.make_ptr(
            Int32, cta.smem + plan.tmem_address, cute.AddressSpace.smem, assumed_align=8
        )
        if const_expr(is_pair):  # the peer must run before tensor memory of both is allocated
            self.cluster_arrive()
            self.cluster_wait()
        cute.arch.alloc_tmem(plan.tmem_allocated, holder, is_two_cta=is_pair)
        cute.arch.relinquish_tmem_alloc_permit(is_two_cta=is_pair)
        if const_expr(is_pair):
            self.cta_sync(SETUP_BARRIER)
        else:
            self.setup_sync()
        tmem = ld_shared_b32(cta.smem + plan.tmem_address)
        num_tiles = select(cta.pair_rank == 0, cta.num_tiles, 0)  # of a pair the leader issues
        state = PipelineState(0, 0, cta.num_stages)
        acc = PipelineState(0, 0, plan.num_acc_stages)
        for i in cutlass.range(num_tiles, unroll=1):
            tile = self.tile_at(cta, i)
            state = self.mma_tile(cta, tile, tmem, acc, state)
            acc = acc.next()
        self.teardown_sync()
        allocated = cute.arch.retrieve_tmem_ptr(Float32, 16, holder)
        cute.arch.dealloc_tmem(allocated, plan.tmem_allocated, is_two_cta=is_pair)

    @cute.jit
    def mma_tile(
        self, cta: Cta, tile: Tile, tmem, acc: PipelineState, state: PipelineState
    ) -> PipelineState:
        """All MMAs of a tile; the next stage. At the end of a dual tile the first product is
        finished ahead of the second, whose MMAs then overlap silu."""
        plan = self.plan
        if const_expr(plan.persistent):
            # The tcgen05_fence_after of this wait comes behind the next one, for full[s][p].
            cute.arch.mbarrier_wait(self.bar(plan.acc_empty, cta, acc.index), acc.phase ^ 1)
        pair_mask = None
        if const_expr(plan.cta_group == 2):
            pair_mask = Int32(3) << cta.rank
        tmems = tmem, tmem + acc.index * plan.acc_columns
        lead = cutlass.min(tile.k_count, Int32(plan.gate_lead))
        body = tile.k_count - lead
        state = self.mma_k_tiles(cta, tile, tmems, 0, body, state, list(range(plan.num_products)))
        if const_expr(plan.gate_lead > 0):
            # Two passes over the same stages: product 0 of all these k-tiles, then product 1.
            self.mma_k_tiles(cta, tile, tmems, body, lead, state, [0])
            with cute.arch.elect_one():
                gate_full = self.bar(plan.gate_full, cta, acc.index)
                tcgen05.commit(gate_full, pair_mask, self.mma_group)
            state = self.mma_k_tiles(cta, tile, tmems, body, lead, state, [1])
        with cute.arch.elect_one():
            tcgen05.commit(self.bar(plan.acc_full, cta, acc.index), pair_mask, self.mma_group)
        return state

    @cute.jit
    def mma_k_tiles(
        self, cta: Cta, tile: Tile, tmems: tuple, done, count, state: PipelineState, products: list
    ) -> PipelineState:
        """`count` k-tiles after the first `done` of this part of K, for some products. It returns
        the next stage, which `mma_tile` ignores where it passes over the same stages again.

        A commit to all load warps that send to this CTA or pair releases what a product has read;
        the last product's, what products share. tmems: tensor memory of the CTA, of the accumulator
        stage."""
        plan = self.plan
        senders = None
        if const_expr(plan.ctas_per_split > 1):
            senders = Int32((1 << plan.ctas_per_split) - 1)
            senders = senders << (cta.k_rank * plan.ctas_per_split)
        for j in cutlass.range(count, unroll=1):
            for product in products:
                full = self.bar(plan.full, cta, state.index, product)
                cute.arch.mbarrier_wait(full, state.phase)
                tcgen05_fence_after()
                descriptors = self.descriptors(cta, tile, state.index)
                adds = select(done + j > 0, 1, 0)
                with cute.arch.elect_one():
                    is_first = product == products[0]
                    self.issue_mmas(tile, tmems, descriptors, adds, product, is_first)
                    empty = self.bar(plan.empty, cta, state.index, product)
                    tcgen05.commit(empty, senders, self.mma_group)
            state = state.next()
        return state

    def descriptors(self, cta: Cta, tile: Tile, stage) -> tuple:
        """Of a stage: the matrix descriptors of its first codes and of its first scales, and the
        instruction descriptor. All lanes make them, in uniform registers: after elect_one, or from
        vector registers, an MMA would take some 20 instructions to move its operands."""
        # A descriptor has the offset in the CTA, in units of 16 bytes, and no room for the rank.
        offset = (cta.smem & SMEM_OFFSET) + stage * self.plan.stage_bytes
        start = Int64(uniform(offset >> 4))
        idesc = instruction_descriptor(self.plan.cta_group, tile.width)
        if self.plan.persistent:  # else ptxas sees that it does not change
            idesc = uniform(idesc)
        return start + CODE_DESCRIPTOR, start + SCALE_DESCRIPTOR, idesc

    @cute.jit
    def issue_mmas(
        self, tile: Tile, tmems: tuple, descriptors: tuple, adds, product: int, is_first: bool
    ):
        """The MMAs of a k-tile for one product, each after the copies of its scales.

        adds: 0 in the first k-tile, whose first MMA does not add to what tensor memory holds.
        is_first: of the products, so it copies the shared operand's scales, too. Copies stand
        between MMAs, since an MMA waits for all copies before it: those of a whole k-tile would
        hold it up for 128 cycles. Beyond K all codes are zeros."""
        plan = self.plan
        tmem, acc_tmem = tmems
        max_atoms = plan.max_b_atoms
        a_operand = min(product, plan.num_a - 1)
        b_operand = min(product, plan.num_b - 1)
        codes_desc, scales_desc, idesc = descriptors
        a_desc = codes_desc + (a_operand * A_BYTES >> 4)
        b_desc = codes_desc + (plan.stage_b + b_operand * plan.b_bytes >> 4)
        d_tmem = acc_tmem + product * plan.tile_n
        for block in cutlass.range_constexpr(K_BLOCKS):
            a_block = a_operand * K_BLOCKS + block
            sfa_tmem = tmem + (plan.tmem_sfa + ATOM_COLUMNS * a_block)
            if const_expr(is_first or plan.num_a == 2):
                source = scales_desc + (plan.stage_sfa + a_block * ATOM_BYTES >> 4)
                tcgen05_cp(plan.cta_group, sfa_tmem, source)
            # Atoms of neighbours along N stand side by side, as an MMA of N > 128 reads them.
            first_atom = (b_operand * K_BLOCKS + block) * max_atoms
            sfb_tmem = tmem + (plan.tmem_sfb + ATOM_COLUMNS * first_atom)
            if const_expr(is_first or plan.num_b == 2):
                for i in cutlass.range_constexpr(max_atoms):
                    if within(i, tile.b_atoms):
                        b_block = (b_operand * max_atoms + i) * K_BLOCKS + block
                        offset = plan.stage_sfb + b_block * ATOM_BYTES
                        to = sfb_tmem + ATOM_COLUMNS * i
                        tcgen05_cp(plan.cta_group, to, scales_desc + (offset >> 4))
            # An atom has 32 of the tile's N in each of its 4 columns of tensor memory: a tile that
            # starts at row 64 of it begins at the third.
            sfb_tmem = sfb_tmem + ((tile.n & (ATOM_ROWS - 1)) >> 5)
            a = a_desc + K_BLOCK_STEP * block
            b = b_desc + K_BLOCK_STEP * block
            accumulate = adds if block == 0 else 1
            tcgen05_mma(plan.cta_group, d_tmem, a, b, idesc, sfa_tmem, sfb_tmem, accumulate)

    # ---- kernel: epilogue warps ------------------------------------------------------------------

    @cute.jit
    def epilogue_warp(self, cta: Cta, warp_id):
        plan = self.plan
        self.set_up(cta, warp_id)
        self.setup_sync()
        warp = EpilogueWarp(warp_id & 3, warp_id >> 2, Int32(cute.arch.lane_idx()))
        tmem = ld_shared_b32(cta.smem + plan.tmem_address)
        quarter_tmem = tmem + ((warp.quarter * 32) << LANE_BIT)
        acc = PipelineState(0, 0, plan.num_acc_stages)
        for i in cutlass.range(cta.num_tiles, unroll=1):
            tile = self.tile_at(cta, i)
            if const_expr(plan.persistent and plan.num_groups > 1):
                if warp_id == TENSORMAP_WARP:
                    following = cutlass.min(i + 1, cta.num_tiles - 1)
                    self.prefetch_tensormaps(self.tile_at(cta, following))
            acc_tmem = quarter_tmem + acc.index * plan.acc_columns
            self.finish_tile(cta, warp, tile, acc_tmem, acc)
            if const_expr(plan.persistent):
                # Only if a later tile takes this stage, so that each arrival is awaited.
                if i + plan.num_acc_stages < cta.num_tiles:
                    self.release(cta, acc)
            acc = acc.next()
        self.teardown_sync()

    @cute.jit
    def set_up(self, cta: Cta, warp_id):
        """Before the CTA meets: warp 0 initialises the barriers that are not the load warp's, two
        others prefetch."""
        if warp_id == TENSORMAP_WARP:
            self.prefetch_tensormaps(self.tile_at(cta, Int32(0)))
        if warp_id == SCALE_WARP:
            with cute.arch.elect_one():
                self.prefetch_scales(self.tile_at(cta, Int32(0)))
        if warp_id == 0:
            with cute.arch.elect_one():
                self.prepare_barriers(cta)
                if const_expr(self.plan.split_k > 1):
                    self.expect_partials(cta, self.tile_at(cta, Int32(0)))
            if const_expr(self.plan.cluster == 1):
                cute.arch.barrier_arrive(barrier_id=PREFILL_BARRIER, number_of_threads=64)

    def prefetch_tensormaps(self, tile: Tile):
        with cute.arch.elect_one():
            for address in [*tile.group.code_maps, *tile.group.scale_maps]:
                prefetch_tensormap(address)

    def prefetch_scales(self, tile: Tile):
        """The own operands' scale factors of the first stages, to the L2. They need no tensormap,
        so DRAM has work while tensormaps are fetched."""
        plan = self.plan
        group = tile.group
        k_blocks = group.k >> LOG_K_BLOCK
        first_block = tile.k_begin * K_BLOCKS
        blocks = cutlass.min(tile.k_count, Int32(plan.num_stages)) * K_BLOCKS
        blocks = cutlass.min(blocks, k_blocks - first_block)
        if plan.swap_ab:
            atom, own = tile.a_atom(), group.scales[: plan.num_a]
        else:
            atom, own = tile.b_atom(0), group.scales[plan.num_a :]
        offset = (Int64(atom) * k_blocks + first_block) * ATOM_BYTES
        for scales in own:
            bulk_prefetch(scales + offset, blocks * ATOM_BYTES)

    def release(self, cta: Cta, acc: PipelineState):
        """Give an accumulator stage back to the MMA warp, of the leader of a pair."""
        tcgen05_fence_before()
        with cute.arch.elect_one():
            # As `in_leader`, for ptxas's sake: with the bit cleared the MMA warp loses its uniform
            # registers, and takes 95 instructions a k-tile in place of 69 (SASS of group 2).
            acc_empty = self.bar(self.plan.acc_empty, cta, acc.index).toint()
            mbarrier_arrive_remote(mapa(acc_empty, cta.rank & -self.plan.cta_group))

    @cute.jit
    def finish_tile(self, cta: Cta, warp: EpilogueWarp, tile: Tile, acc_tmem, acc: PipelineState):
        """Store a tile once it is complete, an epilogue tile at a time; of a dual tile silu of the
        first one is ready when the second product is."""
        plan = self.plan
        epi_n = plan.epi_n
        turns = plan.warps_per_quarter
        leads = plan.gate_lead > 0
        # A warp without an epilogue tile computes the first one in its place; `store` drops it,
        # since then no columns are left at `n`.
        n = warp.turn * epi_n
        first = acc_tmem + select(n < tile.width, n, 0)
        if const_expr(leads):
            cute.arch.mbarrier_wait(self.bar(plan.gate_full, cta, acc.index), acc.phase)
            tcgen05_fence_after()
            gates = silu(self.read(first, 1)[0])
        cute.arch.mbarrier_wait(self.bar(plan.acc_full, cta, acc.index), acc.phase)
        tcgen05_fence_after()
        if const_expr(plan.split_k > 1):
            self.add_parts(cta, warp, tile, acc_tmem)
        else:
            begin = warp.turn
            if const_expr(leads):
                values = self.combine(self.read(first + plan.tile_n, 1), gates)
                self.store(cta, warp, tile, values, n)
                begin = warp.turn + turns
            for i in cutlass.range(begin, div_up(tile.width, epi_n), turns, unroll=1):
                sums = self.read(acc_tmem + i * epi_n, plan.num_products)
                self.store(cta, warp, tile, self.combine(sums), i * epi_n)

    def read(self, tmem, num_products: int) -> list:
        """Sums of an epilogue tile of the first products, from this address on."""
        addresses = [tmem + product * self.plan.tile_n for product in range(num_products)]
        return tcgen05_ld(addresses, self.plan.epi_n, self.plan.stores_via_smem)

    def combine(self, sums: list, gates: list | None = None) -> list:
        """Values of C from the sums of each product. gates: silu of the first one's sums, where
        that is computed already; `sums` has the second one's then."""
        if self.plan.num_products == 1:
            return sums[0]
        gates = silu(sums[0]) if gates is None else gates
        return [gate * up for gate, up in zip(gates, sums[-1])]

    @cute.jit
    def store(self, cta: Cta, warp: EpilogueWarp, tile: Tile, values: list, epi_column):
        """Store an epilogue tile: 32 rows of this warp, columns from `epi_column` of the tile on.
        C is [l][m][n] in memory; with swap_ab, [l][n][m]. values: of all columns, fp32, as
        `tcgen05_ld` gives them; they are rounded here and in `transpose`."""
        plan = self.plan
        group = tile.group
        # A lane stores one row of all columns; via SMEM, of each 16 columns 16 rows of one column.
        m = tile.m + warp.quarter * 32
        n = tile.n + epi_column
        if const_expr(plan.stores_via_smem):
            m = m + (warp.lane & 1) * 16
            n = n + (warp.lane >> 1)
        else:
            m = m + warp.lane
        columns_left = select(m < group.m, group.n - n, 0)
        if const_expr(plan.swap_ab):
            index = (Int64(tile.batch) * group.n + n) * group.m + m
            column_step = group.m
        else:
            index = (Int64(tile.batch) * group.m + m) * group.n + n
            column_step = 1
        to = group.c + index * C_BYTES
        if const_expr(plan.wide_stores):
            for first in cutlass.range_constexpr(0, plan.epi_n, 16):
                if const_expr(plan.stores_via_smem):
                    words = self.transpose(cta, warp, values, first)
                else:
                    pairs = zip(values[first : first + 16 : 2], values[first + 1 : first + 16 : 2])
                    words = [cvt_f16x2(low, high) for low, high in pairs]
                if columns_left > first:
                    st_global_v8(to + Int64(column_step) * (C_BYTES * first), *words)
        else:
            for i in cutlass.range_constexpr(plan.epi_n):
                if columns_left > i:
                    st_global_b16(to + Int64(column_step) * (C_BYTES * i), cvt_f16(values[i]))

    def transpose(self, cta: Cta, warp: EpilogueWarp, values: list, first: int) -> list:
        """16 columns x 32 rows, from column `first` of an epilogue tile on, through shared memory:
        each lane gets 16 rows of column lane / 2, two fp16 a word.

        A column is 64 bytes there: four pieces of 8 rows, at their number XOR bits 1 and 2 of the
        column. So stmatrix (a piece of 8 columns) and the loads (two pieces of 4 columns) touch
        every bank once."""
        number = warp.turn * QUARTERS + warp.quarter
        buffer = cta.smem + self.plan.transposition + number * 1024
        # Registers of `tcgen05_ld`: of rows 0-15, and of rows 16-31; 4 for 8 columns.
        upper = values[: len(values) // 2][first // 2 : first // 2 + 8]
        lower = values[len(values) // 2 :][first // 2 : first // 2 + 8]
        column, piece = warp.lane & 7, warp.lane >> 3
        to = buffer + column * 64 + ((piece ^ (column >> 1)) << 4)
        cute.arch.sync_warp()
        for octet in range(2):
            packed = []
            for half in (upper, lower):
                registers = half[4 * octet : 4 * octet + 4]
                packed += [cvt_f16x2(*registers[:2]), cvt_f16x2(*registers[2:])]
            stmatrix_x4_trans(to + octet * 512, *packed)
        cute.arch.sync_warp()
        column, piece = warp.lane >> 1, (warp.lane & 1) * 2
        line = buffer + column * 64
        swizzle = (column >> 1) & 3
        low = ld_shared_v4(line + ((piece ^ swizzle) << 4))
        return low + ld_shared_v4(line + (((piece + 1) ^ swizzle) << 4))

    # ---- kernel: K split -------------------------------------------------------------------------

    # Each part of K owns every split_k-th epilogue tile of a tile. It adds the partial sums of the
    # others to its own, in the order of the parts after it, around to the one before it: timing
    # does not change the result. Sums travel as they lie in registers.

    def num_epi_tiles(self, tile: Tile):
        return div_up(tile.width, self.plan.epi_n)

    def num_owned(self, cta: Cta, tile: Tile):
        # The difference may be negative, but not below -(split_k - 1), which div_up adds.
        return div_up(self.num_epi_tiles(tile) - cta.k_rank, self.plan.split_k)

    def expect_partials(self, cta: Cta, tile: Tile):
        part_bytes = self.plan.num_products * QUARTERS * self.plan.partial_bytes
        owned_bytes = self.num_owned(cta, tile) * ((self.plan.split_k - 1) * part_bytes)
        partials_full = self.bar(self.plan.partials_full, cta, 0)
        cute.arch.mbarrier_arrive_and_expect_tx(partials_full, owned_bytes)

    @cute.jit
    def add_parts(self, cta: Cta, warp: EpilogueWarp, tile: Tile, acc_tmem):
        """Send what other parts own, then add theirs to the own and store these."""
        plan = self.plan
        split_k = plan.split_k
        epi_n = plan.epi_n
        turns = plan.warps_per_quarter
        for i in cutlass.range(self.num_epi_tiles(tile), unroll=1):
            owner, number = mod(i, split_k), div(i, split_k)
            if owner != cta.k_rank and mod(number, turns) == warp.turn:
                sums = self.read(acc_tmem + i * epi_n, plan.num_products)
                self.send(cta, warp, sums, owner, number)
        for number in cutlass.range(warp.turn, self.num_owned(cta, tile), turns, unroll=1):
            column = (number * split_k + cta.k_rank) * epi_n
            sums = self.read(acc_tmem + column, plan.num_products)
            # The first wait is for the partial sums of all.
            cute.arch.mbarrier_wait(self.bar(plan.partials_full, cta, 0), 0)
            for sender in cutlass.range_constexpr(split_k - 1):
                for product in cutlass.range_constexpr(plan.num_products):
                    at = self.partial(cta, warp, sender, number, product) + warp.lane * 16
                    quads = [ld_shared_v4_f32(at + n * 128) for n in range(0, epi_n, 4)]
                    received = itertools.chain(*quads)
                    sums[product] = [a + b for a, b in zip(sums[product], received)]
            self.store(cta, warp, tile, self.combine(sums), column)

    def partial(self, cta: Cta, warp: EpilogueWarp, sender, number, product: int):
        """Address, in the owner of an epilogue tile, of what this quarter of `sender` sends.
        number: of the epilogue tile, among those of its owner."""
        plan = self.plan
        index = (sender * plan.epi_tiles_per_owner + number) * plan.num_products + product
        index = index * QUARTERS + warp.quarter
        return cta.smem + plan.partials + index * plan.partial_bytes

    def send(self, cta: Cta, warp: EpilogueWarp, sums: list, owner, number):
        """Send this part of an epilogue tile to its owner. Sender 0 is the part after the owner."""
        split_k = self.plan.split_k
        rank = cta.rank + (owner - cta.k_rank) * self.plan.ctas_per_split
        sender = mod(cta.k_rank - owner + (split_k - 1), split_k)
        barrier = mapa(self.bar(self.plan.partials_full, cta, 0).toint(), rank)
        for product, values in enumerate(sums):
            to = mapa(self.partial(cta, warp, sender, number, product), rank) + warp.lane * 16
            for n in range(0, self.plan.epi_n, 4):
                st_async_v4_f32(to + n * 128, *values[n : n + 4], barrier)

    # ---- kernel: launch --------------------------------------------------------------------------

    @cute.jit
    def __call__(self, words):
        """words: as "what host, launch and kernel hand each other" says. The groups come in the
        order of their tiles, the longest first."""
        plan = self.plan
        count = 2 * self.num_operands + 1
        first_size = plan.num_groups * count
        maps, addresses, sizes = [], [], []
        tiles = Int32(0)
        for group in cutlass.range_constexpr(plan.num_groups):
            *pairs, c = words[group * count :][:count]
            *shape, stored_n = map(Int32, words[first_size + group * NUM_SIZES :][:NUM_SIZES])
            shape = GemmShape(*shape)
            maps += self.tensormaps(pairs[0::2], pairs[1::2], shape, stored_n)
            addresses += [*pairs[1::2], c]
            sizes += [tiles, *shape]
            m_tiles = div_up(shape.m, plan.tile_m)
            n_tiles = div_up(shape.n, plan.cluster_tile_n)
            tiles = tiles + m_tiles * shape.l * n_tiles
        clusters = tiles
        if const_expr(plan.persistent):
            clusters = cutlass.min(tiles, Int32(clusters_at_once(plan.cluster)))
        full_rounds = div(tiles - 1, clusters)  # those before the last one
        last = tiles - full_rounds * clusters  # tiles of the last round
        stages_if_idle = self.stages_without_last_tile(clusters, full_rounds, last)
        schedule = [clusters, full_rounds, last, stages_if_idle]
        self.kernel(maps, addresses, sizes, schedule).launch(
            grid=(clusters * plan.cluster, 1, 1),
            block=(plan.num_threads, 1, 1),
            cluster=(plan.cluster, 1, 1),
            smem=plan.smem_bytes,
            min_blocks_per_mp=1,
            use_pdl=OVERLAPS_LAUNCHES,
        )

    def stages_without_last_tile(self, clusters, full_rounds, last):
        """Stages that a cluster without a tile in the last round fills:
        stages * full_rounds / rounds + 2 * last / clusters. That is in proportion to its tiles, and
        up to two more where many clusters have a last tile: too few cost more than too many.

        At least MIN_STAGES: at the end of a dual tile the first product of `gate_lead` k-tiles is
        computed before the second one of any, which alone releases a stage."""
        stages, rounds = self.plan.num_stages, full_rounds + 1
        fewer = stages * full_rounds * clusters + 2 * last * rounds
        fewer = cutlass.min(div(fewer, clusters * rounds), Int32(stages))
        return cutlass.max(fewer, Int32(MIN_STAGES))

    def tensormaps(self, codes, scales, shape: GemmShape, stored_n) -> list:
        """TMA atoms of the codes of each operand, then of the scales of each."""
        plan = self.plan
        sides = [(shape.m, shape.m, plan.box_m)] * plan.num_a
        sides += [(shape.n, stored_n, plan.box_n)] * plan.num_b
        found = [self.code_tensormap(address, *side, shape) for address, side in zip(codes, sides)]
        for address, (_, stored, _) in zip(scales, sides):
            found.append(self.scale_tensormap(address, stored, shape))
        return found

    def code_tensormap(self, address, extent, stored, box_rows: int, shape: GemmShape):
        """Boxes of box_rows x 256 elements of a K-major operand [extent, k, l]."""
        k = cute.assume(shape.k, K_BLOCK)
        row = cute.assume(Int64(shape.k), K_BLOCK)
        plane = cute.assume(Int64(stored) * Int64(shape.k), K_BLOCK)
        swizzle = tcgen05.make_smem_layout_atom(tcgen05.SmemLayoutAtomKind.K_SW128, Float4E2M1FN)
        box = (box_rows, TILE_K)
        smem = cute.tile_to_shape(swizzle, box, order=(0, 1))
        size = (extent, k, shape.l)
        strides = (row, 1, plane)
        return self.tma_atom(Float4E2M1FN, address, size, strides, box, smem)

    def scale_tensormap(self, address, stored, shape: GemmShape):
        """Boxes of the scale-factor atoms of a k-tile of 128 rows, as 256 Int16 each."""
        k_blocks = shape.k >> LOG_K_BLOCK
        num_int16 = ATOM_BYTES // 2
        box = (num_int16, K_BLOCKS, 1)
        size = (num_int16, k_blocks, shape.l * atoms_of(stored))
        strides = (1, num_int16, cute.assume(Int64(k_blocks) * num_int16, num_int16))
        return self.tma_atom(Int16, address, size, strides, box, cute.make_layout(box))

    def tma_atom(self, dtype, address, size, strides, box, smem):
        pointer = cute.make_ptr(dtype, address, cute.AddressSpace.gmem, assumed_align=16)
        tensor = cute.make_tensor(pointer, cute.make_layout(size, stride=strides))
        load = cpasync.CopyBulkTensorTileG2SOp(tcgen05.CtaGroup.ONE)
        return cpasync.make_tiled_tma_atom(load, tensor, smem, box)[0]


@functools.cache
def compile_kernel(plan: Plan):
    """Kernel.__call__, compiled, for all problems with this plan."""
    words_of_group = 2 * (plan.num_a + plan.num_b) + 1 + NUM_SIZES
    return cute.compile(Kernel(plan), Words([0] * plan.num_groups * words_of_group))


# ---- input ---------------------------------------------------------------------------------------

Groups = list[dict[str, torch.Tensor]]  # of each group the tensors that count, by name


def unpack(data) -> tuple[Groups, output_t]:
    """For each group the tensors that count: codes, scales, c; and what is to be returned."""
    count = len(data) if isinstance(data, (tuple, list)) else 0
    if count == 7:  # gemv, gemm
        a, b, _, _, sfa, sfb, c = data
        return [{"a": a, "b": b, "sfa_permuted": sfa, "sfb_permuted": sfb, "c": c}], c
    if count == 10:  # dual gemm
        a, b1, b2, _, _, _, sfa, sfb1, sfb2, c = data
        scales = {"sfa_permuted": sfa, "sfb1_permuted": sfb1, "sfb2_permuted": sfb2}
        return [{"a": a, "b1": b1, "b2": b2, **scales, "c": c}], c
    if count == 4 and isinstance(data[0], list) and len(data[0]) == len(data[2]) > 0:
        groups = [
            {"a": a, "b": b, "sfa_permuted": sfa, "sfb_permuted": sfb, "c": c}
            for (a, b, c), (sfa, sfb) in zip(data[0], data[2])
        ]
        return groups, [tensors["c"] for tensors in groups]
    raise TypeError(
        "data: expected 7 tensors (gemv, gemm), 10 (dual gemm) or 4 lists with an item for each "
        f"group (group gemm), found {f'{count} items' if count else type(data).__name__}"
    )


class Operand(NamedTuple):
    """What a tensor must be."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@functools.cache
def operands_of(problem: Problem) -> list[dict[str, Operand]]:
    """What the tensors of each group must be, by their names in `unpack`."""
    groups = []
    b = ["b1", "b2"] if problem.num_products == 2 else ["b"]
    for m, n, k, l in problem.groups:
        rows, c = {"a": m, **dict.fromkeys(b, n)}, (m, n, l)
        if problem.is_gemv:
            rows, c = {"a": n, "b": GEMV_ROWS}, (n, m, l)
        codes, scales = {}, {}
        for key, extent in rows.items():
            codes[key] = dense(torch.float4_e2m1fn_x2, (extent, k // 2, l), (2, 0, 1))
            atoms = (32, 4, ceil_div(extent, ATOM_ROWS), 4, k // K_BLOCK, l)
            scales[f"sf{key}_permuted"] = dense(torch.float8_e4m3fn, atoms, (5, 2, 4, 0, 1, 3))
        groups.append({**codes, **scales, "c": dense(torch.float16, c, (2, 0, 1))})
    return groups


def dense(dtype: torch.dtype, shape: tuple[int, ...], order: tuple[int, ...]) -> Operand:
    """A tensor without gaps. order: its dimensions, outermost in memory first."""
    in_memory = torch.zeros([shape[dim] for dim in order], device="meta")
    in_order = in_memory.permute([order.index(dim) for dim in range(len(order))])
    return Operand(dtype, shape, in_order.stride())


def expect(holds: bool, name: str, expected, found, error: type[Exception] = ValueError):
    if not holds:
        raise error(f"{name}: expected {expected}, found {found}")


def named(groups: list[dict]) -> list[tuple]:
    """All tensors, or all operands, with the names that errors give them."""
    return [
        (f"{key}[{group}]" if len(groups) > 1 else key, item)
        for group, items in enumerate(groups)
        for key, item in items.items()
    ]


def read_problem(data, groups: Groups) -> Problem:
    """The problem that `data` poses; TypeError or ValueError names what is wrong with it."""
    tensors = named(groups)
    for name, tensor in tensors:
        is_tensor = isinstance(tensor, torch.Tensor)
        expect(is_tensor, name, "a tensor", type(tensor).__name__, TypeError)
        device = tensors[0][1].device
        expect(tensor.device == device, name, device, tensor.device)
        shape = tensor.shape
        if name[0] != "s":
            is_legal = len(shape) == 3 and 0 < min(shape) <= max(shape) < 2**30
            expect(is_legal, name, "3 dimensions of 1 to 2^30 - 1", f"shape {list(shape)}")
        if name[0] == "a":
            k = 2 * shape[1]
            expect(k % K_BLOCK == 0, name, f"K a multiple of {K_BLOCK}", k)
    num_products = 2 if len(data) == 10 else 1
    is_gemv = False
    shapes = []
    for group, by_key in enumerate(groups):
        m, half_k, l = by_key["a"].shape
        n, k = by_key["b1" if num_products == 2 else "b"].shape[0], 2 * half_k
        if len(data) == 4:
            sizes = tuple(data[3][group])
            expect(sizes == (m, n, k, l), f"sizes[{group}]", (m, n, k, l), sizes)
        is_gemv = len(data) == 7 and n == GEMV_ROWS and by_key["c"].shape[1] == 1
        shapes.append(GemmShape(1, m, k, l) if is_gemv else GemmShape(m, n, k, l))
    most = PARAMETER_BYTES * len(groups) // parameter_bytes(num_products + 1, len(groups))
    expect(len(groups) <= most, "sizes", f"at most {most} groups", len(groups))
    problem = Problem(num_products, tuple(shapes), is_gemv)
    expected = dict(named(operands_of(problem)))
    for name, tensor in tensors:
        check_operand(name, expected[name], tensor)
    return problem


def check_operand(name: str, expected: Operand, found: torch.Tensor) -> None:
    """TypeError or ValueError if it is not what it must be. Strides count only where there is more
    than one element along them."""
    expect(found.dtype == expected.dtype, name, f"dtype {expected.dtype}", found.dtype, TypeError)
    expect(found.shape == expected.shape, name, f"shape {list(expected.shape)}", list(found.shape))
    triples = zip(found.shape, expected.strides, found.stride())
    is_dense = all(size == 1 or ours == theirs for size, ours, theirs in triples)
    expect(is_dense, name, f"strides {list(expected.strides)}", list(found.stride()))


PROBLEMS: dict[tuple, Problem] = {}  # of inputs that were found right, by what they are


def problem_of(data, groups: Groups) -> Problem:
    """As `read_problem`; what was found right once is known by its form."""
    try:
        form = [
            (tensor.shape, tensor.stride(), tensor.dtype, tensor.device)
            for tensors in groups
            for tensor in tensors.values()
        ]
        key = len(data), *(data[3] if len(data) == 4 else ()), *form
        problem = PROBLEMS.get(key)
    except (AttributeError, TypeError):  # no tensor, or not to be hashed
        return read_problem(data, groups)
    if problem is None:
        problem = PROBLEMS[key] = read_problem(data, groups)
    return problem


# ---- host launch ---------------------------------------------------------------------------------


@functools.cache
def kernel_for(problem: Problem, config: Config):
    """Kernel.__call__, compiled, for a problem in a configuration, and the order of its words."""
    kernel = compile_kernel(check(config, problem))
    return kernel, order_of_words(problem, config.swap_ab)


def order_of_words(problem: Problem, swap_ab: bool) -> tuple[operator.itemgetter, list, list]:
    """What takes the tensors of a group in the order of the words; the groups, those with the
    longest tiles first; and the sizes of all, in this order."""
    own, shared = ["b"], ["a"]
    if problem.is_gemv:
        own, shared = shared, own
    elif problem.num_products == 2:
        own = ["b1", "b2"]
    operands = own + shared if swap_ab else shared + own
    pairs = [(key, f"sf{key}_permuted") for key in operands]
    tensors_of = operator.itemgetter(*itertools.chain(*pairs), "c")
    shapes = for_mma(problem, swap_ab).groups
    order = sorted(range(len(shapes)), key=lambda group: -tile_work(shapes[group]))
    sizes = []
    for group in order:
        sizes += [*shapes[group], GEMV_ROWS if problem.is_gemv else shapes[group].n]
    return tensors_of, order, sizes


def bind(problem: Problem, groups: Groups, config: Config) -> Callable[[], None]:
    """The launch for the tensors of each group; ValueError if one has an illegal address: TMA takes
    addresses of 16 bytes, stores of 16 fp16 take 32."""
    kernel, (tensors_of, order, sizes) = kernel_for(problem, config)
    addresses = [tensor.data_ptr() for group in order for tensor in tensors_of(groups[group])]
    if functools.reduce(operator.or_, addresses) % 32:
        for name, tensor in named(groups):
            address = tensor.data_ptr()
            expect(address % 32 == 0, name, "an address of 32 bytes", hex(address))
    return functools.partial(kernel, Words(addresses + sizes))


# ---- cost model and pick -------------------------------------------------------------------------


@dataclass(frozen=True)
class CostModel:
    """Constants of `estimate`, in SM cycles and bytes a cycle of the whole chip, fitted to modelled
    times (docs/lab/tuning.md)."""

    start: float = 3030  # from the launch to the first MMA
    meet: float = 250  # more than that, until the CTAs of a cluster have met
    dram: float = 4000  # bytes a cycle
    l2: float = 10200  # bytes a cycle, from the L2 to all SMs
    outside: float = 3850  # bytes a cycle of boxes that lie outside of their tensor
    fill: float = 1.74  # what a byte from DRAM costs the L2, in bytes that an SM reads
    merged: float = 0.4  # part of own operands that neighbours without a cluster read together
    load: float = 42  # a TMA instruction of the load warp
    refill: float = 2220  # until a stage that is released is full again
    epilogue: float = 11.7  # a column
    split: float = 390  # each further part of K
    exchange: float = 29.5  # a column of partial sums, each further part of K
    restart: float = 2350  # a further wave of clusters, unless they are persistent


COSTS = CostModel()
ELEMENT_BYTES = 0.5 + 1 / 16  # its code, and its part of a scale
CLOSE = 1.015  # estimates within this ratio are alike


def soft_max(values: Iterable[float], power: int) -> float:
    """The largest value, and somewhat more where others are near: what overlaps is not free."""
    return sum(value**power for value in values) ** (1 / power)


def waves_of(config: Config, problem: Problem) -> int:
    """How often the chip is filled with clusters, one tile each."""
    return ceil_div(tile_count(config, problem), clusters_at_once(config.cluster))


def main_loop_cycles(plan: Plan, n: int, k: int) -> float:
    """Of the k-tiles of a tile: MMAs, TMA instructions, and until a stage is full again."""
    # An MMA, of both CTAs of a pair: at the rate of the tensor core, or what it takes at least.
    rate, least = n / 2, 32 + n / 4 if plan.cta_group == 1 else 35 + n / 8
    mmas = K_BLOCKS * plan.num_products * max(rate, least)
    boxes = ceil_div(n // plan.cta_group, plan.box_n)
    b_loads = plan.num_b * (boxes + ceil_div(n, ATOM_ROWS))
    a_loads = 2 * plan.num_a / plan.cluster_n
    loads = COSTS.load * (a_loads + b_loads)
    refill = COSTS.refill / plan.num_stages
    k_tiles = ceil_div(ceil_div(k, TILE_K), plan.split_k)
    return k_tiles * soft_max((mmas, loads, refill), 4)


def epilogue_cycles(plan: Plan, n: int) -> float:
    """Of a tile, with the exchange of a K split."""
    split_k = plan.split_k
    epi_tiles = ceil_div(ceil_div(n, plan.epi_n), split_k)
    stored = min(n, epi_tiles * plan.epi_n)
    exchange = COSTS.split + COSTS.exchange * plan.num_products * stored
    return COSTS.epilogue * stored + (split_k - 1) * exchange


def memory_cycles(plan: Plan, shape: GemmShape) -> tuple[float, float]:
    """Of DRAM and of the L2 for a group: the bytes that it needs, and what boxes load beyond."""
    m_tiles = shape.l * ceil_div(shape.m, plan.tile_m)
    n_tiles = ceil_div(shape.n, plan.cluster_tile_n)
    # Rows of A and B, counted as often as they are read: of all tiles, and in all boxes.
    a_read = plan.num_a * shape.l * shape.m * n_tiles
    b_read = plan.num_b * m_tiles * shape.n
    in_boxes = plan.num_a * n_tiles * plan.cta_group * plan.box_m
    in_boxes += plan.num_b * round_up(shape.n, plan.box_n * plan.cta_group)
    outside = m_tiles * in_boxes - a_read - b_read
    once = (plan.num_a * shape.m + plan.num_b * shape.n) * shape.l
    own_read = a_read if plan.swap_ab else b_read
    merged = COSTS.merged * own_read if plan.cluster == 1 else 0
    inside = a_read + b_read - merged + COSTS.fill * once
    l2 = inside / COSTS.l2 + outside / COSTS.outside
    return shape.k * ELEMENT_BYTES * once / COSTS.dram, shape.k * ELEMENT_BYTES * l2


def estimate(config: Config, problem: Problem) -> float:
    """Rough SM cycles, to rank configurations: start, main loops against DRAM and L2, the last
    epilogue, and further waves of clusters."""
    plan = make_plan(config, problem)
    groups = for_mma(problem, config.swap_ab).groups
    count = tile_count(config, problem)
    waves = waves_of(config, problem)
    tiles = []  # (main loop, epilogue) in the order in which clusters take them
    for shape in sorted(groups, key=tile_work, reverse=True):
        mean = ceil_div(shape.n, ceil_div(shape.n, config.tile_n))
        n = mean if waves > 1 else min(shape.n, config.tile_n)
        n = round_up(n, config.n_step)
        tile = main_loop_cycles(plan, n, shape.k), epilogue_cycles(plan, n)
        tiles += [tile] * cluster_tiles(config, shape)
    memory = [memory_cycles(plan, shape) for shape in groups]
    dram = sum(cycles for cycles, _ in memory)
    l2 = sum(cycles for _, cycles in memory)
    # The longest tile of each round: at least what any cluster has.
    at_once = clusters_at_once(config.cluster)
    longest = tiles[::at_once]
    main_loops = sum(main_loop for main_loop, _ in longest)
    last_main_loop, last_epilogue = longest[-1]
    if plan.num_acc_stages == 1:
        main_loops += sum(epilogue for _, epilogue in longest[:-1])
    if config.persistent:  # all clusters load to the end
        cycles = soft_max((main_loops, dram, l2), 5)
    else:  # a last wave loads its own part of the bytes
        last_part = 1 - (waves - 1) * at_once / count
        first_part = 1 - last_part
        first_main_loops = main_loops - last_main_loop
        cycles = soft_max((first_main_loops, first_part * dram, first_part * l2), 5)
        cycles += soft_max((last_main_loop, last_part * dram, last_part * l2), 5)
        cycles += (waves - 1) * COSTS.restart
    meet = COSTS.meet if config.cluster > 1 else 0
    return COSTS.start + meet + cycles + last_epilogue


def legal_configs(problem: Problem) -> list[Config]:
    """The configurations that `pick` weighs; persistent ones where there are several waves."""
    found = []
    is_vector = all(shape.m <= 8 for shape in problem.groups)
    for swap_ab in (True,) if is_vector else (True, False):
        mma = for_mma(problem, swap_ab)
        n = mma.max_n
        tiles = {64, 128, 192, 256} if n > 8 else {8}
        if 8 < n <= 256:  # one tile, not wider than it must be
            tiles |= {round_up(n, 16), round_up(n, 32)}
        can_pair = n > 8 and all(shape.m > CTA_M for shape in mma.groups)
        levers = {
            "tile_n": sorted(tiles),
            "cta_group": (1, 2) if can_pair else (1,),
            "split_k": CLUSTER_SIZES,
            "cluster_n": (1, 2, 4) if n > 8 else (1,),
            "persistent": (False, True),
        }
        for values in itertools.product(*levers.values()):
            config = Config(swap_ab=swap_ab, **dict(zip(levers, values)))
            try:
                check(config, problem)
            except ValueError:
                continue
            if not config.persistent or waves_of(config, problem) > 1:
                found.append(config)
    return found


def mechanisms(config: Config) -> tuple[str, ...]:
    """Which levers besides the tile are not as in the plainest configuration."""
    defaults = vars(Config(tile_n=config.tile_n))
    return tuple(name for name, value in vars(config).items() if value != defaults[name])


def estimates_of(problem: Problem) -> dict[Config, float]:
    return {config: estimate(config, problem) for config in legal_configs(problem)}


def pick(problem: Problem, estimates: dict[Config, float] | None = None) -> Config:
    """The configuration by estimate, of all unless some are given: of those close to the best one,
    that with the fewest CTAs in a cluster, then the fewest mechanisms, then the best estimate."""
    estimates = estimates or estimates_of(problem)
    limit = CLOSE * min(estimates.values())
    close = [config for config, cycles in estimates.items() if cycles <= limit]
    return min(close, key=lambda c: (c.cluster, len(mechanisms(c)), estimates[c]))


# ---- the choice, measured ------------------------------------------------------------------------

# On a B200 the first call for a problem tries a few configurations on the caller's tensors and
# chooses the fastest of those that agree. Only the choice is kept: later calls just launch.

MEASURES = True  # False: the first candidate is taken, on a B200 as elsewhere
MAX_CANDIDATES = 8
WORTH_TRYING = 1.15  # an estimate of at most this times the first candidate's
FASTER = 0.98  # the first stays, unless another one takes less than this part of its time
PROBLEM_SECONDS, PROCESS_SECONDS = 10.0, 30.0  # to compile, run and time candidates
CALLS, GROUP_CALLS = 50, 15  # between two events, each on inputs of its own, as the boards do
WORK_BYTES = 8 << 30  # of tensors at most for these calls: fewer calls where they are large
L2_CLEAR_BYTES = 1 << 29
CLEAR_SECONDS, MAX_CLEARS = 50e-6, 100  # a write of so much takes longer; before a call
ROUNDS = 100  # of each candidate once
TOLERANCE = {"rtol": 1e-3, "atol": 1e-3, "equal_nan": True}  # the leaderboards', for fp16
EVENT_STEP = 2.048e-3  # milliseconds: some GPUs' events tick in steps of so much
# Variables that Nsight Compute and other injected profilers set for the process. Images of
# containers set further ones of NV_COMPUTE_PROFILER, without a profiler.
PROFILERS = (
    "NV_COMPUTE_PROFILER_PERFWORKS_DIR",
    "NV_NSIGHT_INJECTION",
    "NV_TPS_LAUNCH",
    "CUDA_INJECTION64_PATH",
)


@dataclass(eq=False)
class Trial:
    """A candidate that ran."""

    config: Config
    outputs: list[torch.Tensor]  # what it made of c
    launches: Sequence[Callable[[], None]] = ()  # timed together
    times: list[float] = field(default_factory=list)  # of all these, in milliseconds

    def call(self) -> None:
        for launch in self.launches:
            launch()

    @property
    def time(self) -> float:
        """Of a call: the mean of the times that are not far above the median. Events may tick in
        steps: over these a mean is right, and a median is one of two steps."""
        limit = 1.5 * statistics.median(self.times) + EVENT_STEP
        return statistics.fmean(time for time in self.times if time <= limit) / len(self.launches)


def is_b200(groups: Groups) -> bool:
    """Whether the tensors are on a real GPU of compute capability 10. A B200 in software replaces
    functions of torch.cuda, not the count of devices below them, which torch without CUDA lacks."""
    count = getattr(torch._C, "_cuda_getDeviceCount", None)
    if not groups[0]["c"].is_cuda or count is None or count() == 0:
        return False
    return torch.cuda.get_device_capability()[0] == 10


def is_profiled() -> bool:
    """Whether a profiler has injected itself: it replays each launch some forty times, and times
    between events mean nothing."""
    return any(name.startswith(PROFILERS) for name in os.environ)


def plainest(problem: Problem) -> Config:
    """One CTA a tile, no cluster, no K split, one tile a CTA."""
    return Config(tile_n=8 if all(shape.m <= 8 for shape in problem.groups) else 64)


def candidates(problem: Problem) -> list[Config]:
    """What is tried, in this order: first the pick.

    Always among them, should the estimate be wrong: the plainest configuration, the best without a
    cluster, the best without any mechanism, and another tile for the first one's mechanisms. Then
    the best by estimate of each other combination of mechanisms that is worth trying."""
    estimates = estimates_of(problem)
    first = pick(problem, estimates)
    used = mechanisms(first)
    by_estimate = sorted(estimates, key=lambda config: estimates[config])

    def best(accepted: Callable[[Config], bool]) -> Config:
        return next(filter(accepted, by_estimate), first)

    found = [
        first,
        plainest(problem),
        best(lambda config: config.cluster == 1 and mechanisms(config) != ()),
        best(lambda config: mechanisms(config) == ()),
        best(lambda config: mechanisms(config) == used and config != first),
    ]
    combinations = {mechanisms(config) for config in found}
    limit = WORTH_TRYING * estimates[first]
    for config in by_estimate:
        if estimates[config] <= limit and mechanisms(config) not in combinations:
            combinations.add(mechanisms(config))
            found.append(config)
    return list(dict.fromkeys(found))[:MAX_CANDIDATES]


def clones(groups: Groups) -> Groups:
    """Codes and scales are copied by bytes: not every torch copies their types."""

    def clone(tensor: torch.Tensor) -> torch.Tensor:
        values = tensor.view(torch.uint8) if tensor.element_size() == 1 else tensor
        return values.clone().view(tensor.dtype)

    return [{key: clone(tensor) for key, tensor in tensors.items()} for tensors in groups]


def with_other_data(groups: Groups) -> Groups:
    """Copies in which each byte of the inputs differs: all bits of codes, one of scales, which stay
    finite."""
    copies = clones(groups)
    for name, tensor in named(copies):
        if name[0] == "s":
            tensor.view(torch.uint8).bitwise_xor_(8).clamp_(max=0x7E)
        elif name[0] != "c":
            tensor.view(torch.uint8).bitwise_xor_(255)
    return copies


def forget(groups: Groups) -> None:
    """So that what is not written differs."""
    for tensors in groups:
        tensors["c"].fill_(float("nan"))


def agree(found: Iterable[torch.Tensor], expected: Iterable[torch.Tensor]) -> bool:
    pairs = zip(found, expected)
    return all(torch.allclose(a.float(), b.float(), **TOLERANCE) for a, b in pairs)


def run_once(problem: Problem, groups: Groups, others: Groups, config: Config) -> list:
    """What a configuration makes of c, after other data has passed through the kernel: bytes that
    it reads too early are not those of its predecessor."""
    call = bind(problem, groups, config)
    bind(problem, others, config)()
    forget(groups)
    call()
    torch.cuda.synchronize()
    return [tensors["c"].clone() for tensors in groups]


def try_all(problem: Problem, groups: Groups, end: float) -> list[Trial]:
    """Run the candidates, until the time `end`. Each is named before: where one hangs, its line is
    the last. One that raises is left out; if it took the GPU with it, all ends here."""
    others = with_other_data(groups)
    trials = []
    for config in candidates(problem):
        if trials and time.monotonic() > end:
            break
        report(f"trying {config}")
        try:
            outputs = run_once(problem, groups, others, config)
        except Exception as error:
            report(f"{config} is left out: {type(error).__name__}: {error}")
            try:
                torch.cuda.synchronize()
            except Exception:
                raise RuntimeError(f"the GPU is lost since this ran: {config}") from error
        else:
            trials.append(Trial(config, outputs))
    return trials


def trusted(trials: list[Trial], plain: Config) -> list[Trial]:
    """The trials that agree with the one that most agree with; on a tie, with the plainest."""

    def supporters(trial: Trial) -> list[Trial]:
        return [other for other in trials if agree(other.outputs, trial.outputs)]

    order = sorted(trials, key=lambda trial: trial.config != plain)
    found = max(map(supporters, order), key=len)
    for trial in trials:
        if trial not in found:
            report(f"{trial.config} is left out: its c differs from that of {found[0].config}")
    return found


def calls_timed(problem: Problem, groups: Groups) -> int:
    """How many calls a timed run has, as the boards time: a gemv by itself."""
    if problem.is_gemv:
        return 1
    size = sum(tensor.nbytes for tensors in groups for tensor in tensors.values())
    return max(1, min(CALLS if len(groups) == 1 else GROUP_CALLS, WORK_BYTES // size))


def measure(trials: list[Trial], end: float = float("inf")) -> None:
    """Time the trials by turns, another one first in each round, between two events. Before each a
    write clears the L2, and takes longer than the host to launch."""
    clear = torch.zeros(L2_CLEAR_BYTES, dtype=torch.uint8, device=trials[0].outputs[0].device)
    begin = time.perf_counter()
    trials[0].call()
    num_clears = min(1 + int((time.perf_counter() - begin) / CLEAR_SECONDS), MAX_CLEARS)
    for done in range(ROUNDS):
        first = done % len(trials)
        for trial in trials[first:] + trials[:first]:
            for _ in range(num_clears):
                clear.zero_()
            try:
                start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                start.record()
                trial.call()
                stop.record()
                stop.synchronize()
            except Exception as error:
                raise RuntimeError(f"this failed while it was timed: {trial.config}") from error
            trial.times.append(start.elapsed_time(stop))
        if time.monotonic() > end:
            break


def fastest(trials: list[Trial], work: list[Groups]) -> Trial:
    """The first trial, unless another is faster by more than 2 %; one whose results are no longer
    what they were before the timing is left out."""
    while len(trials) > 1:
        best = min(trials, key=lambda trial: trial.time)
        if best.time >= FASTER * trials[0].time:
            best = trials[0]
        for groups in work:
            forget(groups)
        best.call()
        if all(agree([tensors["c"] for tensors in groups], best.outputs) for groups in work):
            return best
        report(f"{best.config} is left out: its c differs after the timing")
        trials = [trial for trial in trials if trial is not best]
    return trials[0]


def measured_choice(problem: Problem, groups: Groups, seconds: float) -> Config:
    end = time.monotonic() + seconds
    trials = try_all(problem, groups, end)
    if not trials:
        return unmeasured(problem, "none ran")  # its launch shows the error
    trials = trusted(trials, plainest(problem))
    if len(trials) == 1:
        report(f"chose {trials[0].config}, the only one left")
        return trials[0].config
    work = [groups] + [clones(groups) for _ in range(calls_timed(problem, groups) - 1)]
    for trial in trials:
        trial.launches = [bind(problem, tensors, trial.config) for tensors in work]
    report(f"timing {len(trials)} that agree")
    measure(trials, end)
    chosen = fastest(trials, work)
    times = ", ".join(f"{1e3 * trial.time:.2f}" for trial in trials)
    report(f"chose {chosen.config} of {len(trials)} that agree: {times} us")
    return chosen.config


def unmeasured(problem: Problem, why: str) -> Config:
    config = candidates(problem)[0]
    report(f"chose {config} without measuring: {why}")
    return config


def report(message: str) -> None:
    print(f"submission.py: {message}", file=sys.stderr, flush=True)


class Choices:
    """The configuration of each problem of this process, and the seconds left to measure."""

    def __init__(self):
        self.configs: dict[Problem, Config] = {}
        self.seconds_left = PROCESS_SECONDS

    def of(self, problem: Problem, groups: Groups) -> Config:
        if problem not in self.configs:
            self.configs[problem] = self.choose(problem, groups)
        return self.configs[problem]

    def choose(self, problem: Problem, groups: Groups) -> Config:
        if not is_b200(groups):
            return pick(problem)
        if not MEASURES:
            return unmeasured(problem, "MEASURES is False")
        if is_profiled():
            return unmeasured(problem, "a profiler has injected itself")
        if self.seconds_left <= 0:
            return unmeasured(problem, "no seconds are left")
        start = time.monotonic()
        config = measured_choice(problem, groups, min(PROBLEM_SECONDS, self.seconds_left))
        self.seconds_left -= time.monotonic() - start
        return config


CHOICES = Choices()


def launch(problem: Problem, groups: Groups, config: Config | None = None):
    """Compute a problem on the tensors of each group, in the configuration chosen for it if none is
    given; TypeError or ValueError if one is illegal."""
    bind(problem, groups, config or CHOICES.of(problem, groups))()


def custom_kernel(data: input_t) -> output_t:
    """Compute c of any of the four problems (top of this file) in place, and return it."""
    groups, result = unpack(data)
    launch(problem_of(data, groups), groups)
    return result
