"""NVFP4 gemv, gemm, dual gemm and group gemm on a B200: one kernel.

NORMAL FORM   out[l, t, r] = f(sum over k of weights[l, r, k] * tokens[l, t, k])
    operands are e2m1 with a ue4m3 scale for 16 elements of K, sums are fp32, out is fp16

    problem   weights (rows r, M of the MMA)   tokens (t, N of the MMA)   f
    gemv      a                                row 0 of b                 identity
    gemm      b                                a                          identity
    dual      b1, b2                           a                          silu(p1) * p2
    group     b of each group                  a of each group            identity

    Weight rows fill the 128 lanes of tensor memory. Tokens take any multiple of 8 columns (16 over
    a CTA pair), so a tile costs what its tokens cost. Neighbouring lanes are neighbours in c.

ROLES   a CTA computes 128 weight rows of a tile, a pair of neighbouring cluster ranks 256
    warps 0-3  epilogue: tensor memory lanes 32w... -> registers -> global
    warp 4     load: TMA boxes of weights and tokens, bulk copies of scale-factor atoms
    warp 5     MMA: scales to tensor memory, block-scaled MMAs; in the odd CTA of a pair: relay
    warps 6-7  only with setmaxnreg, to complete the second warpgroup

PIPELINES (mbarriers)
    barrier       from -> to            arrivals of a phase
    full[s]       load -> MMA           1 expect_tx of the load warp, and the bytes of the stage;
                                        even CTA of a pair: 1 more, relayed by the odd CTA
    empty[s]      MMA -> load           1 commit of each MMA warp that reads what this CTA sends
    gate[a]       MMA -> epilogue       1 commit: the first product of a dual tile is complete
    acc_full[a]   MMA -> epilogue       1 commit: the tile is complete
    acc_empty[a]  epilogue -> MMA       4 warps of each CTA of the pair, on the even CTA
    partials      epilogue -> epilogue  1 expect_tx, and the bytes of the other CTAs' partial sums
    The MMAs of a pair are issued by its even CTA and read shared memory of both. What the odd CTA
    loads completes on its own full[s]; its MMA warp waits there and arrives on the even CTA's.

TIMELINE of a role
    load      prefetch descriptors, init full | loads of the first stages, without waits or
              multicast | barrier of the cluster or CTA | wait empty, expect, load ...
    MMA       allocate | join | wait full, copy scales, MMAs, commit empty ... | commit acc_full
              gate_lead: ... | first product of the last k-tiles, commit gate | second product
    epilogue  init other barriers | join | wait gate, silu of the first chunk | wait acc_full |
              K split: send partial sums, wait partials | read a chunk, add, transpose, store ...
    all       barrier of the cluster or CTA | MMA warp: free tensor memory

SHARED MEMORY                                        TENSOR MEMORY (columns)
    stage 0  weights [w][k/256][128 rows][128 B]        accumulators [a][w][token]
             tokens  [k/256][rows][128 B]               slot 0  weight scales [w][k/64][4]
             weight scales [w][k/64][512 B]                     token scales [k/64][t/128][4]
             token scales  [t/128][k/64][512 B]         slot 1 ...
    stage 1 ...
    transposition buffers, 4 x 1 KB                     With a slot for each stage, waiting for
    K split: partial sums received (those to            full[s] also proves that the MMAs which
    send overlay the stages)                            read the slot before are complete.
    barriers, address of tensor memory

NUMERICS   silu(x) = x / (1 + 2^(-x log2 e)) in fp32. Rounding the product perturbs the exponential
    by |x| 2^-23 at most, ex2.approx errs by 2^-22, rcp.approx by 2^-23, three roundings by 2^-24:
    the relative error is below (|x| + 5) 2^-23, that is 1.1e-5 down to x = -87, where fp16 rounds
    by 5e-4; beyond, silu is below 1e-35 and becomes 0. A K split adds in a fixed order: the same
    input gives the same bits.
"""

import ctypes
import functools
import itertools
import struct
from dataclasses import dataclass

import cutlass
import cutlass._mlir.dialects.cute as cute_ir
import cutlass._mlir.dialects.cute_nvgpu as cute_nvgpu_ir
import cutlass.cute as cute
import torch
from cutlass import Float4E2M1FN, Float32, Int16, Int32, Int64, Uint32, const_expr
from cutlass._mlir.dialects import arith, llvm
from cutlass.cute.nvgpu import cpasync, tcgen05
from cutlass.cutlass_dsl import dsl_user_op

from task import input_t, output_t

SM_COUNT = 148
CLUSTERS = 148, 74, 48, 33, 26, 24, 16, 16  # of 1, 2, ... CTAs, resident at a time on 8 GPCs
SMEM_BYTES = 232_448  # what one CTA may ask for
SMEM_PER_SM = 233_472  # each resident CTA takes 1 KB more than it asks for
TMEM_COLUMNS = 512
PARAMETER_BYTES = 32_764
MAX_CLUSTER = 8  # CTAs, the portable limit

ROWS = 128  # weight rows of a CTA
BOX_K = 256  # elements of K in a row of a box with 128-byte swizzle
STEP_K = 64  # elements of K in one MMA and in one scale-factor atom
ATOM = 512  # bytes of a scale-factor atom: 128 rows x 4 scales

EPILOGUE_WARPS, LOAD_WARP, MMA_WARP, WARPS = 4, 4, 5, 6
DESCRIPTOR_WARP, SCALE_WARP = 1, 2  # of the epilogue: what they prefetch at the start


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def round_up(a: int, b: int) -> int:
    return ceil_div(a, b) * b


# ---- normal form ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Product:
    """Sizes in elements. token_rows: rows that the token operand has in memory (128 in gemv)."""

    rows: int
    tokens: int
    k: int
    batch: int
    token_rows: int


@dataclass(frozen=True)
class Problem:
    """`weights` operands against one token operand, for each group.

    tokens_first: `data` names the token operand before the weights (not so in gemv).
    """

    weights: int
    groups: tuple[Product, ...]
    tokens_first: bool = True

    @property
    def tokens(self) -> int:
        return max(p.tokens for p in self.groups)


# ---- configuration -------------------------------------------------------------------------------

POLICIES = {"normal": None, "evict_first": 0x12F0000000000000, "evict_last": 0x14F0000000000000}


@dataclass(frozen=True)
class Config:
    """Every compile-time choice."""

    cta_group: int = 1  # 1: 128 weight rows an MMA, 2: 256 over a CTA pair
    token_tile: int = 64  # most tokens of an output tile
    token_box: int = 64  # token rows of a TMA box; a tile loads only the boxes that hold tokens
    mma_tokens: int = 256  # most tokens of an MMA; a wider tile takes several, which share A
    k_tile: int = 256  # elements of K in a stage
    stages: int = 0  # 0: as many as shared memory holds
    accumulators: int = 1  # tiles in tensor memory at a time
    scales_per_stage: bool = True  # a slot of scale columns for each stage, or one for all
    interleave_scales: bool = True  # copy scales before the MMA that needs them, else by k-tile
    collector: bool = True  # hints where consecutive MMAs share A
    cluster_m: int = 1  # CTAs of a cluster along weight rows, which share tokens
    cluster_n: int = 1  # along tokens, which share weights
    split_k: int = 1  # along K, reduced through distributed shared memory
    schedule: str = "single"  # tiles of a cluster: "single", "blocked" (neighbours), "strided"
    ctas_per_sm: int = 1
    weights_policy: str = "evict_first"  # L2
    tokens_policy: str = "evict_last"
    gate_lead: int = 0  # dual: k-tiles at the end whose first product is finished first
    wide_stores: bool = True  # 32 bytes a lane, else 2 bytes of 32 neighbouring lanes
    epilogue_tokens: int = 32  # tokens read from tensor memory at a time
    epilogue_registers: int = 0  # setmaxnreg of the epilogue warps, 0: off

    @property
    def cluster(self) -> int:
        return self.cluster_m * self.cluster_n * self.split_k


class Plan:
    """What follows from a configuration: shared memory in bytes, tensor memory in columns."""

    def __init__(self, config: Config, weights: int):
        c = config
        self.steps = c.k_tile // STEP_K
        self.token_rows = c.token_tile // c.cta_group  # of this CTA
        self.token_atoms = ceil_div(c.token_tile, 128)
        self.fragment = 16 if c.token_tile % 16 == 0 else 8  # tokens that are stored at a time

        self.weight_bytes = ROWS * c.k_tile // 2
        self.tokens_at = weights * self.weight_bytes
        self.scales_at = self.tokens_at + self.token_rows * c.k_tile // 2
        self.token_scales_at = self.scales_at + weights * self.steps * ATOM
        self.stage_bytes = self.token_scales_at + self.token_atoms * self.steps * ATOM

        # Partial sums of a K split: chunks to send, [chunk][w][warp], overlay the stages; chunks
        # received, [sender][slot][w][warp], have room of their own.
        self.part_bytes = 32 * c.epilogue_tokens * 4
        chunk_bytes = weights * EPILOGUE_WARPS * self.part_bytes
        chunks = ceil_div(c.token_tile, c.epilogue_tokens)
        self.slots = ceil_div(chunks, c.split_k)
        self.outgoing_bytes = chunks * chunk_bytes
        incoming = (c.split_k - 1) * self.slots * chunk_bytes

        staging = EPILOGUE_WARPS * 1024 if c.wide_stores else 0
        single = 8 * (3 * c.accumulators + 1) + 8
        limit = min(SMEM_BYTES, SMEM_PER_SM // c.ctas_per_sm - 1024)
        fit = max(0, (limit - staging - incoming - single) // (self.stage_bytes + 16))
        self.stages = min(c.stages, fit) if c.stages else fit

        self.staging_at = self.stages * self.stage_bytes
        self.incoming_at = self.staging_at + staging
        self.full_at = self.incoming_at + incoming
        self.empty_at = self.full_at + 8 * self.stages
        self.acc_full_at = self.empty_at + 8 * self.stages
        self.gate_at = self.acc_full_at + 8 * c.accumulators
        self.acc_empty_at = self.gate_at + 8 * c.accumulators
        self.partials_at = self.acc_empty_at + 8 * c.accumulators
        self.tmem_slot_at = self.partials_at + 8
        self.smem_bytes = self.tmem_slot_at + 8

        self.acc_columns = weights * c.token_tile
        self.scale_columns = 4 * self.steps * (weights + self.token_atoms)
        self.scale_slots = self.stages if c.scales_per_stage else 1
        self.scale_slots_at = c.accumulators * self.acc_columns
        self.tmem_used = self.scale_slots_at + self.scale_slots * self.scale_columns
        self.tmem_columns = max(32, 1 << (self.tmem_used - 1).bit_length())


def parameter_bytes(problem: Problem) -> int:
    """Kernel parameters: for each group descriptors, addresses and sizes."""
    n = problem.weights
    return len(problem.groups) * (128 * (n + 1) + 8 * (n + 2) + 4 * 5) + 64


def tiles_of(config: Config, product: Product) -> int:
    """Tiles of clusters, one CTA or pair of CTAs wide in each direction that the cluster has."""
    rows, tokens = ROWS * config.cluster_m, config.token_tile * config.cluster_n
    return product.batch * ceil_div(product.rows, rows) * ceil_div(product.tokens, tokens)


def tile_count(config: Config, problem: Problem) -> int:
    return sum(tiles_of(config, p) for p in problem.groups)


def check(config: Config, problem: Problem) -> Plan:
    """The statement of what a configuration can run: ValueError with the reason if it cannot."""
    c, groups, plan = config, problem.groups, Plan(config, problem.weights)
    pieces, pair = c.token_tile > c.mma_tokens, c.cta_group == 2
    repeats = c.cluster_n > 1 or problem.tokens > c.token_tile
    k_tiles = min(-(-p.k // c.k_tile) for p in groups)

    def need(legal: bool, reason: str):
        if not legal:
            raise ValueError(f"{reason}: {config}")

    need(c.cta_group in (1, 2), "an MMA runs on one CTA or on a pair")
    step = 8 * c.cta_group
    need(c.token_tile >= step and c.token_tile % step == 0, "N is a multiple of 8, of 16 in a pair")
    need(c.mma_tokens <= 256 and c.mma_tokens % 64 == 0, "N of an MMA is at most 256")
    need(not (pieces and pair), "a CTA pair holds halves of one MMA's tokens, not of two")
    need(not repeats or c.token_tile % 64 == 0, "scale columns start at a multiple of 64 tokens")
    need(c.token_box % 8 == 0 and 0 < c.token_box <= 256, "a box has whole swizzle atoms of 8 rows")
    need(plan.token_rows % c.token_box == 0, "boxes fill the token tile")
    need(c.k_tile > 0 and c.k_tile % BOX_K == 0, "a row of a box is 128 bytes, 256 elements of K")
    need(c.cluster_m % c.cta_group == 0, "a cluster has whole CTA pairs")
    need(c.cluster <= MAX_CLUSTER, "a cluster has at most 8 CTAs")
    need(plan.stages >= 2, "shared memory holds two stages, one to load and one to compute")
    columns = TMEM_COLUMNS // c.ctas_per_sm
    need(plan.tmem_columns <= columns, f"a CTA has {columns} columns of tensor memory")
    need(c.schedule in ("single", "blocked", "strided"), "schedule: single, blocked or strided")
    need(tile_count(c, problem) < 2**22, "tile numbers times clusters are 32-bit numbers")
    need(c.accumulators in (1, 2), "one accumulator, or two to overlap the epilogue")
    need(c.accumulators == 1 or c.schedule != "single", "a second accumulator has a second tile")
    if c.split_k > 1:
        need(c.schedule == "single", "partial sums overlay the stages, idle after the last tile")
        need(plan.outgoing_bytes <= plan.staging_at, "the stages hold the partial sums to send")
        need(k_tiles >= c.split_k, f"each part of a K split has a k-tile, of {k_tiles}")
        need(c.gate_lead == 0, "partial sums have no gate")
    need(c.gate_lead == 0 or problem.weights == 2, "only a dual product has a gate")
    need(0 <= c.gate_lead <= plan.stages, "k-tiles whose gate runs ahead stay in their stages")
    need(c.epilogue_tokens % plan.fragment == 0, "the epilogue reads whole fragments")
    need(c.token_tile % c.epilogue_tokens == 0, "epilogue chunks fill the tile")
    need(c.epilogue_tokens * problem.weights <= 128, "a thread holds at most 128 accumulators")
    if c.wide_stores:
        need(plan.fragment == 16, "a 32-byte store takes 16 tokens to transpose")
        need(all(p.rows % 16 == 0 for p in groups), "a 32-byte store takes 16 aligned rows")
    need(c.epilogue_registers in (0, *range(64, 257, 8)), "setmaxnreg takes multiples of 8")
    need(c.weights_policy in POLICIES and c.tokens_policy in POLICIES, "cache policies exist")
    return plan


def waves_of(config: Config, problem: Problem) -> int:
    """How often the chip is filled with clusters, one tile each."""
    at_once = CLUSTERS[min(config.cluster, MAX_CLUSTER) - 1] * config.ctas_per_sm
    return ceil_div(tile_count(config, problem), at_once)


def tile_cycles(c: Config, plan: Plan, width: int, k: int, n: int) -> tuple[float, float]:
    """Rough SM cycles of the k-tiles of `width` tokens and of their epilogue, on an SM alone.

    An MMA takes max(N/2, 32 + N/4) cycles, over a pair max(N/2, 35 + N/8), a scale copy 32 beside
    it, a TMA box 58 or one a row; a stage is filled again in 1600 or more. The rest is fitted to
    modelled times.
    """
    mma = max(width / 2, 32 + width / 4 if c.cta_group == 1 else 35 + width / 8)
    step = max(mma, 32 * (1 + ceil_div(width, 128))) + (n - 1) * max(mma, 32)
    boxes = ceil_div(width // c.cta_group, c.token_box)
    loads = n * ROWS / c.cluster_n + boxes * max(58, c.token_box) * c.cta_group / c.cluster_m
    refill = (1500 + 100 * c.cluster) / plan.stages
    busy = sum(x**4 for x in (plan.steps * step, plan.steps // 4 * loads, refill)) ** 0.25
    exchange = 800 + 9 * width * n * (c.split_k - 1) / c.split_k if c.split_k > 1 else 0
    return ceil_div(k, c.k_tile) / c.split_k * busy, (16 if n == 1 else 38) * width + exchange


def estimate(config: Config, problem: Problem) -> float:
    """Rough time in SM cycles, to rank configurations.

    The longest of tensor core, DRAM (3700 bytes a cycle) and L2 (8000), a little more where they
    are alike, then the start, the last epilogue, and a restart for each wave of CTAs.
    """
    c, n, plan = config, problem.weights, Plan(config, problem.weights)
    clusters, single = tile_count(c, problem), c.schedule == "single"
    crowd = min(c.ctas_per_sm, ceil_div(clusters * c.cluster, SM_COUNT))
    waves = waves_of(c, problem)
    hidden = not single and c.accumulators == 2  # epilogues, but for the last
    busy = dram = l2 = tail = 0
    for p in problem.groups:
        tiles, width = tiles_of(c, p), min(round_up(p.tokens, 8 * c.cta_group), c.token_tile)
        main, epilogue = tile_cycles(c, plan, width, p.k, n)
        busy += tiles / clusters * waves * (main * crowd + (0 if hidden else epilogue))
        tail = max(tail, epilogue)
        rows = n * ROWS / c.cluster_n + width / c.cluster_m  # of operands that a CTA loads
        l2 += tiles * c.cluster / c.split_k * p.k * 0.5625 * rows
        dram += p.batch * p.k * 0.5625 * (n * p.rows + p.tokens)
    busy = max(busy - (0 if hidden else tail), 0)
    longest = sum(x**5 for x in (busy, dram / 3700, l2 / 8000)) ** 0.2
    start = 3300 + 500 * (c.cta_group - 1)
    restart = 2600 if single else 400 if hidden else 700
    return start + longest + tail + (waves - 1) * restart


def legal_configs(problem: Problem) -> list[Config]:
    """The configurations that `pick` weighs."""
    tokens, legal = problem.tokens, []
    tiles = {64, 128, 192, 256} if tokens > 8 else {8}
    if 8 < tokens <= 256:
        tiles.add(round_up(tokens, 16))
    pairs = [1, 2] if tokens > 8 and all(p.rows > ROWS for p in problem.groups) else [1]
    sharing = [1, 2, 4] if tokens > 8 else [1]
    order = "blocked" if len(problem.groups) == 1 else "strided"
    schedules = ("single", 1), (order, 2), (order, 1)
    boxes = *range(64, 40, -8), *range(72, 129, 8), *range(40, 0, -8)  # 64 rows, or alike
    wide = all(p.rows % 16 == 0 for p in problem.groups)
    for tile, pair, split, n, (schedule, accumulators), residents in itertools.product(
        sorted(tiles), pairs, range(1, MAX_CLUSTER + 1), sharing, schedules, (1, 2, 3, 4)
    ):
        config = Config(
            cta_group=pair,
            cluster_m=pair,
            cluster_n=n,
            token_tile=tile,
            token_box=next(box for box in boxes if tile // pair % box == 0),
            split_k=split,
            schedule=schedule,
            accumulators=accumulators,
            ctas_per_sm=residents,
            weights_policy="normal" if tokens > tile * n else "evict_first",  # read again, from L2
            gate_lead=2 if problem.weights == 2 and split == 1 else 0,
            wide_stores=wide and tile % 16 == 0,
            epilogue_tokens=next(e for e in (64 // problem.weights, 32, 16, 8) if tile % e == 0),
        )
        if schedule != "single" and waves_of(config, problem) == 1:
            continue
        try:
            check(config, problem)
        except ValueError:
            continue
        legal.append(config)
    return legal


def pick(problem: Problem) -> Config:
    """The configuration for a problem: of the legal ones above, the one with the best estimate."""
    return min(legal_configs(problem), key=lambda config: estimate(config, problem))


# ---- PTX -----------------------------------------------------------------------------------------

_KINDS = {"r": Int32, "l": Int64, "h": Int16, "f": Float32}


@functools.cache
def ptx(text: str, operands: str = "", results: str = "", pure: bool = False):
    """A device function that issues `text`; $0... stand for the results, then the operands.

    operands, results: a letter each, r (b32), l (b64), h (b16), f (f32). pure: has no effect.
    """
    constraints = ",".join([f"={letter}" for letter in results] + list(operands))

    @dsl_user_op
    def issue(*args, loc=None, ip=None):
        if len(args) != len(operands):
            raise TypeError(f"{text}: {len(operands)} operands, {len(args)} given")
        at = {"loc": loc, "ip": ip}
        values = [_KINDS[letter](arg).ir_value(**at) for letter, arg in zip(operands, args)]
        types = [_KINDS[letter].mlir_type for letter in results]
        kind = llvm.StructType.get_literal(types) if len(types) > 1 else types[0] if types else None
        out = llvm.inline_asm(
            kind,
            values,
            text,
            constraints,
            has_side_effects=not pure,
            is_align_stack=False,
            asm_dialect=llvm.AsmDialect.AD_ATT,
            **at,
        )
        if len(types) < 2:
            return _KINDS[results](out) if types else None
        parts = [llvm.extractvalue(t, out, [i], **at) for i, t in enumerate(types)]
        return [_KINDS[letter](part) for letter, part in zip(results, parts)]

    return issue


# A reduction puts the rank into a uniform register. Without it ptxas takes what depends on the rank
# for different from lane to lane, and wraps each MMA and scale copy in a loop over lanes.
cluster_ctarank = ptx(
    "{\n.reg .b32 rank;\nmov.b32 rank, %cluster_ctarank;\n"
    "redux.sync.or.b32 $0, rank, 0xffffffff;\n}",
    "",
    "r",
)
# Nowhere .release at cluster scope: it is a fence of all memory, hundreds to thousands of cycles.
cluster_arrive = ptx("barrier.cluster.arrive.relaxed.aligned;")
cluster_wait = ptx("barrier.cluster.wait.acquire.aligned;")
bar_sync = ptx("barrier.cta.sync.aligned $0, $1;", "rr")
bar_arrive = ptx("barrier.cta.arrive.aligned $0, $1;", "rr")
warp_sync = ptx("bar.warp.sync -1;")
mapa = ptx("mapa.shared::cluster.u32 $0, $1, $2;", "rr", "r")

prefetch_tensormap = ptx("prefetch.tensormap [$0];", "l")
bulk_prefetch = ptx("cp.async.bulk.prefetch.L2.global [$0], $1;", "lr")
fence_async_smem = ptx("fence.proxy.async.shared::cta;")
fence_barrier_init = ptx("fence.mbarrier_init.release.cluster;")

mbarrier_init = ptx("mbarrier.init.shared::cta.b64 [$0], $1;", "rr")
mbarrier_expect = ptx("mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], $1;", "rr")
mbarrier_arrive = ptx("mbarrier.arrive.shared::cta.b64 _, [$0];", "r")
mbarrier_arrive_remote = ptx("mbarrier.arrive.release.cta.shared::cluster.b64 _, [$0];", "r")
mbarrier_wait = ptx(
    "{\n.reg .pred P;\nLAB_WAIT:\n"
    "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 P, [$0], $1, 0x989680;\n"
    "@P bra DONE;\nbra LAB_WAIT;\nDONE:\n}",
    "rr",
)

tcgen05_fence_before = ptx("tcgen05.fence::before_thread_sync;")
tcgen05_fence_after = ptx("tcgen05.fence::after_thread_sync;")

ld_shared_b32 = ptx("ld.shared.b32 $0, [$1];", "r", "r")
ld_shared_v4 = ptx("ld.shared.v4.b32 {$0, $1, $2, $3}, [$4];", "r", "rrrr")
ld_shared_v4_f32 = ptx("ld.shared.v4.f32 {$0, $1, $2, $3}, [$4];", "r", "ffff")
st_shared_v4_f32 = ptx("st.shared.v4.f32 [$0], {$1, $2, $3, $4};", "rffff")
st_global_b16 = ptx("st.global.L1::no_allocate.b16 [$0], $1;", "lh")
st_global_v8 = ptx(
    "st.global.L1::no_allocate.v8.b32 [$0], {$1, $2, $3, $4, $5, $6, $7, $8};", "lrrrrrrrr"
)
stmatrix_x4_trans = ptx(
    "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [$0], {$1, $2, $3, $4};", "rrrrr"
)
bulk_copy_to_cluster = ptx(
    "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [$0], [$1], $2, [$3];",
    "rrrr",
)

cvt_f16x2 = ptx("cvt.rn.f16x2.f32 $0, $2, $1;", "ff", "r", pure=True)  # $1 to the low half
cvt_f16 = ptx("cvt.rn.f16.f32 $0, $1;", "f", "h", pure=True)
silu = ptx(
    "{\n.reg .f32 e;\nmul.f32 e, $1, 0fBFB8AA3B;\nex2.approx.ftz.f32 e, e;\n"  # -log2(e)
    "add.f32 e, e, 0f3F800000;\nrcp.approx.ftz.f32 e, e;\nmul.f32 $0, $1, e;\n}",
    "f",
    "f",
    pure=True,
)


def _copy(text, tail, letters, operands, policy, mask):
    """A global -> shared copy, to every CTA of `mask` at the same offset where there is one."""
    text = text.format("cta" if mask is None else "cluster")
    for suffix, letter, value in (
        (".multicast::cluster", "h", mask),
        (".L2::cache_hint", "l", POLICIES[policy]),
    ):
        if value is not None:
            text, letters, operands = text + suffix, letters + letter, [*operands, value]
            tail += f", ${len(operands) - 1}"
    ptx(f"{text} {tail};", letters)(*operands)


def tma_load(dst, descriptor, coordinates, barrier, policy, mask):
    text = "cp.async.bulk.tensor.3d.shared::{}.global.tile.mbarrier::complete_tx::bytes"
    operands = [dst, descriptor, *coordinates, barrier]
    _copy(text, "[$0], [$1, {$2, $3, $4}], [$5]", "rlrrrr", operands, policy, mask)


def bulk_load(dst, source, size, barrier, policy, mask):
    text = "cp.async.bulk.shared::{}.global.mbarrier::complete_tx::bytes"
    _copy(text, "[$0], [$1], $2, [$3]", "rlrr", [dst, source, size, barrier], policy, mask)


def tcgen05_alloc(group, slot, columns):
    text = f"tcgen05.alloc.cta_group::{group}.sync.aligned.shared::cta.b32 [$0], $1;"
    ptx(text, "rr")(slot, columns)
    ptx(f"tcgen05.relinquish_alloc_permit.cta_group::{group}.sync.aligned;")()


def tcgen05_dealloc(group, address, columns):
    ptx(f"tcgen05.dealloc.cta_group::{group}.sync.aligned.b32 $0, $1;", "rr")(address, columns)


def tcgen05_cp(group, address, descriptor):
    """A scale-factor atom to 4 columns, the same in all four lane quarters."""
    ptx(f"tcgen05.cp.cta_group::{group}.32x128b.warpx4 [$0], $1;", "rl")(address, descriptor)


def tcgen05_mma(group, collector, d, a, b, instruction, scale_a, scale_b, accumulate):
    text = (
        "{\n.reg .pred P;\nsetp.ne.b32 P, $6, 0;\n"
        f"tcgen05.mma.cta_group::{group}.kind::mxf4nvf4.block_scale.block16"
        f".collector::a::{collector} [$0], $1, $2, $3, [$4], [$5], P;\n}}"
    )
    ptx(text, "rllrrrr")(d, a, b, instruction, scale_a, scale_b, accumulate)


def tcgen05_commit(group, barrier, mask):
    """Arrive on `barrier`, in each CTA of `mask`, once all earlier MMAs and copies are complete."""
    text = f"tcgen05.commit.cta_group::{group}.mbarrier::arrive::one.shared::cluster"
    if mask is None:
        ptx(f"{text}.b64 [$0];", "r")(barrier)
    else:
        ptx(f"{text}.multicast::cluster.b64 [$0], $1;", "rh")(barrier, mask)


def tcgen05_ld(addresses, tokens, transposable):
    """32 lanes x `tokens` columns from each address, complete on return; registers by address.

    transposable: two 16x256b loads, of rows 0-15 and 16-31, in the form stmatrix takes: register
    4o + 2h + j of a load is row 8h + lane / 4, token 8o + 2 * (lane % 4) + j.
    Else 32x32b: register i is row lane, token i.
    """
    shape, repeat, loads = ("16x256b", tokens // 8, 2) if transposable else ("32x32b", tokens, 1)
    count, total, text, operands = tokens // loads, tokens * len(addresses), "", []
    for address, part in itertools.product(addresses, range(loads)):
        first = count * len(operands)
        registers = ", ".join(f"${first + j}" for j in range(count))
        text += f"tcgen05.ld.sync.aligned.{shape}.x{repeat}.b32 {{{registers}}}, "
        text += f"[${total + len(operands)}];\n"
        operands.append(address + (16 * part << 16))
    text += "tcgen05.wait::ld.sync.aligned;"
    values = ptx(text, "r" * len(operands), "f" * total)(*operands)
    return [values[i : i + tokens] for i in range(0, total, tokens)]


# ---- device arithmetic ---------------------------------------------------------------------------


@dsl_user_op
def select(condition, a, b, *, loc=None, ip=None):
    """a if condition else b, of Int32 or Int64, without a branch."""
    kind = Int64 if Int64 in (type(a), type(b)) else Int32
    values = [kind(v).ir_value(loc=loc, ip=ip) for v in (a, b)]
    return kind(arith.select(condition.ir_value(loc=loc, ip=ip), *values, loc=loc, ip=ip))


def smaller(a, b):
    return select(a < b, a, b)


def div(a, b):
    """Quotient of non-negative Int32: DSL integers divide as Python's, rounding down at a cost."""
    return a if isinstance(b, int) and b == 1 else Int32(Uint32(a) // Uint32(b))


def mod(a, b):
    return Int32(0) if isinstance(b, int) and b == 1 else Int32(Uint32(a) % Uint32(b))


def div_up(a, b):
    return div(a + (b - 1), b)


@dsl_user_op
def descriptor_address(atom, *, loc=None, ip=None):
    """Generic address of a tensormap that is a kernel parameter."""
    kind = cute_ir.PtrType.get(Int64.mlir_type, cute.AddressSpace.generic, 64)
    bound = cute_nvgpu_ir.atom_make_exec_tma(atom._trait.value, loc=loc, ip=ip)
    return cute_nvgpu_ir.get_tma_desc_addr(kind, bound, loc=loc, ip=ip).toint(loc=loc, ip=ip)


# ---- kernel --------------------------------------------------------------------------------------

OPERAND_DESCRIPTOR = 0x4000404000010000  # K-major, 128-byte swizzle, 8-row groups 1024 bytes apart
SCALE_DESCRIPTOR = 0x0000400800010000  # no swizzle, 8-row groups 128 bytes apart
INSTRUCTION = 1 << 7 | 1 << 10  # A and B e2m1, scales ue4m3; N >> 3 at bit 17, M >> 7 at bit 27


@dataclass(frozen=True)
class Traits:
    """What the compiled code takes for granted about the problem."""

    weights: int
    groups: int
    tokens_first: bool
    whole_k: bool  # K is a multiple of the k-tile
    one_token_tile: bool
    one_batch: bool


class Tile:
    """An output tile of this CTA: where its operands are and how much of it there is."""


class Kernel:
    """The kernel of one configuration: launch is host code, all else runs on the device."""

    def __init__(self, config: Config, traits: Traits):
        self.config, self.traits = config, traits
        self.plan = Plan(config, traits.weights)
        self.persistent = config.schedule != "single"
        self.token_sharers = config.cluster_m // config.cta_group
        self.threads = 32 * (WARPS + 2 if config.epilogue_registers else WARPS)

    # ---- host ------------------------------------------------------------------------------------

    @cute.jit
    def launch(self, args):
        c, traits = self.config, self.traits
        maps, addresses, sizes, first = [], [], [], Int32(0)
        for g in cutlass.range_constexpr(traits.groups):
            weights, tokens, weight_scales, token_scales, out = args.addresses_of(g)
            rows, count, k, batch, token_rows = args.sizes_of(g)
            for w in cutlass.range_constexpr(traits.weights):
                maps.append(self.tensormap(weights[w], rows, rows, k, batch, ROWS))
            maps.append(self.tensormap(tokens, count, token_rows, k, batch, c.token_box))
            addresses.extend([*weight_scales, token_scales, out])
            sizes.extend([first, rows, count, k, batch])
            tiles = div_up(rows, ROWS * c.cluster_m) * batch
            first = first + tiles * div_up(count, c.token_tile * c.cluster_n)
        clusters = first
        if const_expr(self.persistent):
            clusters = smaller(clusters, Int32(CLUSTERS[c.cluster - 1] * c.ctas_per_sm))
        self.kernel(maps, addresses, sizes, first).launch(
            grid=(clusters * c.cluster, 1, 1),
            block=(self.threads, 1, 1),
            cluster=(c.cluster, 1, 1),
            smem=self.plan.smem_bytes,
            min_blocks_per_mp=1,
        )

    def tensormap(self, address, rows, stored_rows, k, batch, box_rows):
        """TMA atom for boxes of box_rows x 256 elements of a K-major [rows, k, batch] operand."""
        row = cute.assume(Int64(k), STEP_K)
        plane = cute.assume(Int64(stored_rows) * Int64(k), STEP_K)
        shape, strides = (rows, cute.assume(k, STEP_K), batch), (row, 1, plane)
        pointer = cute.make_ptr(Float4E2M1FN, address, cute.AddressSpace.gmem, assumed_align=16)
        operand = cute.make_tensor(pointer, cute.make_layout(shape, stride=strides))
        swizzle = tcgen05.make_smem_layout_atom(tcgen05.SmemLayoutAtomKind.K_SW128, Float4E2M1FN)
        box = (box_rows, BOX_K)
        layout = cute.tile_to_shape(swizzle, box, order=(0, 1))
        load = cpasync.CopyBulkTensorTileG2SOp(tcgen05.CtaGroup.ONE)
        return cpasync.make_tiled_tma_atom(load, operand, layout, box)[0]

    # ---- all warps -------------------------------------------------------------------------------

    @cute.kernel
    def kernel(self, maps, addresses, sizes, tiles):
        c, n = self.config, self.traits.weights
        if const_expr(self.traits.groups == 1):  # which the first tile needs is known already
            if cute.arch.thread_idx()[0] == 32 * DESCRIPTOR_WARP:
                for i in cutlass.range_constexpr(n + 1):
                    prefetch_tensormap(descriptor_address(maps[i]))
        warp = cute.arch.make_warp_uniform(cute.arch.thread_idx()[0] >> 5)
        self.smem = cute.arch.get_dyn_smem(cutlass.Uint8, 1024).toint()
        self.tiles = tiles
        self.groups = [
            [
                *(descriptor_address(atom) for atom in maps[g * (n + 1) : (g + 1) * (n + 1)]),
                *addresses[g * (n + 2) : (g + 1) * (n + 2)],
                *sizes[g * 5 : (g + 1) * 5],
            ]
            for g in range(self.traits.groups)
        ]
        # cluster rank = (k * cluster_n + n) * cluster_m + m
        self.rank = cluster_ctarank() if c.cluster > 1 else Int32(0)
        self.m = mod(self.rank, c.cluster_m)
        self.n = mod(div(self.rank, c.cluster_m), c.cluster_n)
        self.k = div(self.rank, c.cluster_m * c.cluster_n)
        if warp == LOAD_WARP:
            self.load_warp()
        if warp == MMA_WARP:
            self.mma_warp()
        if warp < EPILOGUE_WARPS:
            self.epilogue_warp(warp)
        if const_expr(self.threads > 32 * WARPS):
            if warp > MMA_WARP:
                self.idle_warp()

    def join(self, waits):
        """Past here all barriers of the cluster are initialised and tensor memory is allocated.

        The load warp only arrives: its first loads need neither.
        """
        clustered = self.config.cluster > 1
        if clustered:
            cluster_arrive()  # after fence_barrier_init
        (bar_sync if waits else bar_arrive)(1, self.threads)
        if clustered and waits:
            cluster_wait()

    def leave(self):
        """Tensor memory has been read by now, and no CTA exits while another of its cluster may
        write to it or arrive on its barriers: each has waited for all that is sent to it.
        """
        bar_sync(2, self.threads)
        if self.config.cluster > 1:
            cluster_arrive()
            cluster_wait()

    def idle_warp(self):
        self.set_registers(False)
        self.join(True)
        self.leave()

    def set_registers(self, epilogue):
        if self.config.epilogue_registers:
            change = f"inc.sync.aligned.u32 {self.config.epilogue_registers}"
            ptx(f"setmaxnreg.{change if epilogue else 'dec.sync.aligned.u32 64'};")()

    def barrier(self, at, index):
        return self.smem + at + 8 * index

    def advance(self, stage, phase):
        """Next stage of the ring and its phase."""
        last = stage == self.plan.stages - 1
        return select(last, 0, stage + 1), select(last, phase ^ 1, phase)

    def advance_accumulator(self, acc, phase):
        if self.config.accumulators == 1:
            return acc, phase ^ 1
        return acc ^ 1, phase ^ acc

    # ---- schedule --------------------------------------------------------------------------------

    def my_tiles(self):
        """First tile of this cluster, how many it has, and the step between them."""
        cluster = div(Int32(cute.arch.block_idx()[0]), self.config.cluster)
        if not self.persistent:
            return cluster, 1, 1
        clusters = div(Int32(cute.arch.grid_dim()[0]), self.config.cluster)
        if self.config.schedule == "strided":
            return cluster, div_up(self.tiles - cluster, clusters), clusters
        first = div(cluster * self.tiles, clusters)
        return first, div((cluster + 1) * self.tiles, clusters) - first, 1

    def locate(self, index):
        """The tile with number `index`: token tiles run fastest, then weight rows, batch, group."""
        c, traits, n = self.config, self.traits, self.traits.weights
        values = self.groups[0]
        for group in self.groups[1:]:
            here = index >= group[2 * n + 3]
            values = [select(here, new, old) for new, old in zip(group, values)]
        t = Tile()
        t.maps, t.scales, t.out = values[: n + 1], values[n + 1 : 2 * n + 2], values[2 * n + 2]
        first, t.rows, t.tokens, k, _ = values[2 * n + 3 :]
        m_tile, n_tile, t.batch = index - first, Int32(0), Int32(0)
        if not traits.one_token_tile:
            n_tiles = div_up(t.tokens, c.token_tile * c.cluster_n)
            m_tile, n_tile = div(m_tile, n_tiles), mod(m_tile, n_tiles)
        if not traits.one_batch:
            m_tiles = div_up(t.rows, ROWS * c.cluster_m)
            m_tile, t.batch = mod(m_tile, m_tiles), div(m_tile, m_tiles)
        t.row = (m_tile * c.cluster_m + self.m) * ROWS
        t.token = (n_tile * c.cluster_n + self.n) * c.token_tile

        # Tokens of the tile in steps of an MMA; a tile beyond the last token computes one step.
        step = 8 * c.cta_group
        width = smaller((t.tokens - t.token + (step - 1)) & -step, Int32(c.token_tile))
        t.width = select(width > step, width, Int32(step))
        share = div(t.width, c.cta_group)
        t.boxes = div_up(share, c.token_box)
        t.box_row = t.token + mod(self.m, c.cta_group) * share
        t.scale_shift = (t.token & 127) >> 5  # columns by which the tile starts inside its atom
        t.token_atoms = ((t.token & 127) + t.width + 127) >> 7

        k_tiles = div_up(k, c.k_tile)
        t.k_begin = div(self.k * k_tiles, c.split_k)
        t.k_count = div((self.k + 1) * k_tiles, c.split_k) - t.k_begin
        t.steps = k >> 6

        # A tile beyond the last row or token loads the scales of the last one.
        row_atoms, token_atoms = (t.rows + 127) >> 7, (t.tokens + 127) >> 7
        t.row_atom = t.batch * row_atoms + smaller(t.row >> 7, row_atoms - 1)
        t.token_atom = t.batch * token_atoms + smaller(t.token >> 7, token_atoms - 1)
        return t

    def steps_in(self, t, k_tile):
        """MMA steps of a k-tile; the last one may have fewer."""
        if self.traits.whole_k:
            return Int32(self.plan.steps)
        return smaller(t.steps - k_tile * self.plan.steps, Int32(self.plan.steps))

    # ---- load warp -------------------------------------------------------------------------------

    @cute.jit
    def load_warp(self):
        c, plan = self.config, self.plan
        self.set_registers(False)
        start, count, step = self.my_tiles()
        tile = self.locate(start)
        head = smaller(tile.k_count, Int32(plan.stages))
        with cute.arch.elect_one():
            self.init_full_barriers()
        self.join(False)
        with cute.arch.elect_one():
            for i in cutlass.range(head, unroll=1):
                self.expect(tile, tile.k_begin + i, i)
                self.load_weights(tile, tile.k_begin + i, i, 1)
                self.load_weight_scales(tile, tile.k_begin + i, i, 1)
                self.load_tokens(tile, tile.k_begin + i, i, 1)
                self.load_token_scales(tile, tile.k_begin + i, i, 1)
        if const_expr(c.cluster > 1):
            cluster_wait()
        else:
            bar_sync(3, 64)
        with cute.arch.elect_one():
            around = head == plan.stages
            stage, phase = select(around, 0, head), select(around, 1, 0)
            for i in cutlass.range(count, unroll=1):
                t = self.locate(start + i * step)
                if const_expr(self.persistent and self.traits.groups > 1):
                    following = self.locate(start + smaller(i + 1, count - 1) * step)
                    self.prefetch_descriptors(following)
                for j in cutlass.range(select(i == 0, head, 0), t.k_count, unroll=1):
                    mbarrier_wait(self.barrier(plan.empty_at, stage), phase ^ 1)
                    self.expect(t, t.k_begin + j, stage)
                    self.load_weights(t, t.k_begin + j, stage, c.cluster_n)
                    self.load_weight_scales(t, t.k_begin + j, stage, c.cluster_n)
                    self.load_tokens(t, t.k_begin + j, stage, self.token_sharers)
                    self.load_token_scales(t, t.k_begin + j, stage, self.token_sharers)
                    stage, phase = self.advance(stage, phase)
            if const_expr(c.cluster_m * c.cluster_n > 1):  # commits of other CTAs are on their way
                for _ in cutlass.range(plan.stages, unroll=1):
                    mbarrier_wait(self.barrier(plan.empty_at, stage), phase ^ 1)
                    stage, phase = self.advance(stage, phase)
        self.leave()

    def prefetch_descriptors(self, t):
        for address in t.maps:
            prefetch_tensormap(address)

    @cute.jit
    def prefetch_scales(self, t):
        """DRAM has something to do while the descriptors, which scales need not, are fetched."""
        plan = self.plan
        k_begin = t.k_begin * plan.steps
        steps = smaller(t.k_count, Int32(plan.stages)) * plan.steps
        steps = smaller(steps, t.steps - k_begin)
        for scales in t.scales[:-1]:
            source = scales + (Int64(t.row_atom) * t.steps + k_begin) * ATOM
            bulk_prefetch(source, steps * ATOM)

    def init_full_barriers(self):
        arrivals = 2 - (self.rank & 1) if self.config.cta_group == 2 else 1
        for s in range(self.plan.stages):
            mbarrier_init(self.barrier(self.plan.full_at, s), arrivals)
        fence_barrier_init()
        fence_async_smem()

    def expect(self, t, k_tile, stage):
        """Announce the bytes that the stage receives, whoever sends them."""
        c, plan = self.config, self.plan
        operands = plan.tokens_at + t.boxes * (c.token_box * c.k_tile // 2)
        scales = (self.traits.weights + t.token_atoms) * self.steps_in(t, k_tile) * ATOM
        mbarrier_expect(self.barrier(plan.full_at, stage), operands + scales)

    @cute.jit
    def load_weights(self, t, k_tile, stage, sharers):
        c, plan, mask = self.config, self.plan, self.column_mask(sharers)
        base = self.smem + stage * plan.stage_bytes
        barrier = self.barrier(plan.full_at, stage)
        for w in cutlass.range_constexpr(self.traits.weights):
            for box in cutlass.range_constexpr(c.k_tile // BOX_K):
                if self.my_turn(sharers, self.n, k_tile + w + box):
                    dst = base + (w * plan.weight_bytes + box * ROWS * 128)
                    at = (k_tile * c.k_tile + box * BOX_K, t.row, t.batch)
                    tma_load(dst, t.maps[w], at, barrier, c.weights_policy, mask)

    @cute.jit
    def load_weight_scales(self, t, k_tile, stage, sharers):
        c, plan, mask = self.config, self.plan, self.column_mask(sharers)
        base = self.smem + stage * plan.stage_bytes
        barrier = self.barrier(plan.full_at, stage)
        size = self.steps_in(t, k_tile) * ATOM
        atom = Int64(t.row_atom) * t.steps + k_tile * plan.steps
        for w in cutlass.range_constexpr(self.traits.weights):
            if self.my_turn(sharers, self.n, k_tile + w + 1):
                dst = base + (plan.scales_at + w * plan.steps * ATOM)
                source = t.scales[w] + atom * ATOM
                bulk_load(dst, source, size, barrier, c.weights_policy, mask)

    @cute.jit
    def load_tokens(self, t, k_tile, stage, sharers):
        c, plan, mask = self.config, self.plan, None
        base = self.smem + stage * plan.stage_bytes
        barrier = self.barrier(plan.full_at, stage)
        if const_expr(sharers > 1):  # the CTAs that hold the same half of the tokens
            alike = sum(1 << (m * c.cta_group) for m in range(sharers))
            mask = Int32(alike) << (self.rank - self.m + mod(self.m, c.cta_group))
        for box_k in cutlass.range_constexpr(c.k_tile // BOX_K):
            for box in cutlass.range_constexpr(plan.token_rows // c.token_box):
                index = div(self.m, c.cta_group)
                turn = self.my_turn(sharers, index, k_tile + box_k + box)
                if self.wanted(turn, box, t.boxes):
                    row = box * c.token_box
                    dst = base + (plan.tokens_at + (box_k * plan.token_rows + row) * 128)
                    at = (k_tile * c.k_tile + box_k * BOX_K, t.box_row + row, t.batch)
                    tma_load(dst, t.maps[-1], at, barrier, c.tokens_policy, mask)

    @cute.jit
    def load_token_scales(self, t, k_tile, stage, sharers):
        c, plan, mask, row_sharers = self.config, self.plan, None, 1
        base = self.smem + stage * plan.stage_bytes
        barrier = self.barrier(plan.full_at, stage)
        if const_expr(sharers > 1):  # the cluster row
            row_sharers = c.cluster_m
            mask = Int32((1 << c.cluster_m) - 1) << (self.rank - self.m)
        size = self.steps_in(t, k_tile) * ATOM
        for a in cutlass.range_constexpr(plan.token_atoms):
            if self.wanted(self.my_turn(row_sharers, self.m, k_tile + a), a, t.token_atoms):
                dst = base + (plan.token_scales_at + a * plan.steps * ATOM)
                atom = Int64(t.token_atom + a) * t.steps + k_tile * plan.steps
                source = t.scales[-1] + atom * ATOM
                bulk_load(dst, source, size, barrier, c.tokens_policy, mask)

    def column_mask(self, sharers):
        """The CTAs that read the same weights, None for this one alone."""
        if sharers == 1:
            return None
        alike = sum(1 << (n * self.config.cluster_m) for n in range(sharers))
        return Int32(alike) << (self.rank - self.n * self.config.cluster_m)

    def my_turn(self, sharers, index, unit):
        """Whether this CTA issues a unit of work at which `sharers` CTAs take turns."""
        return cutlass.Boolean(True) if sharers == 1 else mod(unit, sharers) == index

    def wanted(self, turn, index, count):
        return turn if index == 0 else turn & (count > index)

    # ---- MMA warp --------------------------------------------------------------------------------

    @cute.jit
    def mma_warp(self):
        c, plan = self.config, self.plan
        self.set_registers(False)
        tcgen05_alloc(c.cta_group, self.smem + plan.tmem_slot_at, plan.tmem_columns)
        self.join(True)
        tmem = ld_shared_b32(self.smem + plan.tmem_slot_at)
        start, count, step = self.my_tiles()
        stage, phase, acc, acc_phase = Int32(0), Int32(0), Int32(0), Int32(0)
        for i in cutlass.range(count, unroll=1):
            t = self.locate(start + i * step)
            if const_expr(c.cta_group == 1):
                stage, phase = self.multiply_tile(t, tmem, acc, acc_phase, stage, phase)
            else:
                if self.rank & 1 == 0:
                    stage, phase = self.multiply_tile(t, tmem, acc, acc_phase, stage, phase)
                else:
                    stage, phase = self.relay(t, stage, phase)
            acc, acc_phase = self.advance_accumulator(acc, acc_phase)
        self.leave()
        tcgen05_dealloc(c.cta_group, tmem, plan.tmem_columns)

    @cute.jit
    def relay(self, t, stage, phase):
        """The odd CTA of a pair tells the even one that a stage is full."""
        for _ in cutlass.range(t.k_count, unroll=1):
            barrier = self.barrier(self.plan.full_at, stage)
            mbarrier_wait(barrier, phase)
            with cute.arch.elect_one():
                mbarrier_arrive_remote(mapa(barrier, self.rank - 1))
            stage, phase = self.advance(stage, phase)
        return stage, phase

    @cute.jit
    def multiply_tile(self, t, tmem, acc, acc_phase, stage, phase):
        c, plan, all_weights = self.config, self.plan, list(range(self.traits.weights))
        d = tmem + acc * plan.acc_columns
        if const_expr(self.persistent):
            mbarrier_wait(self.barrier(plan.acc_empty_at, acc), acc_phase ^ 1)
        lead = smaller(t.k_count, Int32(c.gate_lead))
        for j in cutlass.range(t.k_count - lead, unroll=1):
            self.wait_full(stage, phase)
            with cute.arch.elect_one():
                self.multiply(t, tmem, d, t.k_begin + j, stage, all_weights, j > 0)
                self.release_stage(stage)
            stage, phase = self.advance(stage, phase)
        if const_expr(c.gate_lead > 0):
            stage, phase = self.multiply_gate_first(t, tmem, d, lead, acc, stage, phase)
        with cute.arch.elect_one():
            tcgen05_commit(c.cta_group, self.barrier(plan.acc_full_at, acc), self.pair_mask())
        return stage, phase

    @cute.jit
    def multiply_gate_first(self, t, tmem, d, lead, acc, stage, phase):
        """The last `lead` k-tiles: the first product of them all, then the second."""
        c, plan = self.config, self.plan
        k_begin = t.k_begin + t.k_count - lead
        gate_stage, gate_phase = stage, phase
        for j in cutlass.range(lead, unroll=1):
            self.wait_full(gate_stage, gate_phase)
            with cute.arch.elect_one():
                self.multiply(t, tmem, d, k_begin + j, gate_stage, [0], k_begin + j > t.k_begin)
            gate_stage, gate_phase = self.advance(gate_stage, gate_phase)
        with cute.arch.elect_one():
            tcgen05_commit(c.cta_group, self.barrier(plan.gate_at, acc), self.pair_mask())
        for j in cutlass.range(lead, unroll=1):
            with cute.arch.elect_one():
                self.multiply(t, tmem, d, k_begin + j, stage, [1], k_begin + j > t.k_begin)
                self.release_stage(stage)
            stage, phase = self.advance(stage, phase)
        return stage, phase

    def wait_full(self, stage, phase):
        mbarrier_wait(self.barrier(self.plan.full_at, stage), phase)
        tcgen05_fence_after()

    def pair_mask(self):
        return None if self.config.cta_group == 1 else Int32(3) << self.rank

    def release_stage(self, stage):
        """Commit to the load warps that send to this CTA or pair: cluster row and column."""
        c, mask = self.config, self.pair_mask()
        if c.cluster_n > 1 or self.token_sharers > 1:
            pair = (1 << c.cta_group) - 1
            column = sum(pair << (n * c.cluster_m) for n in range(c.cluster_n))
            mask = Int32(column) << (self.rank - self.n * c.cluster_m)
            if self.token_sharers > 1:
                mask = mask | Int32((1 << c.cluster_m) - 1) << (self.rank - self.m)
        tcgen05_commit(c.cta_group, self.barrier(self.plan.empty_at, stage), mask)

    def scale_slot(self, tmem, stage):
        slot = stage * self.plan.scale_columns if self.config.scales_per_stage else 0
        return tmem + self.plan.scale_slots_at + slot

    def token_scale_column(self, step):
        """Atoms of neighbouring tokens stand side by side, as an MMA with N > 128 reads them."""
        return 4 * (self.traits.weights * self.plan.steps + step * self.plan.token_atoms)

    def has_step(self, steps, s):
        return cutlass.Boolean(True) if self.traits.whole_k or s == 0 else steps > s

    @cute.jit
    def multiply(self, t, tmem, d, k_tile, stage, which, accumulate):
        """The MMAs of a k-tile for the weights in `which`, each after the scale copies it needs."""
        plan, interleave = self.plan, self.config.interleave_scales
        slot, steps = self.scale_slot(tmem, stage), self.steps_in(t, k_tile)
        stage_at = Int64((self.smem + stage * plan.stage_bytes) >> 4)
        first = select(accumulate, 1, 0)
        pairs = list(itertools.product(range(plan.steps), which))
        for i in cutlass.range_constexpr(0 if interleave else len(pairs)):
            if self.has_step(steps, pairs[i][0]):
                self.copy_scales(t, slot, stage_at, *pairs[i], which)
        for i in cutlass.range_constexpr(len(pairs)):
            s, w = pairs[i]
            if self.has_step(steps, s):
                if const_expr(interleave):
                    self.copy_scales(t, slot, stage_at, s, w, which)
                self.multiply_step(t, d, slot, stage_at, s, w, first if s == 0 else 1)

    @cute.jit
    def copy_scales(self, t, slot, stage_at, s, w, which):
        """Copy the scales that the MMAs of K step s and weights w are the first to need.

        The second product finds the token scales of the first one, in columns of its stage.
        """
        c, plan, n = self.config, self.plan, self.traits.weights
        source = stage_at + ((plan.scales_at >> 4) + SCALE_DESCRIPTOR)
        atom = w * plan.steps + s
        tcgen05_cp(c.cta_group, slot + 4 * atom, source + atom * (ATOM >> 4))
        if const_expr(w == 0 or (w == which[0] and not c.scales_per_stage)):
            for a in cutlass.range_constexpr(plan.token_atoms):
                if self.wanted(cutlass.Boolean(True), a, t.token_atoms):
                    atom = (n + a) * plan.steps + s
                    column = slot + self.token_scale_column(s) + 4 * a
                    tcgen05_cp(c.cta_group, column, source + atom * (ATOM >> 4))

    @cute.jit
    def multiply_step(self, t, d, slot, stage_at, s, w, keep):
        """A K step of one product: one MMA, or several along N that share A."""
        c, plan = self.config, self.plan
        inside = s // 4 * 128, s % 4 * 32  # a row of 128 bytes holds 4 steps
        operand = stage_at + OPERAND_DESCRIPTOR
        a = operand + (w * plan.weight_bytes + ROWS * inside[0] + inside[1] >> 4)
        b = operand + (plan.tokens_at + plan.token_rows * inside[0] + inside[1] >> 4)
        scale_a = slot + 4 * (w * plan.steps + s)
        scale_b = slot + t.scale_shift + self.token_scale_column(s)
        pieces = ceil_div(c.token_tile, c.mma_tokens)
        for i in cutlass.range_constexpr(pieces):
            at = i * c.mma_tokens
            width, hint = t.width, "discard"
            if const_expr(pieces > 1):
                width = smaller(width - at, Int32(c.mma_tokens))
            if const_expr(pieces > 1 and c.collector):
                hint = ("fill", "use", "lastuse")[(i > 0) + (i == pieces - 1)]
            instruction = (width << 14) + (INSTRUCTION | c.cta_group << 27)
            scales = scale_a, scale_b + at // 32
            operands = (d + w * c.token_tile + at, a, b + (at * 128 >> 4), instruction, *scales)
            if self.wanted(cutlass.Boolean(True), at, t.width):
                tcgen05_mma(c.cta_group, hint, *operands, keep)

    # ---- epilogue warps --------------------------------------------------------------------------

    @cute.jit
    def epilogue_warp(self, warp):
        plan = self.plan
        self.set_registers(True)
        start, count, step = self.my_tiles()
        if const_expr(self.traits.groups > 1):
            if warp == DESCRIPTOR_WARP:
                with cute.arch.elect_one():
                    self.prefetch_descriptors(self.locate(start))
        if warp == SCALE_WARP:
            with cute.arch.elect_one():
                self.prefetch_scales(self.locate(start))
        if warp == 0:
            with cute.arch.elect_one():
                self.init_other_barriers()
                if const_expr(self.config.split_k > 1):
                    self.expect_partials(self.locate(start))
            if const_expr(self.config.cluster == 1):
                bar_arrive(3, 64)  # to the load warp, which does not wait in join
        self.join(True)
        tmem = ld_shared_b32(self.smem + plan.tmem_slot_at)
        acc, acc_phase = Int32(0), Int32(0)
        for i in cutlass.range(count, unroll=1):
            t = self.locate(start + i * step)
            source = tmem + (warp << 21) + acc * plan.acc_columns
            self.finish_tile(t, warp, source, acc, acc_phase)
            if const_expr(self.persistent):
                if i + self.config.accumulators < count:
                    self.release_accumulator(acc)
            acc, acc_phase = self.advance_accumulator(acc, acc_phase)
        self.leave()

    def init_other_barriers(self):
        """Those that this configuration waits for."""
        c, plan = self.config, self.plan
        for s in range(plan.stages):
            mbarrier_init(self.barrier(plan.empty_at, s), self.token_sharers + c.cluster_n - 1)
        for a in range(c.accumulators):
            mbarrier_init(self.barrier(plan.acc_full_at, a), 1)
            if c.gate_lead:
                mbarrier_init(self.barrier(plan.gate_at, a), 1)
            if self.persistent:
                mbarrier_init(self.barrier(plan.acc_empty_at, a), EPILOGUE_WARPS * c.cta_group)
        if c.split_k > 1:
            mbarrier_init(self.barrier(plan.partials_at, 0), 1)
        fence_barrier_init()

    @cute.jit
    def release_accumulator(self, acc):
        tcgen05_fence_before()
        barrier = self.barrier(self.plan.acc_empty_at, acc)
        with cute.arch.elect_one():
            if const_expr(self.config.cta_group == 1):
                mbarrier_arrive(barrier)
            else:
                mbarrier_arrive_remote(mapa(barrier, self.rank & -2))

    @cute.jit
    def finish_tile(self, t, warp, source, acc, acc_phase):
        c, plan = self.config, self.plan
        if const_expr(c.gate_lead > 0):
            mbarrier_wait(self.barrier(plan.gate_at, acc), acc_phase)
            tcgen05_fence_after()
            gates = [silu(x) for x in self.read(source, 1)[0]]
        mbarrier_wait(self.barrier(plan.acc_full_at, acc), acc_phase)
        tcgen05_fence_after()
        if const_expr(c.split_k > 1):
            self.reduce_split(t, warp, source)
        else:
            if const_expr(c.gate_lead > 0):
                second = self.read(source + c.token_tile, 1)[0]
                self.store_chunk(t, warp, [g * x for g, x in zip(gates, second)], 0)
            begin = min(c.gate_lead, 1)
            for chunk in cutlass.range(begin, div_up(t.width, c.epilogue_tokens), unroll=1):
                token = chunk * c.epilogue_tokens
                products = self.read(source + token, self.traits.weights)
                self.store_chunk(t, warp, self.combine(products), token)

    def read(self, address, products):
        """A chunk of the first `products` accumulators."""
        addresses = [address + w * self.config.token_tile for w in range(products)]
        return tcgen05_ld(addresses, self.config.epilogue_tokens, self.config.wide_stores)

    def combine(self, products):
        if len(products) == 1:
            return products[0]
        return [silu(gate) * x for gate, x in zip(*products)]

    def fragment_of(self, values, f):
        """Registers of the f-th fragment of a chunk."""
        n = self.plan.fragment
        if not self.config.wide_stores:
            return values[f * n : (f + 1) * n]
        half = len(values) // 2
        return values[f * 8 : f * 8 + 8] + values[half + f * 8 : half + f * 8 + 8]

    def store_chunk(self, t, warp, values, token):
        for f in range(self.config.epilogue_tokens // self.plan.fragment):
            self.store(t, warp, self.fragment_of(values, f), token + f * self.plan.fragment)

    @cute.jit
    def store(self, t, warp, values, token):
        """Store a fragment: rows of this warp x tokens from `token` of the tile on."""
        lane = Int32(cute.arch.lane_idx())
        left = t.tokens - t.token - token
        row = t.row + warp * 32
        line = (Int64(t.batch) * t.tokens + (t.token + token)) * t.rows
        if const_expr(self.config.wide_stores):
            words = self.transpose(warp, lane, values)
            index, row = lane >> 1, row + (lane & 1) * 16
            if (index < left) & (row < t.rows):
                st_global_v8(t.out + (line + Int64(index) * t.rows + row) * 2, *words)
        else:
            row = row + lane
            to = t.out + (line + row) * 2
            inside = row < t.rows
            for i in cutlass.range_constexpr(self.plan.fragment):
                if inside & (left > i):
                    st_global_b16(to + Int64(t.rows) * (2 * i), cvt_f16(values[i]))

    def transpose(self, warp, lane, values):
        """16 tokens x 32 rows through shared memory: each lane gets 16 rows of token lane / 2.

        A token is 64 bytes, four chunks of 8 rows, XORed with bits 1-2 of the token: stmatrix (a
        chunk of 8 tokens) and the reads (two chunks of 4 tokens) then touch every bank once.
        """
        base = self.smem + self.plan.staging_at + warp * 1024
        token, chunk = lane & 7, lane >> 3
        to = base + token * 64 + ((chunk ^ (token >> 1)) << 4)
        warp_sync()
        for octet in range(2):
            first = [8 * half + 4 * octet + 2 * h for half in range(2) for h in range(2)]
            stmatrix_x4_trans(to + octet * 512, *(cvt_f16x2(*values[i : i + 2]) for i in first))
        warp_sync()
        token, chunk = lane >> 1, (lane & 1) * 2
        line, swizzle = base + token * 64, (token >> 1) & 3
        low = ld_shared_v4(line + ((chunk ^ swizzle) << 4))
        return low + ld_shared_v4(line + (((chunk + 1) ^ swizzle) << 4))

    # ---- K split ---------------------------------------------------------------------------------

    def shares(self, t):
        """Chunks of a tile, how many a CTA of the split reduces, and begin and end of mine."""
        chunks = div_up(t.width, self.config.epilogue_tokens)
        per = div_up(chunks, self.config.split_k)
        begin = smaller(self.k * per, chunks)
        return chunks, per, begin, smaller(begin + per, chunks)

    def expect_partials(self, t):
        c, (_, _, begin, end) = self.config, self.shares(t)
        sent = (c.split_k - 1) * self.traits.weights * EPILOGUE_WARPS * self.plan.part_bytes
        mbarrier_expect(self.barrier(self.plan.partials_at, 0), (end - begin) * sent)

    @cute.jit
    def reduce_split(self, t, warp, source):
        """Send the chunks of the other CTAs of the split to them, add theirs to mine and store.

        A chunk travels as it lies in registers. Its owner adds its own part, then those of the CTAs
        behind it in the split, around to the one before: timing does not change the sum.
        """
        c, plan = self.config, self.plan
        lane = Int32(cute.arch.lane_idx())
        chunks, per, begin, end = self.shares(t)
        for chunk in cutlass.range(chunks, unroll=1):
            owner = div(chunk, per)
            if owner != self.k:
                products = self.read(source + chunk * c.epilogue_tokens, self.traits.weights)
                self.send(warp, lane, products, chunk, owner, chunk - owner * per)
        if const_expr(c.token_tile == c.epilogue_tokens):  # one chunk: read while the parts travel
            mine = self.read(source, self.traits.weights)
            mbarrier_wait(self.barrier(plan.partials_at, 0), 0)
            if begin < end:
                self.store_chunk(t, warp, self.combine(self.sum(mine, warp, lane, 0)), 0)
        else:
            mbarrier_wait(self.barrier(plan.partials_at, 0), 0)
            for chunk in cutlass.range(begin, end, unroll=1):
                token = chunk * c.epilogue_tokens
                products = self.read(source + token, self.traits.weights)
                sums = self.sum(products, warp, lane, chunk - begin)
                self.store_chunk(t, warp, self.combine(sums), token)

    def sum(self, products, warp, lane, slot):
        """A chunk plus what the other CTAs have sent of it."""
        for sender in range(self.config.split_k - 1):
            products = self.add_parts(products, warp, lane, sender, slot)
        return products

    def part(self, at, index, w, warp):
        """Address of the part of a warp in chunk `index` of an array of chunks."""
        return (
            self.smem + at + ((index * self.traits.weights + w) * 4 + warp) * self.plan.part_bytes
        )

    def received(self, sender, slot, w, warp):
        return self.part(self.plan.incoming_at, sender * self.plan.slots + slot, w, warp)

    @cute.jit
    def send(self, warp, lane, products, chunk, owner, slot):
        c, plan = self.config, self.plan
        for w in cutlass.range_constexpr(self.traits.weights):
            to = self.part(0, chunk, w, warp) + lane * 16
            for i in cutlass.range_constexpr(0, c.epilogue_tokens, 4):
                st_shared_v4_f32(to + i * 128, *products[w][i : i + 4])
        fence_async_smem()
        warp_sync()
        with cute.arch.elect_one():
            rank = self.rank + (owner - self.k) * (c.cluster_m * c.cluster_n)
            sender = mod(self.k - owner + (c.split_k - 1), c.split_k)  # 0: next behind the owner
            barrier = mapa(self.barrier(plan.partials_at, 0), rank)
            for w in cutlass.range_constexpr(self.traits.weights):
                to = mapa(self.received(sender, slot, w, warp), rank)
                bulk_copy_to_cluster(to, self.part(0, chunk, w, warp), plan.part_bytes, barrier)

    def add_parts(self, products, warp, lane, sender, slot):
        """A chunk plus what a sender has sent of it."""
        sums = []
        for w, values in enumerate(products):
            at = self.received(sender, slot, w, warp) + lane * 16
            quads = [ld_shared_v4_f32(at + i * 128) for i in range(0, len(values), 4)]
            sums.append([a + b for a, b in zip(values, itertools.chain.from_iterable(quads))])
        return sums


# ---- launch --------------------------------------------------------------------------------------


data_ptr = torch.Tensor.data_ptr


class Arguments:
    """The arguments of Kernel.launch in one block of memory, by the DSL's protocol for arguments.

    Addresses in the order of `unpack`, then rows, tokens, k, batch, token_rows of each group.
    """

    ALIGNED = bytes(range(0, 256, 32))  # low bytes of addresses that TMA and 32-byte stores take

    def __init__(self, problem: Problem):
        self.problem, n = problem, problem.weights
        sizes = [(p.rows, p.tokens, p.k, p.batch, p.token_rows) for p in problem.groups]
        self.addresses, self.sizes = len(sizes) * (2 * n + 3), len(sizes) * 5
        self.block = bytearray(8 * self.addresses + 4 * self.sizes)
        struct.pack_into(f"{self.sizes}i", self.block, 8 * self.addresses, *sum(sizes, ()))
        pack = struct.Struct(f"{self.addresses}N").pack_into  # native: half the time of "Q"
        self.pack = functools.partial(pack, self.block, 0)
        self.low_bytes = slice(0, 8 * self.addresses, 8)
        self.memory = (ctypes.c_char * len(self.block)).from_buffer(self.block)

    def read(self, operands):
        """Take the addresses of `operands`."""
        self.pack(*map(data_ptr, operands))
        if self.block[self.low_bytes].strip(self.ALIGNED):
            names = operand_names(self.problem.weights, len(self.problem.groups))
            name, odd = next((n, t) for n, t in zip(names, operands) if t.data_ptr() % 32)
            raise ValueError(f"{name}: expected an address of 32 bytes, found {odd.data_ptr():#x}")

    def __c_pointers__(self):
        start = ctypes.addressof(self.memory)
        sizes = start + 8 * self.addresses
        return [*range(start, sizes, 8), *range(sizes, sizes + 4 * self.sizes, 4)]

    def __get_mlir_types__(self):
        return [Int64.mlir_type] * self.addresses + [Int32.mlir_type] * self.sizes

    def __new_from_mlir_values__(self, values):
        return TracedArguments(self, values)


class TracedArguments:
    """What Arguments becomes while Kernel.launch is traced."""

    def __init__(self, arguments: Arguments, values):
        self.arguments, self.problem = arguments, arguments.problem
        self.values = list(values)

    def __extract_mlir_values__(self):
        return self.values

    def addresses_of(self, g):
        """Addresses of group g: weights, tokens, weight scales, token scales, out."""
        n, groups = self.problem.weights, len(self.problem.groups)
        dense, scaled = g * (n + 2), groups * (n + 2) + g * (n + 1)
        values = [Int64(v) for v in self.values[: self.arguments.addresses]]
        operands, out = values[dense : dense + n + 1], values[dense + n + 1]
        scales = values[scaled : scaled + n + 1]
        if self.problem.tokens_first:
            return operands[1:], operands[0], scales[1:], scales[0], out
        return operands[:-1], operands[-1], scales[:-1], scales[-1], out

    def sizes_of(self, g):
        at = self.arguments.addresses + g * 5
        return [Int32(v) for v in self.values[at : at + 5]]


def traits_of(config: Config, problem: Problem) -> Traits:
    return Traits(
        weights=problem.weights,
        groups=len(problem.groups),
        tokens_first=problem.tokens_first,
        whole_k=all(p.k % config.k_tile == 0 for p in problem.groups),
        one_token_tile=problem.tokens <= config.token_tile * config.cluster_n,
        one_batch=all(p.batch == 1 for p in problem.groups),
    )


class Launcher:
    """Launches one problem with one configuration on the operands of `unpack`."""

    compiled = {}  # (config, traits) -> compiled Kernel.launch

    def __init__(self, problem: Problem, config: Config | None = None):
        config = config or pick(problem)
        check(config, problem)
        self.arguments = Arguments(problem)
        key = config, traits_of(config, problem)
        if key not in self.compiled:
            self.compiled[key] = cute.compile(Kernel(*key).launch, self.arguments)
        self.function = self.compiled[key]

    def __call__(self, operands):
        """The first launch; it replaces itself."""
        self.arguments.read(operands)
        self.function(self.arguments)
        self.launch = direct_launch(self.function, self.arguments)

    launch = __call__


def direct_launch(function, arguments: Arguments):
    """A function of operands that launches past the DSL's handling of arguments.

    Like the DSL's executor it hands the compiled host function an array of the addresses of the
    arguments and of an int32 for the CUDA error. Where the executor is built differently: its call.
    """
    read = arguments.read
    try:
        executor = function.to(None)
        slots, _ = executor.generate_execution_args(arguments)
        packed = list(executor._get_invoke_packed_args(slots))
        run, error = executor.capi_func, executor.cuda_result
        expected = [*arguments.__c_pointers__(), ctypes.addressof(error)]
        if packed != expected or type(error) is not ctypes.c_int32:
            raise TypeError("other argument slots than expected")
    except (AttributeError, TypeError):
        return lambda operands: (read(operands), function(arguments))
    array = (ctypes.c_void_p * len(expected))(*expected)

    def launch(operands):
        read(operands)
        run(array)
        if error.value:
            raise RuntimeError(f"launch failed: CUDA error {error.value}")

    launch.keeps = executor, arguments  # what `array` points to
    return launch


# ---- input ---------------------------------------------------------------------------------------


def unpack(data):
    """The operands, a, b..., c of each group, then sfa, sfb... (permuted) of each; the result."""
    count = len(data) if isinstance(data, (tuple, list)) else 0
    if count == 7:
        a, b, _, _, sfa, sfb, c = data
        return (a, b, c, sfa, sfb), c
    if count == 10:
        a, b1, b2, _, _, _, sfa, sfb1, sfb2, c = data
        return (a, b1, b2, c, sfa, sfb1, sfb2), c
    if count == 4 and isinstance(data[0], list) and len(data[0]) == len(data[2]) > 0:
        operands = tuple(itertools.chain.from_iterable(data[0] + data[2]))
        return operands, list(operands[2 : 3 * len(data[0]) : 3])
    raise TypeError(
        "data: expected 7 tensors (gemv, gemm), 10 (dual gemm) or 4 lists with an item for each "
        f"group (group gemm), found {f'{count} items' if count else type(data).__name__}"
    )


def operand_names(weights: int, groups: int) -> list[str]:
    """What the operands that `unpack` returns are called in messages."""
    names = ["a", "b1", "b2"] if weights == 2 else ["a", "b"]
    suffixes = [f"[{g}]" for g in range(groups)] if groups > 1 else [""]
    scales = [f"sf{name}_permuted" for name in names]
    return [n + s for part in ([*names, "c"], scales) for s in suffixes for n in part]


def require(name, tensor, dtype, shape, order):
    """Raise unless `tensor` has this dtype and shape and is dense with dimensions in `order`."""
    if tensor.dtype != dtype:
        raise TypeError(f"{name}: expected dtype {dtype}, found {tensor.dtype}")
    if tuple(tensor.shape) != tuple(shape):
        raise ValueError(f"{name}: expected shape {list(shape)}, found {list(tensor.shape)}")
    strides, step = [0] * len(shape), 1
    for dim in reversed(order):
        strides[dim], step = step, step * shape[dim]
    found = tensor.stride()
    if any(n > 1 and a != b for n, a, b in zip(shape, strides, found)):
        raise ValueError(f"{name}: expected strides {strides}, found {list(found)}")


def group_form(dense, scales, may_be_gemv: bool) -> tuple[Product, bool]:
    """The product of one group and whether it is a gemv. dense, scales: {name: tensor}."""
    for name, tensor in dense.items():
        if tensor.ndim != 3 or not all(0 < size < 2**30 for size in tensor.shape):
            found = list(tensor.shape)
            raise ValueError(f"{name}: expected 3 dimensions of 1 to 2^30, found shape {found}")
    a, b, *_, c = dense
    (m, bytes_k, l), n = dense[a].shape, dense[b].shape[0]
    if bytes_k % (STEP_K // 2):
        raise ValueError(f"{a}: expected K a multiple of {STEP_K}, found {2 * bytes_k}")
    gemv = may_be_gemv and dense[c].shape[1] == 1 and n == 128
    for name, scale in zip(dense, scales):
        rows = m if name == a else n
        require(name, dense[name], torch.float4_e2m1fn_x2, (rows, bytes_k, l), (2, 0, 1))
        shape = (32, 4, ceil_div(rows, 128), 4, 2 * bytes_k // STEP_K, l)
        require(scale, scales[scale], torch.float8_e4m3fn, shape, (5, 2, 4, 0, 1, 3))
    require(c, dense[c], torch.float16, (m, 1 if gemv else n, l), (2, 0, 1))
    return Product(*((m, 1) if gemv else (n, m)), 2 * bytes_k, l, n if gemv else m), gemv


def normal_form(data) -> Problem:
    """The problem that `data` poses; TypeError or ValueError naming an argument that is illegal."""
    operands, _ = unpack(data)
    grouped, n = len(data) == 4, 2 if len(data) == 10 else 1
    count = len(operands) // (2 * n + 3)
    named = list(zip(operand_names(n, count), operands))
    for name, tensor in named:
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{name}: expected a tensor, found {type(tensor).__name__}")
        if tensor.device != operands[0].device:
            raise ValueError(f"{name}: expected {operands[0].device}, found {tensor.device}")
    dense, scales, products, gemv = named[: count * (n + 2)], named[count * (n + 2) :], [], False
    for g in range(count):
        of_group = dict(dense[g * (n + 2) : (g + 1) * (n + 2)])
        product, gemv = group_form(
            of_group, dict(scales[g * (n + 1) : (g + 1) * (n + 1)]), n == 1 and not grouped
        )
        expected = (product.tokens, product.rows, product.k, product.batch)
        if grouped and tuple(data[3][g]) != expected:
            raise ValueError(f"sizes[{g}]: expected {expected}, found {tuple(data[3][g])}")
        products.append(product)
    problem = Problem(n, tuple(products), tokens_first=not gemv)
    if parameter_bytes(problem) > PARAMETER_BYTES:
        most = PARAMETER_BYTES * count // parameter_bytes(problem)
        raise ValueError(f"sizes: expected at most {most} groups, found {count}")
    return problem


def same_form(operands):
    """A predicate: have tensors the dtypes, shapes, strides and devices of these?

    Where it can be had torch's own guard, one call for all of them. It spares the strides of
    dimensions of size 1 and the sizes of an atom, which its strides tell.
    """
    try:
        from torch._C._dynamo.guards import TensorGuards

        sizes, strides = [], []
        for t in operands:
            sizes.append(
                [None if t.ndim == 6 and i in (0, 1, 3) else n for i, n in enumerate(t.shape)]
            )
            strides.append([s if n > 1 else None for n, s in zip(t.shape, t.stride())])
        guard = TensorGuards(*operands, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides)
        if guard.check(*operands):
            return guard.check
    except (ImportError, AttributeError, TypeError, RuntimeError):
        pass

    def form(tensors):
        return [(t.dtype, t.shape, t.stride(), t.device) for t in tensors]

    expected = form(operands)
    return lambda *tensors: form(tensors) == expected


_launchers = {}  # number of operands -> [(same_form of them, launcher)], the last used first


def custom_kernel(data: input_t) -> output_t:
    """Compute c of any of the four problems (top of this file) in place, and return it."""
    operands, result = unpack(data)
    known, found = _launchers.get(len(operands), ()), None
    try:
        for found in known:
            if found[0](*operands):
                break
        else:
            found = None
    except (AttributeError, TypeError):  # not tensors: normal_form says which
        found = None
    if found is None:
        launcher = Launcher(normal_form(data))
        found = same_form(operands), launcher
        _launchers.setdefault(len(operands), []).insert(0, found)
    elif found is not known[0]:
        known.remove(found)
        known.insert(0, found)
    found[1].launch(operands)
    return result
