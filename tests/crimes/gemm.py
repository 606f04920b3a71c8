"""Crimes in a small GEMM pipeline: a load warp, an MMA warp, four epilogue warps; and its corrected form.

D (128 x 32, fp32) = A (128 x 64) B^T (32 x 64), fp16, in four k-tiles of 16 through two stages of shared memory.
Operands lie in global memory as they do in shared memory: 16-byte columns of K, rows below each other.
"""

from __future__ import annotations

import torch

from .case import Crime, Source

K_TILES, STAGES = 4, 2
A_BYTES, B_BYTES = 128 * 32, 32 * 32
STAGE = A_BYTES + B_BYTES
FULL, EMPTY, ACC, ACC_EMPTY, SLOT = 0x4000, 0x4010, 0x4020, 0x4028, 0x4040
COLUMNS = 32
IDESC = 1 << 4 | 32 // 8 << 17 | 128 // 16 << 24
PARAMS = ".param .u64 a, .param .u64 b, .param .u64 out"


def descriptor(rows: int) -> int:
    """K-major, no swizzle: 8-row groups 128 bytes apart, the two 16-byte columns rows * 16 apart."""
    return rows * 16 >> 4 << 16 | 128 >> 4 << 32 | 1 << 46


class Options:
    """Switches of the kernel; every crime turns one."""

    def __init__(self, **changed):
        self.full_wait = self.empty_wait = self.acc_wait = True
        self.init_fence = self.init_barrier = self.dealloc = self.commit_last = True
        self.full_parity = self.empty_parity = 0  # added to the right one
        self.expected = STAGE
        self.full_count = self.empty_count = 1
        self.first_accumulates = 0
        self.forget_base = self.forget_lane = self.early_commit = self.again = False
        self.tiles = 1
        self.load_wait = True  # tcgen05.wait::ld before the accumulator is released
        self.loads = K_TILES
        self.release = True
        self.full_fence = self.acc_fence = self.release_fence = True
        self.b_generic = self.b_fence = False
        self.leaves = False
        self.commit_stage = True
        self.a_rows = 128
        self.b_bytes = B_BYTES
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
    k.only(160, lambda: _multiply(k, o))
    k.only(0, lambda: _epilogue(k, o), 127)
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
            k.wait(f"%r1+{EMPTY + 8 * s}", (n + 1 + o.empty_parity) % 2, "wait empty")
        if o.again and i == STAGES:
            k(f"mbarrier.init.shared::cta.b64 [%r1+{FULL}], 1;", "init again")
        copies = [("a", 0, A_BYTES), ("b", A_BYTES, o.b_bytes)][: 1 if o.b_generic else 2]
        expected = A_BYTES if o.b_generic else o.expected
        k(f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1+{FULL + 8 * s}], {expected};", "expect")
        for j, (name, at, size) in enumerate(copies):
            k(f"add.u64 %rd10, %rd{j}, {size * t};")
            k(f"add.u32 %r10, %r1, {s * STAGE + at};")
            k(f"cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r10], [%rd10], {size}, "
              f"[%r1+{FULL + 8 * s}];", f"load {name}")  # fmt: skip


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
        accumulate = o.first_accumulates if first else 1
        k(f"setp.ne.u32 %p5, {accumulate}, 0;")
        k(f"tcgen05.mma.cta_group::1.kind::f16 [{d}], %rd20, %rd22, {IDESC}, %p5;", "mma first" if first else "mma")
        if not o.early_commit and o.commit_stage:
            _commit(k, EMPTY + 8 * s, "commit empty")
        if o.commit_last and i % K_TILES == K_TILES - 1:
            _commit(k, ACC, "commit acc")


def _fill_b(k, o):
    """One thread copies B of every stage with generic loads and stores; both stages hold the same."""
    for s in range(STAGES):
        for chunk in range(B_BYTES // 16):
            k(f"ld.global.v4.b32 {{%r30, %r31, %r32, %r33}}, [%rd1+{16 * chunk}];")
            k(f"st.shared.v4.b32 [%r1+{s * STAGE + A_BYTES + 16 * chunk}], {{%r30, %r31, %r32, %r33}};", "store b")
    if o.b_fence:
        k("fence.proxy.async.shared::cta;")


def _commit(k, at, mark):
    k(f"add.u32 %r12, %r1, {at};")
    k("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r12];", mark)


def _epilogue(k, o):
    registers = ", ".join(f"%r{100 + i}" for i in range(COLUMNS))
    for tile in range(o.tiles):
        if o.acc_wait:
            k.wait(f"%r1+{ACC}", tile % 2, "wait acc")
            if o.acc_fence:
                k("tcgen05.fence::after_thread_sync;")
        k("shr.u32 %r4, %r0, 5;")
        k("shl.b32 %r4, %r4, 21;")
        base = "%r2" if not o.forget_base or tile else "0"
        k(f"add.u32 %r5, {'%r4' if not o.forget_lane else 0}, {base};")
        k(f"tcgen05.ld.sync.aligned.32x32b.x{COLUMNS}.b32 {{{registers}}}, [%r5];", "tmem load")
        if o.load_wait:
            k("tcgen05.wait::ld.sync.aligned;")
        if o.tiles > 1 and o.release:
            if o.release_fence:
                k("tcgen05.fence::before_thread_sync;")
            k(f"mbarrier.arrive.shared::cta.b64 _, [%r1+{ACC_EMPTY}];", "arrive acc_empty")
        k(f"mul.wide.u32 %rd5, %r0, {4 * COLUMNS};")
        k("add.u64 %rd5, %rd5, %rd2;")
        for i in range(0, COLUMNS, 4):
            four = ", ".join(f"%r{100 + i + j}" for j in range(4))
            k(f"st.global.v4.b32 [%rd5+{4 * i}], {{{four}}};", "store")


# --- data -------------------------------------------------------------------------------------------------------


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


def crime(name: str, title: str, kind: str, words, marks, good=None, same_b: bool = False, schedule=None, **bug) -> Crime:
    """A crime of this kernel: the options `good` of the twin, and what the bug changes."""
    good = good or {}

    def make(guilty: bool) -> Source:
        return build(Options(**{**good, **bug} if guilty else good))

    return Crime(name, title, make, kind, tuple(words), tuple(marks), lambda: arguments(same_b), product,
                 schedule=schedule)  # fmt: skip


TWO = {"tiles": 2}
GENERIC = {"b_generic": True, "b_fence": True}
CRIMES = [
    crime("mma_before_load", "the MMA warp does not wait for the loads", "race",
          ("tcgen05.mma reads shared memory before the bulk copy", "MMA warp 5", "load warp 4", "never waited",
           "mbarrier 0 of 6 in a row"),
          ("mma first", "load a"), full_wait=False, schedule="late"),
    crime("load_over_mma", "the load warp does not wait until a stage is free", "race",
          ("the bulk copy writes shared memory while the bulk copy into it is under way", "load warp 4"),
          ("load a",), empty_wait=False),
    crime("commit_before_mma", "tcgen05.commit stands before the MMA it should cover", "race",
          ("overwrites shared memory before the tcgen05.mma", "tcgen05.commit behind tcgen05.mma"),
          ("load a",), early_commit=True),
    crime("full_wait_phase_off", "the MMA warp waits for the wrong parity", "race",
          ("reads shared memory before the bulk copy", "phase off", "parity 1"),
          ("mma first", "load a", "wait full"), full_parity=1, schedule="late"),
    crime("empty_wait_phase_off", "the load warp waits for an empty stage with the parity of a full one", "deadlock",
          ("deadlock", "mbarrier", "nobody has ever arrived"), ("wait empty", "init empty"), empty_parity=1),
    crime("tmem_before_commit", "the epilogue does not wait for the accumulator", "race",
          ("tensor memory", "tcgen05.ld", "MMA warp 5", "epilogue warp"), ("tmem load",), acc_wait=False),
    crime("expect_too_few_bytes", "expect_tx counts only A", "race",
          ("before the bulk copy into it has landed",), ("load b",), expected=A_BYTES),
    crime("expect_too_many_bytes", "expect_tx counts more than the copies bring", "deadlock",
          ("1024 byte(s) missing", "more bytes were announced"), ("wait full", "expect"), expected=STAGE + 1024),
    crime("no_init_fence", "no fence between mbarrier.init and the asynchronous operations", "protocol",
          ("without a fence behind its initialisation", "fence.mbarrier_init"), ("init full",), init_fence=False),
    crime("initialised_again", "a full barrier is initialised again while the MMA warp waits on it", "fault",
          ("mbarrier.init over an mbarrier in use",), ("init again", "init full"), again=True),
    crime("tmem_not_freed", "tcgen05.dealloc is missing", "lifetime",
          ("tensor memory is not deallocated",), ("alloc",), dealloc=False),
    crime("accumulates_at_start", "the first MMA of the tile accumulates", "uninitialised",
          ("tcgen05.mma reads tensor memory that nothing has written", "enable-input-d"), ("mma first",), first_accumulates=1),
    crime("tmem_base_forgotten", "the epilogue reads from column 0, not from the allocated address", "uninitialised",
          ("tcgen05.ld reads tensor memory that nothing has written",), ("tmem load",), tiles=1, good={}, forget_base=True),
    crime("wrong_lane_quarter", "every epilogue warp reads lanes 0 to 31", "fault",
          ("lanes 32 to 63", "(warp % 4) << 21"), ("tmem load",), forget_lane=True),
    crime("full_count_too_high", "a full barrier waits for two arrivals, one comes", "deadlock",
          ("1 of 2 arrival(s) missing", "count of its initialisation is too high"), ("wait full", "init full"), full_count=2),
    crime("missing_commit", "nothing commits the accumulator", "deadlock",
          ("nobody has ever arrived", "tcgen05.commit"), ("wait acc", "init acc"), commit_last=False),
    crime("no_stage_commit", "the MMA warp never gives a stage back", "deadlock",
          ("nobody has ever arrived",), ("wait empty", "init empty"), commit_stage=False),
    crime("expect_without_load", "the load warp stops one k-tile early", "deadlock",
          ("arrival(s) missing",), ("wait full",), loads=K_TILES - 1),
    crime("left_early", "the MMA warp returns before the last barrier", "deadlock",
          ("have exited already: warp 5", "nobody has ever arrived"), ("wait acc",), leaves=True, commit_last=True, good={}),
    crime("no_wait_ld", "the accumulator is released before tcgen05.wait::ld", "race",
          ("overwrites tensor memory before the tcgen05.ld that reads it is complete", "tcgen05.wait::ld"),
          ("mma first", "tmem load"), good=TWO, load_wait=False),
    crime("no_fence_behind_full_wait", "no tcgen05 fence between the wait for the loads and the MMA", "race",
          ("tcgen05.mma is not held back by the wait", "tcgen05.fence::after_thread_sync"), ("mma first", "load a"),
          full_fence=False),
    crime("no_fence_behind_acc_wait", "no tcgen05 fence between the wait for the accumulator and tcgen05.ld", "race",
          ("behind a barrier without tcgen05 fences", "tcgen05.fence::after_thread_sync"), ("tmem load", "mma"),
          acc_fence=False),
    crime("no_fence_before_release", "no tcgen05 fence between tcgen05.ld and the release of the accumulator", "race",
          ("behind a barrier without tcgen05 fences", "tcgen05.fence::before_thread_sync"), ("mma first", "tmem load"),
          good=TWO, release_fence=False),
    crime("accumulator_not_released", "the epilogue never gives the accumulator back", "deadlock",
          ("nobody has ever arrived",), ("wait acc_empty", "init acc_empty"), good=TWO, release=False),
    crime("no_proxy_fence_mma", "B is written by generic stores, with no fence before the MMA reads it", "proxy",
          ("no fence.proxy.async in between",), ("mma first", "store b"), good=GENERIC, same_b=True, b_fence=False),
    crime("descriptor_too_far", "the descriptor of A names rows that are not there", "uninitialised",
          ("tcgen05.mma reads shared memory that nothing has written",), ("mma first",), a_rows=256),
]
