"""A small GEMM pipeline with switches for bugs: a load warp, an MMA warp, four epilogue warps.

D (128 x 32, fp32) = A (128 x 64) B^T (32 x 64), fp16, in four k-tiles of 16 through two stages of
shared memory. Operands lie in global memory as they do in shared memory: 16-byte columns of K, rows
below each other.
"""

from __future__ import annotations

import torch

from tests.planted_bugs.case import Source

K_TILES, STAGES = 4, 2
A_BYTES, B_BYTES = 128 * 32, 32 * 32
STAGE = A_BYTES + B_BYTES
FULL, EMPTY, ACC, ACC_EMPTY, SLOT = 0x4000, 0x4010, 0x4020, 0x4028, 0x4040
COLUMNS = 32
IDESC = 1 << 4 | 128 // 16 << 24
PARAMS = ".param .u64 a, .param .u64 b, .param .u64 out"


def descriptor(rows: int) -> int:
    """K-major, no swizzle: groups of 8 rows 128 bytes apart, 16-byte columns rows * 16 apart."""
    return rows * 16 >> 4 << 16 | 128 >> 4 << 32 | 1 << 46


class Options:
    """Switches of the kernel; every planted bug turns one."""

    def __init__(self, **changed):
        self.full_wait = self.empty_wait = self.acc_wait = True
        self.init_fence = self.init_barrier = self.dealloc = self.commit_last = True
        self.full_parity = self.empty_parity = 0  # added to the right one
        self.empty_flips = True  # the parity that the load warp waits for; else it is always 1
        self.expected = STAGE
        self.full_count = self.empty_count = 1
        self.first_accumulates = 0
        self.later_accumulates = 0  # the first MMA of the tiles after the first
        self.columns = COLUMNS  # that the epilogue reads and stores
        self.forget_base = self.forget_lane = self.early_commit = self.again = False
        self.tiles = 1
        self.load_wait = True  # tcgen05.wait::ld before the accumulator is released
        self.loads = K_TILES
        self.release = True
        self.full_fence = self.acc_fence = self.release_fence = True
        self.b_generic = self.b_fence = False
        self.leaves = False
        self.last_barrier = True  # between the epilogue and tcgen05.dealloc
        self.relaxed_last = False  # it is the cluster's, with a relaxed arrive
        self.commit_stage = True
        self.a_rows = 128
        self.b_bytes = B_BYTES
        self.n = COLUMNS  # of the instruction descriptor
        self.mma_lanes = 1  # that issue the MMAs and their commits
        self.tail = A_BYTES  # bytes of A that the load of the last k-tile brings
        for name, value in changed.items():
            assert hasattr(self, name), name
            setattr(self, name, value)


def build(o: Options) -> Source:
    k = Source(PARAMS, threads=192)
    k("mov.u32 %r0, %tid.x;")
    k("mov.u32 %r1, dyn;")
    for i, name in enumerate(("a", "b", "out")):
        k(f"ld.param.u64 %rd{i}, [{name}];")
    k.only(128, lambda: _init(k, o))
    k.only(0, lambda: _alloc(k, o), 31)
    if o.init_barrier:
        k("bar.sync 0;")
    k("ld.shared.b32 %r2, [%r1+" + str(SLOT) + "];" if o.init_barrier else "mov.u32 %r2, 0;")
    if o.leaves:
        k("setp.ge.u32 %p4, %r0, 160;")
        k("@%p4 ret;", "leave")
    k.only(128, lambda: _load(k, o))
    k.only(160, lambda: _multiply(k, o), 159 + o.mma_lanes)
    k.only(0, lambda: _epilogue(k, o), 127)
    if o.relaxed_last:
        k("barrier.cluster.arrive.relaxed.aligned;")
        k("barrier.cluster.wait.aligned;")
    elif o.last_barrier:
        k("bar.sync 1, 192;", "last barrier")
    if o.dealloc:
        k.only(0, lambda: _dealloc(k, o), 31)
    return k


def _init(k, o):
    for s in range(STAGES):
        k(f"mbarrier.init.shared::cta.b64 [%r1+{FULL + 8 * s}], {o.full_count};", "init full")
        k(f"mbarrier.init.shared::cta.b64 [%r1+{EMPTY + 8 * s}], {o.empty_count};", "init empty")
    k(f"mbarrier.init.shared::cta.b64 [%r1+{ACC}], 1;", "init acc")
    k(f"mbarrier.init.shared::cta.b64 [%r1+{ACC_EMPTY}], 128;", "init acc_empty")
    if o.init_fence:
        k("fence.mbarrier_init.release.cluster;")


def _alloc(k, o):
    if o.forget_base:
        k(f"tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1+{SLOT + 4}], {COLUMNS};")
    k(f"tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1+{SLOT}], {COLUMNS};", "alloc")


def _dealloc(k, o):
    k(f"tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r2, {COLUMNS};", "dealloc")
    if o.forget_base:
        k(f"ld.shared.b32 %r3, [%r1+{SLOT + 4}];")
        k(f"tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r3, {COLUMNS};")


def _load(k, o):
    for i in range(o.loads * o.tiles):
        s, n, t = i % STAGES, i // STAGES, i % K_TILES
        if o.empty_wait:
            parity = (n + 1 + o.empty_parity) % 2 if o.empty_flips else 1
            k.wait(f"%r1+{EMPTY + 8 * s}", parity, "wait empty")
        if o.again and i == STAGES:
            k(f"mbarrier.init.shared::cta.b64 [%r1+{FULL}], 1;", "init again")
        copies = [("a", 0, A_BYTES), ("b", A_BYTES, o.b_bytes)][: 1 if o.b_generic else 2]
        if t == K_TILES - 1:
            copies[0] = ("a", 0, o.tail)
        expected = (A_BYTES if o.b_generic else o.expected) - A_BYTES + copies[0][2]
        k(
            f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1+{FULL + 8 * s}], {expected};",
            "expect",
        )
        for j, (name, at, size) in enumerate(copies):
            k(f"add.u64 %rd10, %rd{j}, {(A_BYTES if name == 'a' else size) * t};")
            k(f"add.u32 %r10, %r1, {s * STAGE + at};")
            k(
                "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r10], [%rd10], "
                f"{size}, "
                f"[%r1+{FULL + 8 * s}];",
                f"load {name}",
            )


def _multiply(k, o):
    d = "%r2"
    if o.b_generic:
        _fill_b(k, o)
    for i in range(K_TILES * o.tiles):
        s, n = i % STAGES, i // STAGES
        if o.tiles > 1 and i % K_TILES == 0:
            k.wait(f"%r1+{ACC_EMPTY}", (i // K_TILES + 1) % 2, "wait acc_empty")
        if o.full_wait:
            k.wait(f"%r1+{FULL + 8 * s}", (n + o.full_parity) % 2, "wait full")
        if o.full_fence:
            k("tcgen05.fence::after_thread_sync;")
        if o.early_commit:
            _commit(k, EMPTY + 8 * s, "commit empty")
        for rows, at, r in ((o.a_rows, 0, 20), (32, A_BYTES, 22)):
            k(f"add.u32 %r11, %r1, {s * STAGE + at};")
            k("shr.u32 %r11, %r11, 4;")
            k("cvt.u64.u32 %rd11, %r11;")
            k(f"or.b64 %rd{r}, %rd11, {descriptor(rows)};")
        first = i % K_TILES == 0
        starts = o.later_accumulates if i else o.first_accumulates
        accumulate = starts if first else 1
        k(f"setp.ne.u32 %p5, {accumulate}, 0;")
        k(
            f"tcgen05.mma.cta_group::1.kind::f16 [{d}], %rd20, %rd22, {IDESC | o.n // 8 << 17}, %p5;",
            "mma first" if first else "mma",
        )
        if not o.early_commit and o.commit_stage:
            _commit(k, EMPTY + 8 * s, "commit empty")
        if o.commit_last and i % K_TILES == K_TILES - 1:
            _commit(k, ACC, "commit acc")


def _fill_b(k, o):
    """One thread copies B of every stage by generic loads and stores; stages are alike."""
    for s in range(STAGES):
        for chunk in range(B_BYTES // 16):
            k(f"ld.global.v4.b32 {{%r30, %r31, %r32, %r33}}, [%rd1+{16 * chunk}];")
            k(
                f"st.shared.v4.b32 [%r1+{s * STAGE + A_BYTES + 16 * chunk}], "
                f"{{%r30, %r31, %r32, %r33}};",
                "store b",
            )
    if o.b_fence:
        k("fence.proxy.async.shared::cta;")


def _commit(k, at, mark):
    k(f"add.u32 %r12, %r1, {at};")
    k("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r12];", mark)


def _epilogue(k, o):
    registers = ", ".join(f"%r{100 + i}" for i in range(o.columns))
    for tile in range(o.tiles):
        if o.acc_wait:
            k.wait(f"%r1+{ACC}", tile % 2, "wait acc")
            if o.acc_fence:
                k("tcgen05.fence::after_thread_sync;")
        k("shr.u32 %r4, %r0, 5;")
        k("shl.b32 %r4, %r4, 21;")
        base = "%r2" if not o.forget_base or tile else "0"
        k(f"add.u32 %r5, {'%r4' if not o.forget_lane else 0}, {base};")
        k(f"tcgen05.ld.sync.aligned.32x32b.x{o.columns}.b32 {{{registers}}}, [%r5];", "tmem load")
        if o.load_wait:
            k("tcgen05.wait::ld.sync.aligned;")
        if o.tiles > 1 and o.release:
            if o.release_fence:
                k("tcgen05.fence::before_thread_sync;")
            k(f"mbarrier.arrive.shared::cta.b64 _, [%r1+{ACC_EMPTY}];", "arrive acc_empty")
        k(f"mul.wide.u32 %rd5, %r0, {4 * COLUMNS};")
        k("add.u64 %rd5, %rd5, %rd2;")
        for i in range(0, o.columns, 4):
            four = ", ".join(f"%r{100 + i + j}" for j in range(4))
            k(f"st.global.v4.b32 [%rd5+{4 * i}], {{{four}}};", "store")


# --- data ---------------------------------------------------------------------------------------


def _tiles(x: torch.Tensor) -> torch.Tensor:
    """[rows, 64] -> k-tiles as they lie in shared memory: [k-tile][16-byte column][row][8]."""
    rows = x.shape[0]
    return x.reshape(rows, K_TILES, 2, 8).permute(1, 2, 0, 3).contiguous()


def arguments(same_b: bool = False) -> list:
    generator = torch.Generator().manual_seed(1)
    a = torch.randint(-4, 5, (128, 64), generator=generator).half()
    b = torch.randint(-4, 5, (32, 64), generator=generator).half()
    if same_b:
        b = b[:, :16].repeat(1, K_TILES)
    return [_tiles(a), _tiles(b), torch.zeros(128, COLUMNS)]


def product(args: list) -> torch.Tensor:
    """The exact result: integers far below 2^24."""
    a, b = (x.permute(2, 0, 1, 3).reshape(x.shape[2], -1).double() for x in args[:2])
    return (a @ b.T).float()
