"""NVFP4 gemv, gemm, dual gemm and group gemm on a B200: one kernel.

NORMAL FORM   out[l, m, n] = f(sum over k of rows[l, i, k] * columns[l, j, k])
    operands are e2m1 with a ue4m3 scale for 16 elements of K, sums are fp32, out is fp16

    problem   weights           tokens            f
    gemv      a                 row 0 of b        identity
    gemm      b                 a                 identity
    dual      b1, b2            a                 silu(p1) * p2
    group     b of each group   a of each group   identity

    Weights are the rows (M of the MMA, (i, j) = (n, m)) and tokens the columns (N), or the other
    way around (swap_ab). Rows fill the 128 lanes of tensor memory, columns come in any multiple of
    8 (16 over a CTA pair). Two products share the operand of the side that has one.

ROLES   a CTA computes 128 rows of a tile, a pair of neighbouring cluster ranks 256
    warps 0-3  epilogue: a quarter of the lanes of tensor memory each -> registers -> global;
    and 6-9    where a tile has 128 columns or more: two warps of a quarter take chunks by turns
    warp 4     load: TMA boxes of rows, columns and scale-factor atoms
    warp 5     MMA: scales to tensor memory, block-scaled MMAs; idle in the odd CTA of a pair

PIPELINES (mbarriers)
    barrier       from -> to            arrivals of a phase
    full[s][w]    load -> MMA           1 expect_tx of the load warp, and the bytes of product w,
                                        what both share with w = 0; pair: on the even CTA, of both
    empty[s][w]   MMA -> load           1 commit of each MMA warp that reads what this CTA sends
    gate[a]       MMA -> epilogue       1 commit: the first product of a dual tile is complete
    acc_full[a]   MMA -> epilogue       1 commit: the tile is complete
    acc_empty[a]  epilogue -> MMA       epilogue warps of each CTA of the pair, on the even CTA
    partials      epilogue -> epilogue  1 expect_tx, and the bytes of the other CTAs' partial sums
    The MMAs of a pair are issued by its even CTA and read shared memory of both, so what the odd
    CTA loads, all of it behind the barrier of the cluster, completes on full[s][w] of the even one.

SHARED MEMORY                                        TENSOR MEMORY (columns)
    stage 0  rows    [operand][128 rows][128 B]         accumulators [a][w][column]
             columns [operand][columns][128 B]          row scales [operand][k block][4]
             row scales [operand][k block][512 B]       column scales
             column scales                                [operand][k block][column/128][4]
               [operand][column/128][k block][512 B]
    stage 1 ...                                         One k-tile of scales: the copies and MMAs
    transposition buffers, 1 KB a warp                  of one thread run in order, as NVIDIA's
    K split: partial sums received                      block-scaled kernels rely on, too (the PTX
    barriers, address of tensor memory                  manual lists cp -> mma, not mma -> cp).

NUMERICS   silu(x) = x / (1 + 2^(-x log2 e)) in fp32, with a relative error below (|x| + 6) 2^-23:
    |x| 2^-23 of the rounded product, 2^-22 of ex2.approx, 2^-23 of rcp.approx, five roundings: 6e-6
    down to x = -41, where fp16 rounds by 5e-4; beyond it is below 1e-16. K splits add in one order.
"""

import ctypes
import functools
import itertools
from dataclasses import dataclass
from typing import NamedTuple

import cutlass
import cutlass._mlir.dialects.cute as cute_ir
import cutlass._mlir.dialects.cute_nvgpu as cute_nvgpu_ir
import cutlass.cute as cute
import torch
from cutlass import Boolean, Float4E2M1FN, Float32, Int16, Int32, Int64, Uint32, const_expr
from cutlass._mlir.dialects import llvm
from cutlass.cute.nvgpu import cpasync, tcgen05
from cutlass.cutlass_dsl import dsl_user_op
from cutlass.utils import HardwareInfo

from task import input_t, output_t

SM_COUNT = 148
CLUSTERS = 148, 74, 45, 33, 26, 22, 15, 15  # of 1, 2, ... CTAs, resident at a time on 8 GPCs
SMEM_BYTES = 232_448  # what one CTA may ask for
SMEM_PER_SM = 233_472  # each resident CTA takes 1 KB more than it asks for
TMEM_COLUMNS = 512
PARAMETER_BYTES = 32_764
MAX_CLUSTER = 8  # CTAs, the portable limit
# Of `estimate`, fitted to modelled times: bytes a cycle, cycles, cycles a column. merged: the part
# of weights that CTAs without a cluster read together; direct: an epilogue without transposition.
COSTS = {"dram": 4000, "l2": 10200, "outside": 3850, "start": 3030, "refill": 2220, "cluster": 49}
COSTS |= {"load": 42, "fill": 1.74, "merged": 0.4, "epilogue": 11.7, "direct": 0.9}
COSTS |= {"exchange": 29.5, "split": 390, "meet": 250, "restart": 2350}  # meet: of a cluster
# Another chip may hold this part of the clusters only (an H200: 30 of 4, not 33), with this chance.
EDGE, EDGE_CHANCE = 0.9, 0.05
CLOSE = 1.015  # estimates within this ratio are alike

ROWS = 128  # of a tile, in a CTA
K_TILE = 256  # elements of K in a stage: a row of a box with 128-byte swizzle
K_BLOCK = 64  # elements of K in one MMA and in one scale-factor atom
K_BLOCKS = K_TILE // K_BLOCK
ROW_BYTES = ROWS * K_TILE // 2  # of a row operand in a stage
ATOM_BYTES = 512  # of a scale-factor atom: 128 rows x 4 scales
SCALE_BYTES = K_BLOCKS * ATOM_BYTES  # of 128 rows in a stage

QUARTERS, LOAD_WARP, MMA_WARP = 4, 4, 5  # quarters of the 128 lanes of tensor memory
DESCRIPTOR_WARP, SCALE_WARP = 1, 2  # of the epilogue: what they prefetch at the start
JOIN_BARRIER, LEAVE_BARRIER, EMPTY_BARRIER = 1, 2, 3  # of a CTA; EMPTY: empty[s] is initialised


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


# ---- problem and input ---------------------------------------------------------------------------


class Product(NamedTuple):
    """Sizes in elements. stored: rows that the column operand has in memory (128 in gemv)."""

    rows: int
    columns: int
    k: int
    batch: int
    stored: int


@dataclass(frozen=True)
class Problem:
    """For each group `weights` operands of weights against one of tokens: the rows against the
    columns, or the other way around if it is swapped."""

    weights: int
    groups: tuple[Product, ...]
    swapped: bool = False

    @property
    def columns(self) -> int:
        return max(p.columns for p in self.groups)

    @property
    def operands(self) -> tuple[int, int]:
        """How many there are of the rows and of the columns."""
        return (1, self.weights) if self.swapped else (self.weights, 1)

    @property
    def parameter_bytes(self) -> int:
        """Kernel parameters: for each group descriptors, addresses and sizes."""
        operands = self.weights + 1
        return len(self.groups) * (256 * operands + 8 * (operands + 1) + 4 * 5) + 64

    def oriented(self, swapped: bool) -> "Problem":
        if swapped == self.swapped:
            return self
        groups = (Product(p.columns, p.rows, p.k, p.batch, p.rows) for p in self.groups)
        return Problem(self.weights, tuple(groups), swapped)


class Operand:
    """A tensor as it must be: dense, with its dimensions in `order`, outermost in memory first."""

    def __init__(self, key: str, group: str, dtype: torch.dtype, shape: tuple, order: tuple):
        self.key, self.name, self.dtype, self.shape = key, key + group, dtype, torch.Size(shape)
        strides, dense = [0] * len(shape), 1
        for dim in reversed(order):
            strides[dim], dense = dense, dense * shape[dim]
        self.strides = tuple(strides)

    def address_of(self, tensor: torch.Tensor) -> int:
        """The address of a tensor; TypeError or ValueError where it is not what it must be."""
        if tensor.dtype != self.dtype:
            raise TypeError(f"{self.name}: expected dtype {self.dtype}, found {tensor.dtype}")
        if tensor.shape != self.shape:
            expected, found = list(self.shape), list(tensor.shape)
            raise ValueError(f"{self.name}: expected shape {expected}, found {found}")
        if tensor.stride() != self.strides:
            strides = zip(self.shape, self.strides, tensor.stride())
            if any(size > 1 and expected != found for size, expected, found in strides):
                expected, found = list(self.strides), list(tensor.stride())
                raise ValueError(f"{self.name}: expected strides {expected}, found {found}")
        address = tensor.data_ptr()
        if address % 32:  # TMA takes 16 bytes, stores of 16 fp16 take 32
            raise ValueError(f"{self.name}: expected an address of 32 bytes, found {address:#x}")
        return address


@functools.cache
def operands_of(problem: Problem) -> list[list[Operand]]:
    """For each group rows and columns, all followed by their scale factors, then the result.
    A scale-factor atom has 128 rows, 32 x 4, and 4 scales of each, for 64 elements of K."""
    fp4, ue4m3, fp16 = torch.float4_e2m1fn_x2, torch.float8_e4m3fn, torch.float16
    table = []
    for g, p in enumerate(problem.groups):
        group = f"[{g}]" if len(problem.groups) > 1 else ""
        gemv = p.stored > p.columns
        weights = ("a",) if gemv else ("b",) if problem.weights == 1 else ("b1", "b2")
        tokens, operands = ("b",) if gemv else ("a",), []
        names = tokens + weights if problem.swapped else weights + tokens
        count = problem.operands
        for name, rows in zip(names, [p.rows] * count[0] + [p.stored] * count[1]):
            codes = (rows, p.k // 2, p.batch)
            atoms = (32, 4, ceil_div(rows, 128), 4, p.k // K_BLOCK, p.batch)
            operands += [
                Operand(name, group, fp4, codes, (2, 0, 1)),
                Operand(f"sf{name}_permuted", group, ue4m3, atoms, (5, 2, 4, 0, 1, 3)),
            ]
        m, n = (p.rows, p.columns) if problem.swapped or gemv else (p.columns, p.rows)
        table.append([*operands, Operand("c", group, fp16, (m, n, p.batch), (2, 0, 1))])
    return table


def unpack(data) -> tuple[list[dict[str, torch.Tensor]], output_t]:
    """For each group the tensors that count, by name; and what is to be returned."""
    count = len(data) if isinstance(data, (tuple, list)) else 0
    if count == 7:  # gemv, gemm
        a, b, _, _, sfa, sfb, c = data
        return [{"a": a, "b": b, "sfa_permuted": sfa, "sfb_permuted": sfb, "c": c}], c
    if count == 10:  # dual gemm
        names = "a b1 b2 - - - sfa_permuted sfb1_permuted sfb2_permuted c".split()
        return [{name: t for name, t in zip(names, data) if name != "-"}], data[-1]
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


def problem_of(data, groups: list[dict[str, torch.Tensor]]) -> Problem:
    """The problem that `data` poses, by its shapes; TypeError or ValueError names what is wrong."""
    device, products = None, []
    for g, tensors in enumerate(groups):
        group = f"[{g}]" if len(groups) > 1 else ""
        for name, tensor in tensors.items():
            if not isinstance(tensor, torch.Tensor):
                raise TypeError(f"{name}{group}: expected a tensor, found {type(tensor).__name__}")
            device, shape = device or tensor.device, tensor.shape
            if tensor.device != device:
                raise ValueError(f"{name}{group}: expected {device}, found {tensor.device}")
            if name[0] != "s" and not (len(shape) == 3 and 0 < min(shape) <= max(shape) < 2**30):
                expected, found = "3 dimensions of 1 to 2^30", list(shape)
                raise ValueError(f"{name}{group}: expected {expected}, found shape {found}")
        a, b, c = tensors["a"], tensors.get("b", tensors.get("b1")), tensors["c"]
        (m, _, batch), n, k = a.shape, b.shape[0], 2 * a.shape[1]
        if k % K_BLOCK:
            raise ValueError(f"a{group}: expected K a multiple of {K_BLOCK}, found {k}")
        if len(data) == 4 and (found := tuple(data[3][g])) != (m, n, k, batch):
            raise ValueError(f"sizes[{g}]: expected {(m, n, k, batch)}, found {found}")
        gemv = len(data) == 7 and n == 128 and c.shape[1] == 1
        products.append(Product(m, 1, k, batch, n) if gemv else Product(n, m, k, batch, m))
    problem = Problem(2 if len(data) == 10 else 1, tuple(products))
    if problem.parameter_bytes > PARAMETER_BYTES:
        most = PARAMETER_BYTES * len(groups) // problem.parameter_bytes
        raise ValueError(f"sizes: expected at most {most} groups, found {len(groups)}")
    return problem


# ---- configuration -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Config:
    """What `pick` chooses; all other compile-time values follow from it and the problem."""

    column_tile: int = 64  # most columns of an output tile
    swap_ab: bool = False  # tokens are rows and weights columns, else the other way around
    cta_group: int = 1  # 1: 128 rows an MMA, 2: 256 over a CTA pair
    split_k: int = 1  # CTAs or pairs of a cluster along K, which add their sums
    cluster_n: int = 1  # CTAs or pairs of a cluster along columns, which share rows
    persistent: bool = False  # a cluster computes several tiles, else one
    ctas_per_sm: int = 1

    @property
    def cluster(self) -> int:
        return self.cta_group * self.cluster_n * self.split_k


class Plan:
    """All that is known at compile time: of the problem, and what follows from the configuration.
    Shared memory is in bytes, tensor memory in columns. Equal plans share a compiled kernel."""

    def __init__(self, config: Config, problem: Problem):
        problem, c, tile = problem.oriented(config.swap_ab), config, config.column_tile
        groups, self.operands, self.products = problem.groups, problem.operands, problem.weights
        self.config, self.groups, (rows, columns) = config, len(groups), self.operands
        self.one_column_tile = problem.columns <= tile * c.cluster_n  # no rows are read twice
        self.one_batch = all(p.batch == 1 for p in groups)
        aligned = all((p.columns if c.swap_ab else p.rows) % 16 == 0 for p in groups)
        self.team = c.cta_group * c.cluster_n  # CTAs of a cluster with the same part of K
        self.cta_columns = tile // c.cta_group  # of this CTA
        self.row_box = min(ROWS, ceil_div(max(p.rows for p in groups), 8) * 8)
        # Rows of a TMA box, 64 or alike; fewer if groups had no use for a sixth of what they load.
        boxes = *range(64, 40, -8), *range(72, 129, 8), *range(40, 0, -8)
        rests = [ceil_div(p.columns % tile, c.cta_group) for p in groups if len(groups) > 1]
        useless = {b: sum(-rest % b for rest in rests) for b in boxes if self.cta_columns % b == 0}
        spare = sum(p.columns for p in groups) // (6 * c.cta_group)
        self.column_box = next((box for box, rows in useless.items() if rows <= spare), 8)
        self.column_atoms = ceil_div(tile, 128)
        # Tiles of 128 columns or more have two warps a quarter, which take chunks by turns.
        self.turns = 2 if self.products * tile >= 128 and c.ctas_per_sm == 1 else 1
        self.epilogue_warps = self.turns * QUARTERS
        self.threads = 32 * (self.epilogue_warps + 2)
        # Columns that the epilogue reads at a time; each turn of each part of a K split has some.
        least = 16 if c.swap_ab and tile % 16 == 0 else 8  # where 8 are half of a sector of c
        most, chunks = tile // (c.split_k * self.turns), (64 // self.products, 32, 16)
        self.chunk = next((n for n in chunks if tile % n == 0 and n <= most), least)
        # Stores of 32 bytes a lane, else of 2; rows that are neighbours in c pass shared memory.
        self.wide_stores = aligned and self.chunk % 16 == 0
        self.transposed = self.wide_stores and not c.swap_ab
        # Dual: k-tiles at the end whose first product is finished first.
        self.gate_lead = 2 if self.products == 2 and c.split_k == 1 else 0

        self.column_bytes = self.cta_columns * K_TILE // 2  # of one operand
        self.columns_at = rows * ROW_BYTES
        self.row_scales_at = self.columns_at + columns * self.column_bytes
        self.column_scales_at = self.row_scales_at + rows * SCALE_BYTES
        self.stage_bytes = self.column_scales_at + columns * self.column_atoms * SCALE_BYTES

        self.accumulator_columns = self.products * tile
        self.column_scale_columns = 4 * K_BLOCKS * rows
        scale_columns = self.column_scale_columns + 4 * K_BLOCKS * columns * self.column_atoms
        both = 2 * self.accumulator_columns + scale_columns <= TMEM_COLUMNS // c.ctas_per_sm
        self.accumulators = 2 if c.persistent and both else 1  # one may overlap the epilogue
        self.scales_at_column = self.accumulators * self.accumulator_columns
        used = self.scales_at_column + scale_columns
        self.tmem_columns = max(32, 1 << (used - 1).bit_length())

        # Partial sums of a K split that the other CTAs send: [sender][chunk][w][warp]
        self.part_bytes = 32 * self.chunk * 4
        self.received_chunks = ceil_div(ceil_div(tile, self.chunk), c.split_k)  # from each sender
        incoming = (c.split_k - 1) * self.received_chunks * self.products
        incoming *= QUARTERS * self.part_bytes

        staging = self.epilogue_warps * 1024 if self.transposed else 0
        single = 8 * (3 * self.accumulators + 1) + 8
        room = min(SMEM_BYTES, SMEM_PER_SM // c.ctas_per_sm - 1024) - staging - incoming - single
        self.stages = max(0, room // (self.stage_bytes + 16 * self.products))

        sizes = [self.stages * self.stage_bytes, staging, incoming]
        sizes += [*[8 * self.stages * self.products] * 2, *[8 * self.accumulators] * 3, 8, 8]
        at = itertools.accumulate(sizes)
        self.staging_at, self.incoming_at, self.full_at, self.empty_at, self.acc_full_at, *at = at
        self.gate_at, self.acc_empty_at, self.partials_at, self.tmem_address_at, *at = at
        (self.smem_bytes,) = at

    def __eq__(self, other):
        return vars(self) == vars(other)

    def __hash__(self):
        return hash(tuple(vars(self).values()))


@functools.cache
def clusters_at_once(size: int) -> int:
    """Clusters of `size` CTAs, one an SM, that are resident at a time: what the driver of a B200
    answers, for chips differ. The table's without such a GPU, if the question fails, and if the
    answer is not within a factor of two of the table's."""
    expected = CLUSTERS[size - 1]
    try:
        if torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 10:
            found = HardwareInfo(torch.cuda.current_device()).get_max_active_clusters(size)
            if expected <= 2 * found <= 4 * expected:
                return found
    except Exception:  # whatever it is, the kernel runs without the answer
        pass
    return expected


def tiles_of(config: Config, product: Product) -> int:
    """Tiles of clusters, one CTA or pair of CTAs wide in each direction that the cluster has."""
    rows, columns = ROWS * config.cta_group, config.column_tile * config.cluster_n
    return product.batch * ceil_div(product.rows, rows) * ceil_div(product.columns, columns)


def tile_count(config: Config, problem: Problem) -> int:
    return sum(tiles_of(config, p) for p in problem.oriented(config.swap_ab).groups)


def check(config: Config, problem: Problem) -> Plan:
    """The statement of what a configuration can run: ValueError with the reason if it cannot."""
    c, granule, vector = config, 8 * config.cta_group, problem.groups[0]

    def need(legal: bool, reason: str):
        if not legal:
            raise ValueError(f"{reason}: {config}")

    need(not c.swap_ab or vector.stored == vector.columns, "the one row of a gemv stays a column")
    problem = problem.oriented(c.swap_ab)
    need(c.cta_group in (1, 2), "an MMA runs on one CTA or on a pair")
    need(c.column_tile in range(granule, 257, granule), "N is 8 to 256 by 8, in a pair by 16")
    repeats = c.cluster_n > 1 or problem.columns > c.column_tile
    need(not repeats or c.column_tile % 64 == 0, "scales start at a multiple of 64 columns")
    need(c.cluster <= MAX_CLUSTER, "a cluster has at most 8 CTAs")
    need(c.cluster == 1 or c.ctas_per_sm == 1, "the CTAs of a cluster have an SM each")
    need(tile_count(c, problem) < 2**22, "tile numbers times clusters are 32-bit numbers")
    plan = Plan(c, problem)
    need(plan.stages >= 2, "shared memory holds two stages, one to load and one to compute")
    columns = TMEM_COLUMNS // c.ctas_per_sm
    need(plan.tmem_columns <= columns, f"a CTA has {columns} columns of tensor memory")
    if c.split_k > 1:
        k_tiles = min(ceil_div(p.k, K_TILE) for p in problem.groups)
        need(not c.persistent, "partial sums of one tile have room")
        need(k_tiles >= c.split_k, f"each part of a K split has a k-tile, of {k_tiles}")
    return plan


def waves_of(config: Config, problem: Problem, resident: float = 1) -> int:
    """How often the chip, or this part of it, is filled with clusters, one tile each."""
    at_once = int(resident * clusters_at_once(config.cluster)) * config.ctas_per_sm
    return ceil_div(tile_count(config, problem), max(at_once, 1))


def tile_cycles(plan: Plan, width: int, k: int, crowd: int) -> tuple[float, float]:
    """Rough cycles of the k-tiles of `width` columns, and of their epilogue, `crowd` CTAs on an SM:
    of MMAs, TMA copies, and until a stage is filled again."""
    c, products, (row_operands, column_operands) = plan.config, plan.products, plan.operands
    mma = max(width / 2, 32 + width / 4 if c.cta_group == 1 else 35 + width / 8)
    boxes = ceil_div(width // c.cta_group, plan.column_box) + ceil_div(width, 128)
    loads = COSTS["load"] * (2 * row_operands / c.cluster_n + column_operands * boxes)
    refill = (COSTS["refill"] + COSTS["cluster"] * (c.cluster - 1)) / plan.stages
    busy = sum(x**4 for x in (crowd * K_BLOCKS * products * mma, crowd * loads, refill)) ** 0.25
    stored = min(width, ceil_div(ceil_div(width, plan.chunk), c.split_k) * plan.chunk)
    epilogue = COSTS["epilogue"] * stored * (1 if plan.transposed else COSTS["direct"])
    of_another = COSTS["split"] + COSTS["exchange"] * products * stored  # part of K
    return ceil_div(ceil_div(k, K_TILE), c.split_k) * busy, epilogue + (c.split_k - 1) * of_another


def memory_cycles(plan: Plan, p: Product) -> tuple[float, float]:
    """Rough cycles of DRAM and the L2 for a product: its bytes, and those of boxes beyond it."""
    c, (row_operands, column_operands) = plan.config, plan.operands
    down, box = p.batch * ceil_div(p.rows, ROWS * c.cta_group), plan.column_box * c.cta_group
    along = tiles_of(c, p) // down
    rows, columns = row_operands * p.batch * p.rows * along, column_operands * down * p.columns
    boxes = row_operands * along * c.cta_group * plan.row_box
    boxes = down * (boxes + column_operands * ceil_div(p.columns, box) * box)
    read, once = rows + columns, p.batch * (row_operands * p.rows + column_operands * p.columns)
    merged = (c.cluster == 1) * COSTS["merged"] * (columns if c.swap_ab else rows)
    l2 = (read - merged + COSTS["fill"] * once) / COSTS["l2"] + (boxes - read) / COSTS["outside"]
    return p.k * 0.5625 * once / COSTS["dram"], p.k * 0.5625 * l2


def estimate(config: Config, problem: Problem) -> float:
    """Rough SM cycles, to rank configurations: start; tiles, DRAM, L2; last epilogue; waves."""
    problem, c, plan = problem.oriented(config.swap_ab), config, Plan(config, problem)
    waves, unit, tiles = waves_of(c, problem), 8 * c.cta_group, []
    crowd = min(c.ctas_per_sm, ceil_div(tile_count(c, problem) * c.cluster, SM_COUNT))
    for p in sorted(problem.groups, key=lambda p: -p.k * (ROWS + p.columns)):  # as `launch` does
        mean = ceil_div(p.columns, ceil_div(p.columns, c.column_tile))
        width = ceil_div(mean if waves > 1 else min(p.columns, c.column_tile), unit) * unit
        tiles += [tile_cycles(plan, width, p.k, crowd)] * tiles_of(c, p)
    dram, l2 = map(sum, zip(*(memory_cycles(plan, p) for p in problem.groups)))
    at_once = clusters_at_once(c.cluster) * c.ctas_per_sm
    mains, epilogues = zip(*tiles[::at_once])  # of the first cluster, which has the longest
    main = sum(mains) + (plan.accumulators == 1) * sum(epilogues[:-1])
    # A last wave loads its part of the bytes itself; of a persistent kernel all load to the end.
    last, end = (0, 0) if c.persistent else (1 - (waves - 1) * at_once / len(tiles), mains[-1])
    phases = (main - end, 1 - last), (end, last)
    cycles = sum(sum(x**5 for x in (t, part * dram, part * l2)) ** 0.2 for t, part in phases)
    edge = (c.cluster > 2) * EDGE_CHANCE * (waves_of(c, problem, EDGE) - waves)  # beyond a TPC
    more_waves = (waves + edge - 1) * (400 if c.persistent else COSTS["restart"])
    once = COSTS["start"] + (c.cluster > 1) * COSTS["meet"] + epilogues[-1]
    return once + cycles * (1 + edge / waves) + more_waves


def legal_configs(problem: Problem) -> list[Config]:
    """The configurations that `pick` weighs."""
    legal = []
    for swap_ab in (False, True) if problem.columns > 8 else (False,):
        columns = (sides := problem.oriented(swap_ab)).columns
        tiles = {64, 128, 192, 256} if columns > 8 else {8}
        tiles |= {ceil_div(columns, n) * n for n in (16, 32)} if 8 < columns <= 256 else set()
        pairs = (1, 2) if columns > 8 and all(p.rows > ROWS for p in sides.groups) else (1,)
        levers = pairs, range(1, MAX_CLUSTER + 1), (1, 2, 4) if columns > 8 else (1,), (False, True)
        choices = itertools.product(sorted(tiles), (swap_ab,), *levers, (1, 2, 3, 4))
        for config in itertools.starmap(Config, choices):
            try:
                check(config, sides)
            except ValueError:
                continue
            if not config.persistent or config.ctas_per_sm == 1 < waves_of(config, sides):
                legal.append(config)
    return legal


def pick(problem: Problem) -> Config:
    """The configuration for a problem: of those whose estimates are close to the best one, that
    with the fewest CTAs in a cluster, then the fewest mechanisms."""
    estimates = {config: estimate(config, problem) for config in legal_configs(problem)}
    close = [c for c, cycles in estimates.items() if cycles <= CLOSE * min(estimates.values())]
    default = vars(Config()).items()
    use = {c: sum(getattr(c, k) != v for k, v in default if k != "column_tile") for c in close}
    return min(close, key=lambda c: (c.cluster, use[c], estimates[c]))


# ---- PTX and arithmetic --------------------------------------------------------------------------

_KINDS = {"r": Int32, "l": Int64, "h": Int16, "f": Float32}


@functools.cache
def ptx(text: str, operands: str = "", results: str = "", pure: bool = False):
    """A device function that issues `text`; $0... stand for the results, then the operands.

    operands, results: a letter each, r (b32), l (b64), h (b16), f (f32). pure: has no effect.
    """
    constraints = ",".join([f"={letter}" for letter in results] + list(operands))

    @dsl_user_op
    def issue(*args, loc=None, ip=None):
        at = {"loc": loc, "ip": ip}
        pairs = zip(operands, args, strict=True)
        values = [_KINDS[letter](arg).ir_value(**at) for letter, arg in pairs]
        types = [_KINDS[letter].mlir_type for letter in results]
        kind = llvm.StructType.get_literal(types) if len(types) > 1 else types[0] if types else None
        out = llvm.inline_asm(kind, values, text, constraints, has_side_effects=not pure, **at)
        if len(types) < 2:
            return _KINDS[results](out) if types else None
        parts = [llvm.extractvalue(t, out, [i], **at) for i, t in enumerate(types)]
        return [_KINDS[letter](part) for letter, part in zip(results, parts)]

    return issue


# A reduction puts the rank into a uniform register. Without it ptxas takes what depends on the rank
# for different from lane to lane, and wraps each MMA and scale copy in a loop over lanes.
cluster_ctarank = ptx(
    "{\n.reg .b32 r;\nmov.b32 r, %cluster_ctarank;\nredux.sync.or.b32 $0, r, -1;\n}", "", "r"
)
# Nowhere .release at cluster scope: it is a fence of all memory, hundreds to thousands of cycles.
bar_sync = ptx("barrier.cta.sync.aligned $0, $1;", "rr")
bar_arrive = ptx("barrier.cta.arrive.aligned $0, $1;", "rr")
mapa = ptx("mapa.shared::cluster.u32 $0, $1, $2;", "rr", "r")
prefetch_tensormap = ptx("prefetch.tensormap [$0];", "l")
bulk_prefetch = ptx("cp.async.bulk.prefetch.L2.global [$0], $1;", "lr")
mbarrier_init = ptx("mbarrier.init.shared::cta.b64 [$0], $1;", "rr")
mbarrier_expect = ptx("mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], $1;", "rr")
mbarrier_expect_remote = ptx(
    "mbarrier.arrive.expect_tx.relaxed.cluster.shared::cluster.b64 _, [$0], $1;", "rr"
)
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
cvt_f16x2 = ptx("cvt.rn.f16x2.f32 $0, $2, $1;", "ff", "r", pure=True)  # $1 to the low half
cvt_f16 = ptx("cvt.rn.f16.f32 $0, $1;", "f", "h", pure=True)
exp2 = ptx("ex2.approx.ftz.f32 $0, $1;\nmin.f32 $0, $0, 0f5D800000;", "f", "f", pure=True)
reciprocal = ptx("rcp.approx.ftz.f32 $0, $1;", "f", "f", pure=True)


def silu(values):
    """x / (1 + 2^(-x log2 e)) of each x, the power at most 2^60; two values share a reciprocal."""
    below = [exp2(x * -1.4426950408889634) + 1.0 for x in values]
    shared = [reciprocal(a * b) for a, b in zip(below[::2], below[1::2])]
    return [x * below[i ^ 1] * shared[i // 2] for i, x in enumerate(values)]


def tma_load(to, tensormap, coordinates, barrier, pair, mask=None):
    """A box from global to shared memory, of each CTA of `mask` at the same offset if it is given.
    pair: the barrier is of the even CTA of the pair, or of each pair that `mask` has a CTA of."""
    space = "cta" if mask is None and not pair else "cluster"
    text = f"cp.async.bulk.tensor.3d.shared::{space}.global.tile.mbarrier::complete_tx::bytes"
    text += ".multicast::cluster" * (mask is not None) + ".cta_group::2" * pair
    text += " [$0], [$1, {$2, $3, $4}], [$5]" + ", $6" * (mask is not None) + ";"
    operands = [to, tensormap, *coordinates, barrier] + [mask] * (mask is not None)
    ptx(text, "rlrrrrh"[: len(operands)])(*operands)


def tcgen05_cp(group, address, descriptor):
    """A scale-factor atom to 4 columns, the same in all four lane quarters."""
    ptx(f"tcgen05.cp.cta_group::{group}.32x128b.warpx4 [$0], $1;", "rl")(address, descriptor)


def tcgen05_mma(group, d, a, b, instruction, scale_a, scale_b, accumulate):
    text = (
        "{\n.reg .pred P;\nsetp.ne.b32 P, $6, 0;\n"
        f"tcgen05.mma.cta_group::{group}.kind::mxf4nvf4.block_scale.block16"
        ".collector::a::discard [$0], $1, $2, $3, [$4], [$5], P;\n}"
    )
    ptx(text, "rllrrrr")(d, a, b, instruction, scale_a, scale_b, accumulate)


def tcgen05_commit(group, barrier, mask):
    """Arrive on `barrier`, in each CTA of `mask`, once all earlier MMAs and copies are complete."""
    text = f"tcgen05.commit.cta_group::{group}.mbarrier::arrive::one.shared::cluster"
    if mask is None:
        ptx(f"{text}.b64 [$0];", "r")(barrier)
    else:
        ptx(f"{text}.multicast::cluster.b64 [$0], $1;", "rh")(barrier, mask)


def tcgen05_ld(addresses, columns, transposable):
    """32 lanes x `columns` columns from each address, complete on return; registers by address.

    transposable: two 16x256b loads, of rows 0-15 and 16-31, in the form stmatrix takes: register
    4o + 2h + j of a load is row 8h + lane / 4, column 8o + 2 * (lane % 4) + j.
    Else 32x32b: register i is row lane, column i.
    """
    shape, repeat, loads = ("16x256b", columns // 8, 2) if transposable else ("32x32b", columns, 1)
    count, total, text, operands = columns // loads, columns * len(addresses), "", []
    for address, part in itertools.product(addresses, range(loads)):
        first = count * len(operands)
        registers = ", ".join(f"${first + j}" for j in range(count))
        text += f"tcgen05.ld.sync.aligned.{shape}.x{repeat}.b32 {{{registers}}}, "
        text += f"[${total + len(operands)}];\n"
        operands.append(address + (16 * part << 16))
    text += "tcgen05.wait::ld.sync.aligned;"
    values = ptx(text, "r" * len(operands), "f" * total)(*operands)
    return [values[i : i + columns] for i in range(0, total, columns)]


def select(condition, a, b):
    """a if condition else b, of Int32 or Int64, without a branch."""
    kind = Int64 if Int64 in (type(a), type(b)) else Int32
    return kind(cutlass.select_(condition, kind(a), kind(b)))


def div(a, b):
    """Quotient of non-negative Int32: DSL integers divide as Python's, rounding down at a cost."""
    return a if isinstance(b, int) and b == 1 else Int32(Uint32(a) // Uint32(b))


def mod(a, b):
    return Int32(0) if isinstance(b, int) and b == 1 else Int32(Uint32(a) % Uint32(b))


def div_up(a, b):
    return div(a + (b - 1), b)


def advance(index, phase, count):
    """The next of a ring of `count` stages or accumulators, and its phase."""
    last = index == count - 1
    return select(last, 0, index + 1), select(last, phase ^ 1, phase)


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
SHARED_OFFSET = 0x3FFFF  # of a shared address: what lies inside the CTA
EVEN_CTA = 0xFEFFFFFF - 2**32  # of a pair: bit 24 of a shared address is bit 0 of the rank


@dataclass
class Tile:
    """An output tile of this CTA. Lists have the operands of the rows, then of the columns."""

    maps: list  # addresses of tensormaps
    scales: list  # addresses of scale factors
    out: Int64  # address of c
    rows: Int32  # all there are
    columns: Int32  # all there are
    batch: Int32  # which one
    row: Int32  # first row of this CTA
    column: Int32  # first column
    width: Int32  # columns to compute, a multiple of what an MMA takes
    column_atoms: Int32  # scale-factor atoms that these lie in
    k_blocks: Int32  # of all K
    k_begin: Int32  # first k-tile of this part of a K split
    k_count: Int32  # k-tiles of this part

    def atom(self, row, rows):
        """Number of the scale-factor atoms of a row, of `rows`; beyond the last one of the last."""
        atoms = (rows + 127) >> 7
        return self.batch * atoms + cutlass.min(row >> 7, atoms - 1)


class Kernel:
    """The kernel of one configuration: launch is host code, all else runs on the device."""

    def __init__(self, plan: Plan):
        self.plan, self.config = plan, plan.config

    @cute.jit
    def launch(self, words):
        """words: of each group the addresses of `operands_of`, then the sizes of its product."""
        c, plan = self.config, self.plan
        operands, maps, addresses, sizes, tiles = plan.products + 1, [], [], [], Int32(0)
        for g in cutlass.range_constexpr(plan.groups):
            group = words[g * (2 * operands + 6) : (g + 1) * (2 * operands + 6)]
            rows, columns, k, batch, stored = [Int32(size) for size in group[-5:]]
            sides = (rows, rows, plan.row_box), (columns, stored, plan.column_box)
            sides = [side for n, side in zip(plan.operands, sides) for _ in range(n)]
            codes, scales = group[: 2 * operands : 2], group[1 : 2 * operands : 2]
            maps += [self.tensormap(a, *side, k, batch) for a, side in zip(codes, sides)]
            maps += [self.scale_tensormap(a, side[1], k, batch) for a, side in zip(scales, sides)]
            addresses.extend([*scales, group[2 * operands]])
            sizes.extend([tiles, rows, columns, k, batch])
            row_tiles = div_up(rows, ROWS * c.cta_group)
            tiles = tiles + row_tiles * batch * div_up(columns, c.column_tile * c.cluster_n)
        at_once = clusters_at_once(c.cluster) * c.ctas_per_sm
        clusters = cutlass.min(tiles, Int32(at_once)) if const_expr(c.persistent) else tiles
        rounds = div(tiles - 1, clusters)  # before the last one
        last = tiles - rounds * clusters  # tiles of the last round
        # In proportion to the tiles; up to two more, the more clusters have a tile in it.
        fewer = plan.stages * rounds * clusters + 2 * last * (rounds + 1)
        fewer = cutlass.min(div(fewer, clusters * (rounds + 1)), Int32(plan.stages))
        grid, cluster = (clusters * c.cluster, 1, 1), (c.cluster, 1, 1)
        shape = {"grid": grid, "block": (plan.threads, 1, 1), "cluster": cluster}
        kernel = self.kernel(maps, addresses, sizes, [clusters, rounds, last, fewer])
        kernel.launch(**shape, smem=plan.smem_bytes, min_blocks_per_mp=1)

    def tensormap(self, address, rows, stored_rows, box_rows, k, batch):
        """TMA atom for boxes of box_rows x 256 elements of a K-major [rows, k, batch] operand."""
        row = cute.assume(Int64(k), K_BLOCK)
        plane = cute.assume(Int64(stored_rows) * Int64(k), K_BLOCK)
        shape, strides = (rows, cute.assume(k, K_BLOCK), batch), (row, 1, plane)
        swizzle = tcgen05.make_smem_layout_atom(tcgen05.SmemLayoutAtomKind.K_SW128, Float4E2M1FN)
        layout = cute.tile_to_shape(swizzle, (box_rows, K_TILE), order=(0, 1))
        return self.tma_atom(Float4E2M1FN, address, shape, strides, (box_rows, K_TILE), layout)

    def scale_tensormap(self, address, rows, k, batch):
        """TMA atom for boxes of the scale-factor atoms of a k-tile of 128 rows, 256 Int16 each."""
        k_blocks, words = k >> 6, ATOM_BYTES // 2
        shape, box = (words, k_blocks, batch * ((rows + 127) >> 7)), (words, K_BLOCKS, 1)
        strides = (1, words, cute.assume(Int64(k_blocks) * words, words))
        return self.tma_atom(Int16, address, shape, strides, box, cute.make_layout(box))

    def tma_atom(self, dtype, address, shape, strides, box, layout):
        pointer = cute.make_ptr(dtype, address, cute.AddressSpace.gmem, assumed_align=16)
        tensor = cute.make_tensor(pointer, cute.make_layout(shape, stride=strides))
        load = cpasync.CopyBulkTensorTileG2SOp(tcgen05.CtaGroup.ONE)
        return cpasync.make_tiled_tma_atom(load, tensor, layout, box)[0]

    @cute.kernel
    def kernel(self, maps, addresses, sizes, schedule):
        c, operands = self.config, self.plan.products + 1
        lengths = (maps, 2 * operands), (addresses, operands + 1), (sizes, 5)  # of a group's part
        lists = [zip(*[iter(items)] * n) for items, n in lengths]
        self.groups = [[*map(descriptor_address, m), *a, *s] for m, a, s in zip(*lists)]
        warp = cute.arch.make_warp_uniform(cute.arch.thread_idx()[0] >> 5)
        self.smem = cute.arch.get_dyn_smem(cutlass.Uint8, 1024).toint()
        self.schedule = schedule
        # cluster rank = (part * cluster_n + sharer) * cta_group + half
        self.rank = cluster_ctarank() if c.cluster > 1 else Int32(0)
        self.half = mod(self.rank, c.cta_group)  # of a pair's rows and columns
        self.sharer = mod(div(self.rank, c.cta_group), c.cluster_n)  # of rows
        self.part = div(self.rank, self.plan.team)  # of K
        self.count, self.number, self.stages = self.my_tiles()
        # Of an epilogue warp: its lanes of tensor memory, and which chunks are its own.
        self.quarter, self.turn = warp & 3, select(warp > MMA_WARP, 1, 0)
        if warp == LOAD_WARP:
            self.load_warp()
        if warp == MMA_WARP:
            self.mma_warp()
        if warp != LOAD_WARP and warp != MMA_WARP:
            self.epilogue_warp(warp)

    def join(self, waits):
        """Past here all barriers of the cluster are initialised and tensor memory is allocated. The
        load warp only arrives: its first loads need neither."""
        clustered = self.config.cluster > 1
        if clustered:
            cute.arch.cluster_arrive_relaxed()  # after mbarrier_init_fence
        (bar_sync if waits else bar_arrive)(JOIN_BARRIER, self.plan.threads)
        if clustered and waits:
            cute.arch.cluster_wait()

    def leave(self):
        """Tensor memory has been read by now, and no CTA exits while another of its cluster may
        write to it or arrive on its barriers: each has waited for all that is sent to it."""
        bar_sync(LEAVE_BARRIER, self.plan.threads)
        if self.config.cluster > 1:
            cute.arch.cluster_arrive_relaxed()
            cute.arch.cluster_wait()

    def barrier(self, at, index, w=None):
        return self.smem + at + 8 * (index if w is None else index * self.plan.products + w)

    def my_tiles(self):
        """How many tiles this cluster computes, the number of its i-th, how many stages it fills.

        In rounds, of the longest tiles first. The last round is dealt out from the other end: to
        those that had the shortest tiles of each round before. Who has no tile in it fills fewer
        stages: the others get more of the bandwidth, and all end at about the same time."""
        cluster = div(Int32(cute.arch.block_idx()[0]), self.config.cluster)
        if not self.config.persistent:
            return Int32(1), lambda i: cluster, Int32(self.plan.stages)
        clusters, rounds, last, fewer = self.schedule
        other_end = clusters - 1 - cluster
        stages = select(last > other_end, self.plan.stages, fewer)
        count = rounds + select(last > other_end, 1, 0)
        return count, lambda i: i * clusters + select(i < rounds, cluster, other_end), stages

    def locate(self, index):
        """The tile with number `index`. CTAs fill a GPC, which merges requests: neighbours have the
        same weights. Clusters take GPCs by turns: there neighbours have the same columns."""
        c, plan, operands = self.config, self.plan, self.plan.products + 1
        group = self.groups[0]
        for other in self.groups[1:]:
            reached = index >= other[-5]
            group = [select(reached, new, old) for new, old in zip(other, group)]
        first, rows, columns, k, _ = group[-5:]
        tile, batch, row_tiles = index - first, Int32(0), div_up(rows, ROWS * c.cta_group)
        column_tiles = 1 if plan.one_column_tile else div_up(columns, c.column_tile * c.cluster_n)
        if not plan.one_batch:
            tile, batch = mod(tile, row_tiles * column_tiles), div(tile, row_tiles * column_tiles)
        row_tile, column_tile = div(tile, column_tiles), mod(tile, column_tiles)
        if (c.cluster > 1 or c.swap_ab) and not plan.one_column_tile:
            row_tile, column_tile = mod(tile, row_tiles), div(tile, row_tiles)
        row = (row_tile * c.cta_group + self.half) * ROWS
        column = (column_tile * c.cluster_n + self.sharer) * c.column_tile
        # Columns in units of what an MMA takes; a tile beyond the last one computes one unit.
        unit = 8 * c.cta_group
        width = cutlass.min((columns - column + (unit - 1)) & -unit, Int32(c.column_tile))
        width = cutlass.max(width, Int32(unit))
        k_tiles = div_up(k, K_TILE)
        k_begin = div(self.part * k_tiles, c.split_k)
        k_count = div((self.part + 1) * k_tiles, c.split_k) - k_begin
        maps, scales, out = group[: 2 * operands], group[2 * operands : -6], group[-6]
        position = batch, row, column, width, ((column & 127) + width + 127) >> 7
        return Tile(maps, scales, out, rows, columns, *position, k >> 6, k_begin, k_count)

    def within(self, index, count):
        """Whether there is an item `index`, of one at least."""
        return Boolean(True) if index == 0 else count > index

    # ---- load warp -------------------------------------------------------------------------------

    @cute.jit
    def load_warp(self):
        c, plan = self.config, self.plan
        start = self.locate(self.number(Int32(0)))
        # Filled before the cluster meets; the odd CTA of a pair needs the even one's barriers.
        ahead = select(self.half == 0, cutlass.min(start.k_count, self.stages), 0)
        with cute.arch.elect_one():
            self.init_barriers(plan.full_at, plan.stages * plan.products, c.cta_group)
            cute.arch.mbarrier_init_fence()
        self.join(False)
        with cute.arch.elect_one():
            for i in cutlass.range(ahead, unroll=1):
                self.load_stage(start, start.k_begin + i, i, 0, True)
        if const_expr(c.cluster > 1):
            cute.arch.cluster_wait()
        else:
            bar_sync(EMPTY_BARRIER, 64)
        with cute.arch.elect_one():
            stage, phase = advance(ahead - 1, 0, self.stages)
            for i in cutlass.range(self.count, unroll=1):
                t = self.locate(self.number(i))
                for j in cutlass.range(select(i == 0, ahead, 0), t.k_count, unroll=1):
                    self.load_stage(t, t.k_begin + j, stage, phase, False)
                    stage, phase = advance(stage, phase, self.stages)
            if const_expr(self.plan.team > 1):  # commits of other CTAs are on their way
                for _ in cutlass.range(self.stages, unroll=1):
                    for w in range(plan.products):
                        mbarrier_wait(self.barrier(plan.empty_at, stage, w), phase ^ 1)
                    stage, phase = advance(stage, phase, self.stages)
        self.leave()

    @cute.jit
    def load_stage(self, t, k_tile, stage, phase, alone):
        """Fill a stage: expect the bytes of a product, whoever sends them, and send this CTA's. Its
        own operand goes out when its MMAs have read the one before, what two share when both have.

        alone: the first time, without the cluster; else CTAs that share rows take turns (see
        `my_turn`), and a pair's loads complete on the barrier of its even CTA."""
        c, plan, base = self.config, self.plan, self.smem + stage * self.plan.stage_bytes
        pair, sharers = c.cta_group == 2 and not alone, 1 if alone else c.cluster_n
        expect, mask = mbarrier_expect_remote if pair else mbarrier_expect, None
        if const_expr(sharers > 1):
            alike = sum(1 << (i * c.cta_group) for i in range(sharers))
            mask = Int32(alike) << (self.part * self.plan.team + self.half)
        share = div(t.width, c.cta_group)  # of the columns, which this CTA of a pair loads
        boxes, box_bytes = div_up(share, plan.column_box), plan.column_box * K_TILE // 2
        own = plan.row_box * K_TILE // 2 + SCALE_BYTES
        shared = boxes * box_bytes + t.column_atoms * SCALE_BYTES
        own, shared = (shared, own) if c.swap_ab else (own, shared)
        k, k_block = k_tile * K_TILE, k_tile * K_BLOCKS
        for w in cutlass.range_constexpr(plan.products):
            full = self.barrier(plan.full_at, stage, w)
            full = full & EVEN_CTA if pair else full
            if const_expr(not alone and w == 0):
                mbarrier_wait(self.barrier(plan.empty_at, stage, 0), phase ^ 1)
            expect(full, own + shared if w == 0 else own)
            for rows in [not c.swap_ab, c.swap_ab][: 2 - w]:  # its own operand, then the shared
                if const_expr(plan.products == 2 and rows == c.swap_ab and not alone):
                    mbarrier_wait(self.barrier(plan.empty_at, stage, 1), phase ^ 1)
                number = w + (0 if rows else plan.operands[0])
                operand, scales = t.maps[number], t.maps[plan.products + 1 + number]
                if const_expr(rows):
                    if self.my_turn(k_tile + w, sharers):
                        to = base + w * ROW_BYTES
                        tma_load(to, operand, (k, t.row, t.batch), full, pair, mask)
                    if self.my_turn(k_tile + w + 1, sharers):
                        to = base + (plan.row_scales_at + w * SCALE_BYTES)
                        where = 0, k_block, t.atom(t.row, t.rows)
                        tma_load(to, scales, where, full, pair, mask)
                else:
                    for box in cutlass.range_constexpr(plan.cta_columns // plan.column_box):
                        if self.within(box, boxes):
                            to = base + (plan.columns_at + w * plan.column_bytes + box * box_bytes)
                            column = t.column + self.half * share + box * plan.column_box
                            tma_load(to, operand, (k, column, t.batch), full, pair)
                    for i in cutlass.range_constexpr(plan.column_atoms):
                        if self.within(i, t.column_atoms):
                            at = (w * plan.column_atoms + i) * SCALE_BYTES
                            where = 0, k_block, t.atom(t.column + 128 * i, t.columns)
                            to = base + (plan.column_scales_at + at)
                            tma_load(to, scales, where, full, pair)

    def my_turn(self, copy, sharers):
        """Whether this CTA issues copy number `copy` of rows, a multicast to all sharers: they take
        turns, so that each load warp issues, and each SM asks for, an equal part."""
        return Boolean(True) if sharers == 1 else mod(copy, sharers) == self.sharer

    # ---- MMA warp --------------------------------------------------------------------------------

    @cute.jit
    def mma_warp(self):
        c, plan = self.config, self.plan
        space, pair = cute.AddressSpace.smem, c.cta_group == 2
        holder = cute.make_ptr(Int32, self.smem + plan.tmem_address_at, space, assumed_align=8)
        if const_expr(pair):  # allocates in both CTAs, so the other one must run (PTX ISA 9.7.16.7)
            cute.arch.cluster_arrive_relaxed()
            cute.arch.cluster_wait()
        cute.arch.alloc_tmem(plan.tmem_columns, holder, is_two_cta=pair)
        cute.arch.relinquish_tmem_alloc_permit(is_two_cta=pair)
        if const_expr(pair):
            bar_sync(JOIN_BARRIER, plan.threads)
        else:
            self.join(True)
        tmem = ld_shared_b32(self.smem + plan.tmem_address_at)
        count = select(self.half == 0, self.count, 0)  # the even CTA of a pair issues for both
        stage, phase, acc, acc_phase = Int32(0), Int32(0), Int32(0), Int32(0)
        for i in cutlass.range(count, unroll=1):
            t = self.locate(self.number(i))
            stage, phase = self.multiply_tile(t, tmem, acc, acc_phase, stage, phase)
            acc, acc_phase = advance(acc, acc_phase, plan.accumulators)
        self.leave()
        allocated = cute.arch.retrieve_tmem_ptr(Float32, 16, holder)
        cute.arch.dealloc_tmem(allocated, plan.tmem_columns, is_two_cta=pair)

    @cute.jit
    def multiply_tile(self, t, tmem, acc, acc_phase, stage, phase):
        c, plan = self.config, self.plan
        if const_expr(c.persistent):
            mbarrier_wait(self.barrier(plan.acc_empty_at, acc), acc_phase ^ 1)
        both = None if c.cta_group == 1 else Int32(3) << self.rank  # CTAs of a pair
        lead = cutlass.min(t.k_count, Int32(plan.gate_lead))
        body = t.k_count - lead
        where = t, tmem, acc, t.k_begin, body, stage, phase
        stage, phase = self.multiply_k_tiles(*where, list(range(plan.products)))
        if const_expr(plan.gate_lead > 0):
            where = t, tmem, acc, t.k_begin + body, lead, stage, phase
            self.multiply_k_tiles(*where, [0])
            with cute.arch.elect_one():
                tcgen05_commit(c.cta_group, self.barrier(plan.gate_at, acc), both)
            stage, phase = self.multiply_k_tiles(*where, [1])
        with cute.arch.elect_one():
            tcgen05_commit(c.cta_group, self.barrier(plan.acc_full_at, acc), both)
        return stage, phase

    @cute.jit
    def multiply_k_tiles(self, t, tmem, acc, k_begin, k_count, stage, phase, products):
        """Some products of k-tiles; a commit to the load warps that send to this CTA or pair
        releases what each has read, the last one what they share."""
        plan, senders = self.plan, None
        if const_expr(plan.team > 1):
            senders = Int32((1 << plan.team) - 1) << (self.part * plan.team)
        for j in cutlass.range(k_count, unroll=1):
            for w in products:
                mbarrier_wait(self.barrier(plan.full_at, stage, w), phase)
                tcgen05_fence_after()
                with cute.arch.elect_one():
                    self.multiply(t, tmem, acc, k_begin + j, stage, w, w == products[0])
                    empty = self.barrier(plan.empty_at, stage, w)
                    tcgen05_commit(self.config.cta_group, empty, senders)
            stage, phase = advance(stage, phase, self.stages)
        return stage, phase

    @cute.jit
    def multiply(self, t, tmem, acc, k_tile, stage, w, first):
        """The MMAs of a k-tile for product w, each after the scale copies that it needs and that
        no product before it has made. They stand between the MMAs: an MMA waits for all copies
        before it, for 128 clk if they were a whole k-tile's. Beyond K all codes are zeros."""
        c, plan = self.config, self.plan
        r, n = (min(w, operands - 1) for operands in plan.operands)  # of rows and columns
        # Descriptors count 16 bytes and have no room for the rank, bits 24 and up of an address. A
        # K block is 32 bytes of the 128 that a row has.
        smem = Int64(((self.smem & SHARED_OFFSET) + stage * plan.stage_bytes) >> 4)
        operand, scale = smem + OPERAND_DESCRIPTOR, smem + SCALE_DESCRIPTOR
        a = operand + (r * ROW_BYTES >> 4)
        b = operand + (plan.columns_at + n * plan.column_bytes >> 4)
        instruction = (t.width << 14) + (INSTRUCTION | c.cta_group << 27)
        d = tmem + (acc * plan.accumulator_columns + w * c.column_tile)
        scales = tmem + plan.scales_at_column
        accumulate = select(k_tile > t.k_begin, 1, 0)
        for block in range(K_BLOCKS):
            atom = r * K_BLOCKS + block
            row_scale = scales + 4 * atom
            from_atom = scale + (plan.row_scales_at + atom * ATOM_BYTES >> 4)
            if const_expr(first or plan.operands[0] == 2):
                tcgen05_cp(c.cta_group, row_scale, from_atom)
            # Atoms of neighbouring columns stand side by side, as an MMA of N > 128 reads them.
            at = 4 * (n * K_BLOCKS + block) * plan.column_atoms
            column_scale = scales + (plan.column_scale_columns + at)
            if const_expr(first or plan.operands[1] == 2):
                for i in cutlass.range_constexpr(plan.column_atoms):
                    if self.within(i, t.column_atoms):
                        atom = (n * plan.column_atoms + i) * K_BLOCKS + block
                        from_atom = scale + (plan.column_scales_at + atom * ATOM_BYTES >> 4)
                        tcgen05_cp(c.cta_group, column_scale + 4 * i, from_atom)
            column_scale = column_scale + ((t.column & 127) >> 5)  # of the tile's first column
            last = instruction, row_scale, column_scale, accumulate if block == 0 else 1
            tcgen05_mma(c.cta_group, d, a + 2 * block, b + 2 * block, *last)

    # ---- epilogue warps --------------------------------------------------------------------------

    @cute.jit
    def epilogue_warp(self, warp):
        c, plan, number = self.config, self.plan, self.number
        if warp == DESCRIPTOR_WARP:
            self.prefetch_tensormaps(number(Int32(0)))
        if warp == SCALE_WARP:
            with cute.arch.elect_one():
                self.prefetch_scales(self.locate(number(Int32(0))))
        if warp == 0:
            with cute.arch.elect_one():
                self.init_other_barriers()
                if const_expr(c.split_k > 1):
                    self.expect_partials(self.locate(number(Int32(0))))
            if const_expr(c.cluster == 1):
                bar_arrive(EMPTY_BARRIER, 64)  # to the load warp, which does not wait in join
        self.join(True)
        tmem = ld_shared_b32(self.smem + plan.tmem_address_at) + (self.quarter << 21)
        acc, acc_phase = Int32(0), Int32(0)
        for i in cutlass.range(self.count, unroll=1):
            t = self.locate(number(i))
            if const_expr(c.persistent and self.plan.groups > 1):
                if warp == DESCRIPTOR_WARP:
                    self.prefetch_tensormaps(number(cutlass.min(i + 1, self.count - 1)))
            self.finish_tile(t, tmem + acc * plan.accumulator_columns, acc, acc_phase)
            if const_expr(c.persistent):
                if i + plan.accumulators < self.count:
                    tcgen05_fence_before()
                    with cute.arch.elect_one():  # on the even CTA of a pair
                        empty = mapa(self.barrier(plan.acc_empty_at, acc), self.rank & -c.cta_group)
                        mbarrier_arrive_remote(empty)
            acc, acc_phase = advance(acc, acc_phase, plan.accumulators)
        self.leave()

    def prefetch_tensormaps(self, index):
        with cute.arch.elect_one():
            for address in self.locate(index).maps:
                prefetch_tensormap(address)

    def prefetch_scales(self, t):
        """DRAM has something to do while the descriptors, which scales need not, are fetched."""
        blocks = cutlass.min(t.k_count, Int32(self.plan.stages)) * K_BLOCKS
        blocks = cutlass.min(blocks, t.k_blocks - t.k_begin * K_BLOCKS)
        swapped = self.config.swap_ab
        atom = t.atom(t.column, t.columns) if swapped else t.atom(t.row, t.rows)
        first = Int64(atom) * t.k_blocks + t.k_begin * K_BLOCKS
        for scales in t.scales[1:] if swapped else t.scales[:-1]:  # of the weights
            bulk_prefetch(scales + first * ATOM_BYTES, blocks * ATOM_BYTES)

    def init_barriers(self, at, count, arrivals):
        for i in range(count):
            mbarrier_init(self.barrier(at, i), arrivals)

    def init_other_barriers(self):
        """All but full[s][w], where the kernel waits for them."""
        c, plan = self.config, self.plan
        self.init_barriers(plan.empty_at, plan.stages * plan.products, c.cluster_n)
        self.init_barriers(plan.acc_full_at, plan.accumulators, 1)
        self.init_barriers(plan.gate_at, plan.accumulators * (plan.gate_lead > 0), 1)
        arrivals = plan.epilogue_warps * c.cta_group
        self.init_barriers(plan.acc_empty_at, plan.accumulators * c.persistent, arrivals)
        self.init_barriers(plan.partials_at, int(c.split_k > 1), 1)
        cute.arch.mbarrier_init_fence()

    @cute.jit
    def finish_tile(self, t, accumulator, acc, acc_phase):
        c, plan = self.config, self.plan
        own = self.turn * plan.chunk  # the first of its chunks, if the tile has so many
        first = accumulator + select(own < t.width, own, 0)
        if const_expr(plan.gate_lead > 0):
            mbarrier_wait(self.barrier(plan.gate_at, acc), acc_phase)
            tcgen05_fence_after()
            gates = silu(self.read(first, 1)[0])
        mbarrier_wait(self.barrier(plan.acc_full_at, acc), acc_phase)
        tcgen05_fence_after()
        if const_expr(c.split_k > 1):
            self.reduce_split(t, accumulator)
        else:
            if const_expr(plan.gate_lead > 0):
                second = self.read(first + c.column_tile, 1)[0]
                self.store(t, [[g * x for g, x in zip(gates, second)]], own)
            begin = self.turn + min(plan.gate_lead, 1) * plan.turns
            for i in cutlass.range(begin, div_up(t.width, plan.chunk), plan.turns, unroll=1):
                products = self.read(accumulator + i * plan.chunk, plan.products)
                self.store(t, products, i * plan.chunk)

    def read(self, accumulator, products):
        """A chunk of columns of the first products, from this address on."""
        addresses = [accumulator + w * self.config.column_tile for w in range(products)]
        return tcgen05_ld(addresses, self.plan.chunk, self.plan.transposed)

    @cute.jit
    def store(self, t, products, column):
        """Store a chunk: 32 rows of this warp, columns from `column` of the tile on."""
        values = products[0]
        if const_expr(len(products) == 2):
            values = [gate * x for gate, x in zip(silu(values), products[1])]
        lane, half, plan = Int32(cute.arch.lane_idx()), len(values) // 2, self.plan
        swapped, transposed = self.config.swap_ab, plan.transposed
        row = t.row + self.quarter * 32 + ((lane & 1) * 16 if transposed else lane)
        column = t.column + column + (lane >> 1 if transposed else 0)
        left = select(row < t.rows, t.columns - column, 0)
        m, n, step = (row, column, 1) if swapped else (column, row, t.rows)
        sizes = (t.rows, t.columns) if swapped else (t.columns, t.rows)
        to = t.out + ((Int64(t.batch) * sizes[0] + m) * sizes[1] + n) * 2
        if const_expr(plan.wide_stores):
            for f in cutlass.range_constexpr(plan.chunk // 16):
                if const_expr(transposed):
                    # Of columns 16f to 16f + 15: registers of rows 0-15, and of rows 16-31.
                    rows = values[8 * f : 8 * f + 8], values[half + 8 * f : half + 8 * f + 8]
                    words = self.transpose(lane, rows[0] + rows[1])
                else:
                    of_lane = range(16 * f, 16 * f + 16, 2)
                    words = [cvt_f16x2(*values[i : i + 2]) for i in of_lane]
                if left > 16 * f:
                    st_global_v8(to + Int64(step) * (32 * f), *words)
        else:
            for i in cutlass.range_constexpr(plan.chunk):
                if left > i:
                    st_global_b16(to + Int64(step) * (2 * i), cvt_f16(values[i]))

    def transpose(self, lane, values):
        """16 columns x 32 rows through shared memory: each lane gets 16 rows of column lane / 2.
        A column is 64 bytes, four chunks of 8 rows, XORed with bits 1-2 of the column: stmatrix (a
        chunk of 8 columns) and the reads (two chunks of 4 columns) then touch every bank once."""
        base = self.smem + self.plan.staging_at + (self.turn * QUARTERS + self.quarter) * 1024
        column, chunk = lane & 7, lane >> 3
        to = base + column * 64 + ((chunk ^ (column >> 1)) << 4)
        cute.arch.sync_warp()
        for octet in range(2):
            first = [8 * half + 4 * octet + 2 * h for half in range(2) for h in range(2)]
            stmatrix_x4_trans(to + octet * 512, *(cvt_f16x2(*values[i : i + 2]) for i in first))
        cute.arch.sync_warp()
        column, chunk = lane >> 1, (lane & 1) * 2
        line, swizzle = base + column * 64, (column >> 1) & 3
        low = ld_shared_v4(line + ((chunk ^ swizzle) << 4))
        return low + ld_shared_v4(line + (((chunk + 1) ^ swizzle) << 4))

    # ---- K split ---------------------------------------------------------------------------------

    def chunks_of(self, t):
        """Chunks of a tile, and how many this CTA reduces: those of all parts take turns."""
        chunks = div_up(t.width, self.plan.chunk)
        return chunks, div_up(chunks - self.part, self.config.split_k)

    def expect_partials(self, t):
        sent = self.plan.products * QUARTERS * self.plan.part_bytes  # of a chunk, by a CTA
        sent = self.chunks_of(t)[1] * ((self.config.split_k - 1) * sent)
        mbarrier_expect(self.barrier(self.plan.partials_at, 0), sent)

    @cute.jit
    def reduce_split(self, t, accumulator):
        """Send the chunks of the other CTAs of the split to them, add theirs to mine and store.
        A chunk travels as it lies in registers. Its owner adds its own part, then those of the CTAs
        behind it in the split, around to the one before: timing does not change the sum."""
        plan, split_k, lane = self.plan, self.config.split_k, Int32(cute.arch.lane_idx())
        chunks, mine = self.chunks_of(t)
        for i in cutlass.range(chunks, unroll=1):
            if mod(i, split_k) != self.part and mod(div(i, split_k), plan.turns) == self.turn:
                products = self.read(accumulator + i * plan.chunk, self.plan.products)
                self.send(lane, products, i)
        for i in cutlass.range(self.turn, mine, plan.turns, unroll=1):
            column = (i * split_k + self.part) * plan.chunk
            products = self.read(accumulator + column, self.plan.products)
            mbarrier_wait(self.barrier(plan.partials_at, 0), 0)  # after the first: no wait
            for sender, w in itertools.product(range(split_k - 1), range(plan.products)):
                at = self.received_at(sender, i, w) + lane * 16
                quads = [ld_shared_v4_f32(at + n * 128) for n in range(0, plan.chunk, 4)]
                products[w] = [a + b for a, b in zip(products[w], itertools.chain(*quads))]
            self.store(t, products, column)

    def received_at(self, sender, i, w):
        """Where the owner of a chunk, its i-th, has what a warp of a sender sends of it."""
        parts = (sender * self.plan.received_chunks + i) * self.plan.products + w
        parts = parts * QUARTERS + self.quarter
        return self.smem + self.plan.incoming_at + parts * self.plan.part_bytes

    def send(self, lane, products, chunk):
        split_k, plan = self.config.split_k, self.plan
        owner, i = mod(chunk, split_k), div(chunk, split_k)
        rank = self.rank + (owner - self.part) * plan.team
        sender = mod(self.part - owner + (split_k - 1), split_k)  # 0: next behind the owner
        barrier = mapa(self.barrier(plan.partials_at, 0), rank)
        for w, values in enumerate(products):
            to = mapa(self.received_at(sender, i, w), rank) + lane * 16
            for n in range(0, plan.chunk, 4):
                st_async_v4_f32(to + n * 128, *values[n : n + 4], barrier)


# ---- launch --------------------------------------------------------------------------------------


class Words:
    """64-bit integers as one argument of a compiled function, by the DSL's protocol JitArgument."""

    def __init__(self, values):
        self.memory = (ctypes.c_int64 * len(values))(*values)

    def __c_pointers__(self):
        start = ctypes.addressof(self.memory)
        return list(range(start, start + ctypes.sizeof(self.memory), 8))

    def __get_mlir_types__(self):
        return [Int64.mlir_type] * len(self.memory)

    def __new_from_mlir_values__(self, values):
        return [Int64(value) for value in values]


@functools.cache
def compile_kernel(plan: Plan):
    """Kernel.launch for all problems with this plan."""
    words = [0] * plan.groups * (2 * (plan.products + 1) + 6)
    return cute.compile(Kernel(plan).launch, Words(words))


@functools.cache
def kernel_for(problem: Problem, config: Config | None = None):
    """Kernel.launch for a problem, in the configuration that is picked for it, and what are its
    rows and its columns there."""
    config = config or pick(problem)
    return compile_kernel(check(config, problem)), problem.oriented(config.swap_ab)


def launch(problem: Problem, groups: list[dict[str, torch.Tensor]], config: Config | None = None):
    """Compute a problem on the tensors of each group; TypeError or ValueError if one is illegal."""
    kernel, problem = kernel_for(problem, config)
    words, listed = [], zip(problem.groups, operands_of(problem), groups)  # the longest tiles first
    for p, operands, tensors in sorted(listed, key=lambda g: -g[0].k * (ROWS + g[0].columns)):
        words += [operand.address_of(tensors[operand.key]) for operand in operands]
        words += p.rows, p.columns, p.k, p.batch, p.stored
    kernel(Words(words))


def custom_kernel(data: input_t) -> output_t:
    """Compute c of any of the four problems (top of this file) in place, and return it."""
    groups, result = unpack(data)
    launch(problem_of(data, groups), groups)
    return result
