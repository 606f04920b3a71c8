"""Every number of the timing model, with unit, source and grade.

Grades: "measured" on a B200 with the data or the source at hand; "published" by someone on a B200
or on its sibling B300/GB300, not cross-checked; "fitted" to the data set that `source` names
(b200/clock/calibrations/ fits and reports on different halves); "derived" from what `source` names;
"unknown": no public number, `low` and `high` span what is plausible. The report's range comes from
moving every constant that has a range to its cheap end at once, and to its dear end at once.

Units: "clk" are cycles of the SM clock; the L2 and the crossbar follow it (the L2 round trip of TMA
is 400 clk at 1.965 GHz and at 1.3 GHz alike); DRAM does not, so its share of a latency is in ns.

Sources: SA = SemiAnalysisAI/microbench-blackwell (B200); NCU1 = a Nsight Compute report of a B200
(NVFP4_Kernels); AS = AndreSlavescu/flashinfer-competition (B200); QRC = ademeure/QuickRunCUDA
(B300); GN = gau-nernst/learn-cuda traces (B200); SIG = stephendliang/siglip (B200); C&C =
chips-and-cheese.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace


@dataclass(frozen=True)
class Constant:
    """One number. low is the end of the range that makes kernels faster, high the one that makes
    them slower.
    """

    name: str
    value: float
    unit: str
    grade: str
    source: str
    low: float | None = None
    high: float | None = None


_c = Constant

TABLE = (
    # --- DRAM -----------------------------------------------------------------------------------
    _c("dram_bandwidth", 7.26e12, "B/s", "measured", "SA tma2d_tput: largest of 24 configurations"),
    _c(
        "dram_turn",
        0.4,
        "",
        "measured",
        "H200, rig mixed: where a quarter as much or more is stored as read, a stored byte "
        "costs 1.39 to 1.54 read ones (boxes), 1.24 to 1.36 (loads in one piece); a copy on a B200 "
        "(6.0 to 6.3 TB/s, GN, Dao): 1.30 to 1.42",
    ),
    _c(
        "dram_mixed",
        0.11,
        "",
        "measured",
        "H200, rig mixed: with 1.6 to 6 % of stores beside them reads take 9 to 11 % longer",
    ),
    _c(
        "dram_mixed_from",
        0.008,
        "",
        "measured",
        "H200, rig mixed: with 0.4, 0.8, 1.6 % of stores 4.4, 6.2, 8.7 % longer",
    ),
    _c(
        "dram_extra_ns",
        115.0,
        "ns",
        "fitted",
        "SA tma2d_tput 512 B (900 clk at 1.965 GHz) and SA main loop at "
        "1.3 GHz (+380..468 clk): the part of a DRAM access that does not scale with the SM clock",
    ),
    _c("dram_extra_clk", 95.0, "clk", "fitted", "the same two data sets: the part that scales"),
    _c(
        "dram_jitter",
        160.0,
        "clk",
        "fitted",
        "SA tma_mcast, even rows without sharing: mean of what an access takes longer than the "
        "quickest, seen where many wait for the slowest (SA ldgsts_lat: 376 to 2419 clk)",
    ),
    _c(
        "dram_open",
        160.0,
        "clk",
        "fitted",
        "SA tma2d_tput, even rows: what a channel that stood idle is busy longer for a row that is "
        "not open",
    ),
    _c(
        "dram_rows",
        60,
        "",
        "unknown",
        "rows of dram_grain bytes that a channel has open: HBM3 has 16 banks a pseudo-channel of "
        "32 bits, and 7680 bits are 3.75 of those for each of 64 channels",
        240,
        16,
    ),
    _c("dram_channels", 64, "", "published", "NCU1: 64 channels"),
    _c(
        "dram_grain",
        8192,
        "B",
        "fitted",
        "SA tma2d_tput, even rows: bytes in a row on one channel; the imbalance "
        "this makes is the queueing below saturation",
    ),
    _c(
        "dirty_share",
        0.43,
        "",
        "fitted",
        "of what the L2 holds right behind a memset: what must be written back before another line "
        "takes its place. SA tma2d_lat, 128 KB an SM, an even row; an H200 has 0.5",
        0.3,
        0.6,
    ),
    _c(
        "l2_capacity",
        63e6,
        "B",
        "derived",
        "of lines that both dies read: 126 MB, of which each die has its copy. What that leaves "
        "of a memset is 27 MB; with twice as much gemv v2h of the ladder could not read 132 MB in "
        "23 us",
    ),
    _c(
        "page_walk",
        250.0,
        "clk",
        "fitted",
        "SA ldgsts_lat: cold 1085..1263 clk against 789..900 clk of a DRAM pointer chase (QRC)",
        0.0,
        500.0,
    ),
    _c("page_bytes", 2 << 20, "B", "published", "CUDA: allocations are mapped in 2 MB pages"),
    # --- L2 and crossbar ------------------------------------------------------------------------
    _c(
        "l2_bandwidth",
        20.5e12,
        "B/s",
        "published",
        "TileSight (B200), read; QRC 03_caches (B300): 17.4 with ld.cg, sectors counted, 23 with "
        "more loads under way. SA tma_mcast's 14.2 is the mean of rounds that end in a wait: from "
        "160 to 224 KB a round, groups of 4 and 8 take what is added at 17.7. At 1.965 GHz, scales "
        "with the clock",
        23e12,
        14.2e12,
    ),
    _c(
        "l2_fill",
        1.4,
        "",
        "measured",
        "what a byte from DRAM takes of the L2, in bytes that it delivers. H200, rig sharing: "
        "64 SMs load 100 MB from DRAM in 23 us, in 31 beside 64 that load as much from the L2; "
        "SMs of 1, 2, 4, 8 GPCs that load the same from DRAM take in 4.5, 5.7, 8.4, 9.1 TB/s",
        1.0,
        2.0,
    ),
    _c(
        "port_bandwidth",
        26e12,
        "B/s",
        "unknown",
        "what the ports of all GPCs pass together. On an H200 the port of a GPC is what limits, "
        "whatever other GPCs do; here no less than the highest rate seen of an L2 (QRC, B300)",
        40e12,
        20e12,
    ),
    _c(
        "outside_bandwidth",
        6.7e12,
        "B/s",
        "measured",
        "rows of a box outside of its tensor, by all SMs. H200 (h200-outside.json); flashinfer "
        "04c1b7b9 (GB200), 8192 x 8192 by 1, 16 and 64 tokens in tiles of 128: 5.1 to 6.7",
        8e12,
        5.1e12,
    ),
    _c(
        "store_bandwidth",
        8.5e12,
        "B/s",
        "published",
        "stores of whole sectors: QRC 01_hbm_bandwidth (B300), 8.5 TB/s where the L2 takes them "
        "ahead of DRAM; H200: 4.54 TB/s, 0.43 of what its ports deliver",
        17.4e12,
        6.4e12,
    ),
    _c(
        "store_part",
        1.46,
        "",
        "measured",
        "H200, rig stores: a sector written in part, in whole ones (1.56 TB/s of half sectors)",
    ),
    _c(
        "store_alone",
        1.45,
        "",
        "measured",
        "H200, rig stores: a sector without the other of its 64 bytes, in such that have both "
        "(3.0 against 4.4 TB/s)",
    ),
    _c(
        "store_add",
        3.1,
        "",
        "measured",
        "H200, rig stores: a sector of red.add.v4.f32, in stored ones (1.39 against 4.26 TB/s, "
        "rows or lines); QRC (B300): 50 G atomics a second, one a sector, 96 G sectors of lines",
    ),
    _c(
        "store_sector",
        1.0,
        "clk",
        "measured",
        "H200, rig stores: 64 SMs pass on 32 KB each in 800 clk",
    ),
    _c(
        "store_queue",
        1000,
        "sectors",
        "fitted",
        "H200, rig stores: what an SM has under way when its warps wait",
    ),
    _c(
        "gpc_fill",
        95.0,
        "B/clk",
        "measured",
        "H200, rig ingest: what each SM of a GPC takes in when all do; one alone takes 116",
    ),
    _c(
        "lrc_bytes",
        0.5e6,
        "B",
        "fitted",
        "SA tma_mcast, even rows of groups of 16: sectors filled for a sector of the L2, 2.1 up to "
        "48 KB in flight an SM, 1.6 at 90 KB, 1.2 at 224 KB",
    ),
    _c(
        "lrc_tpc_bytes",
        1.2e6,
        "B",
        "fitted",
        "the same for the two SMs of a TPC: SA tma_mcast, implicit_l2_intra of 2: 2.0 up "
        "to 56 KB in flight an SM, 1.85 at 96 KB, 1.65 at 160 KB",
        1e9,
        0.5e6,
    ),
    _c(
        "lrc_row",
        16,
        "B",
        "unknown",
        "rows of a box that are shorter share no answer. H200: under 128 B; nothing published says "
        "so of a B200",
        16,
        64,
    ),
    _c(
        "port_row",
        16,
        "B",
        "unknown",
        "what a row of a box takes of the port at least. H200: 64; here see lrc_row",
        16,
        64,
    ),
    _c(
        "cpc_bytes",
        1e9,
        "B",
        "unknown",
        "what copies of a CPC's SMs have under way at most. An H200: 500 KB",
        1e9,
        500e3,
    ),
    _c(
        "lrc_beside_multicast",
        1.0,
        "",
        "unknown",
        "share of repeated requests that a GPC would merge if all that is on its way there were "
        "multicasts; fewer are lost, the fewer of the bytes are. An H200: 0.4",
        1.0,
        0.0,
    ),
    _c(
        "port_multicast",
        1.15,
        "",
        "measured",
        "what a multicast takes of a port, in others. H200, rig ingest: 34 and 36 B a clk "
        "each by multicast to 2, all else alone 40",
        1.0,
        1.2,
    ),
    _c(
        "l2_far",
        200.0,
        "clk",
        "published",
        "extra of a hit in the other die's partition: SA article ~300, QRC 385 on B300",
        100.0,
        385.0,
    ),
    _c(
        "fabric_bandwidth",
        8e12,
        "B/s",
        "unknown",
        "die-to-die; NV-HBI is advertised with 10 TB/s for both directions",
        10e12,
        5e12,
    ),
    _c(
        "tma_l2",
        345.0,
        "clk",
        "fitted",
        "SA main loop in the L2, even rows; AS: round trip of a small warm load 190..225 ns "
        "is ~400 clk, less the fill and mbarrier_wake",
    ),
    _c("ldg_l2", 300.0, "clk", "published", "C&C ~150 ns near; QRC 285..360 near"),
    _c(
        "l2_clock",
        1.965e9,
        "Hz",
        "published",
        "the SM clock of the numbers in B/s that scale with it",
    ),
    _c("l1_hit", 39.0, "clk", "published", "C&C: an L1 hit"),
    _c("l2_sector", 32, "B", "measured", "CUDA programming guide; NCU1 sector counters"),
    # --- TMA ------------------------------------------------------------------------------------
    _c(
        "tma_issue",
        58.0,
        "clk",
        "measured",
        "SA main loop: 114..116 clk a 2-copy iteration, 242 with 4, 472 with 8",
    ),
    _c(
        "tma_chunk",
        4096,
        "B",
        "fitted",
        "SA tma2d_lat, 128 KB, even row: what a copy asks for at a time, so that copies mix",
    ),
    _c("bulk_issue", 15.5, "clk", "published", "AS: UBLKCP slope; QRC 16..60", 15.5, 58.0),
    _c("tma_store_issue", 14.0, "clk", "published", "AS: UTMASTG slope"),
    _c("row_clk", 1.01, "clk", "measured", "SA main loop: fill of one row of up to 64 B"),
    _c(
        "row128_clk",
        1.08,
        "clk",
        "measured",
        "SA main loop: fill of one row of 128 B (119..122 B/clk)",
    ),
    _c(
        "descriptor_fetch",
        500.0,
        "clk",
        "published",
        "SA tma2d_lat and AS: first use of a tensormap by an SM, 0.3..0.5 us",
        200.0,
        980.0,
    ),
    _c(
        "descriptor_prefetch",
        48.0,
        "clk",
        "published",
        "QRC, AS: issue of a prefetch.tensormap takes 40..57; what it fetches is there "
        "descriptor_fetch later",
        40.0,
        57.0,
    ),
    _c(
        "multicast_extra",
        120.0,
        "clk",
        "fitted",
        "SA tma_mcast, explicit, even rows: what a multicast adds to a copy's latency; some of it "
        "may be that benchmark's rounds, which come out too fast without multicast as well",
        0.0,
        200.0,
    ),
    _c(
        "bulk_read_smem",
        60.0,
        "clk",
        "published",
        "QRC: a bulk store's source is read after 89 clk (256 B), 209 clk (4 KB)",
    ),
    _c("bulk_read_bytes", 32.0, "B/clk", "published", "the same: 120 clk more for 3840 B more"),
    _c("dsmem", 190.0, "clk", "published", "QRC: ld.shared::cluster 165..215 clk", 165.0, 240.0),
    _c(
        "dsmem_way",
        75.0,
        "clk",
        "measured",
        "H200, rig clusters: a hop from CTA to CTA takes 132..147 clk, of which waking, issue "
        "and the loop are 58 here; a bulk copy of 128 B is seen after 168",
        70.0,
        130.0,
    ),
    _c(
        "dsmem_bytes",
        19.6,
        "B/clk",
        "measured",
        "H200, docs/hopper.md: bulk copies of 16 and 32 KB from each SM into another's shared "
        "memory take 1035 and 1871 clk",
        32.0,
        16.0,
    ),
    # --- tensor core ----------------------------------------------------------------------------
    _c(
        "mma_issue",
        10.0,
        "clk",
        "fitted",
        "SA main loop, even rows of M = 64 and N <= 64: an elected MMA with its "
        "address arithmetic takes its warp at most ~20 clk; QRC 44 in naive loops",
        8.0,
        24.0,
    ),
    _c("mma_floor", 18.0, "clk", "measured", "SA umma_tput: TS cta_group::2 M128"),
    _c("mma_a_ss", 32.0, "clk", "measured", "SA umma_fit: SS cta1 M128 is max(N/2, 32 + N/4)"),
    _c("mma_pair_extra", 1.0, "clk", "measured", "SA umma_fit: SS cta2 M128 is max(N/4, 17 + N/8)"),
    _c(
        "mma_pair256_extra",
        3.0,
        "clk",
        "measured",
        "SA umma_fit: SS cta2 M256 is max(N/2, 35 + N/8)",
    ),
    _c(
        "lat_ts", 104.0, "clk", "measured", "SA umma_lat, formula of even rows: N/2 + this, TS cta1"
    ),
    _c("lat_ss64", 120.0, "clk", "measured", "the same, SS cta1 M64"),
    _c("lat_ss128", 136.0, "clk", "measured", "the same, SS cta1 M128"),
    _c("lat_ts_pair128", 146.0, "clk", "measured", "the same, N/4 + this, TS cta2 M128"),
    _c("lat_ts_pair256", 138.0, "clk", "measured", "the same, N/2 + this, TS cta2 M256"),
    _c("lat_ss_pair128", 162.0, "clk", "measured", "the same, N/4 + this, SS cta2 M128"),
    _c("lat_ss_pair256", 170.0, "clk", "measured", "the same, N/2 + this, SS cta2 M256"),
    _c(
        "lat_loop",
        12.0,
        "clk",
        "fitted",
        "SA umma_lat, even rows: of the latencies above, what the measuring loop takes here",
    ),
    _c(
        "cp_issue",
        4.0,
        "clk",
        "published",
        "beside its address arithmetic. flashinfer 517cca9c (B200): 8 of these and 4 MMAs, 15 and "
        "23 instructions each in SASS, in at most 250 clk; QRC 44..52 clk in a loop whose floor is "
        "44",
        2.0,
        8.0,
    ),
    _c(
        "cp_32x128b",
        16.0,
        "clk",
        "published",
        "flashinfer 517cca9c (B200): 12 of these in front of 384 clk of MMAs in 484 to 500 clk, in "
        "front of 512 in 655. 32 of NCU1, (127.34 - 64) / 2 on the tc pipe, would make them 670 "
        "and 770",
        8.0,
        17.0,
    ),
    _c("cp_bytes", 61.0, "B/clk", "measured", "AS: 128x256b 67..70 clk for 4 KB"),
    _c(
        "cp_latency",
        60.0,
        "clk",
        "published",
        "AS: first copy + commit + wait 168 clk, less transfer and wake",
    ),
    # --- tensor memory --------------------------------------------------------------------------
    _c(
        "tmem_ld",
        38.0,
        "clk",
        "unknown",
        "between the published: QRC (B300) 38.5 clk for .x16 and its wait, alone, 14.4 for "
        "16x256b.x1; SIG (B200) ~200 for .x32 in an epilogue, with what else the warp does",
        7.0,
        130.0,
    ),
    _c(
        "tmem_ld_column",
        2.4,
        "clk",
        "published",
        "QRC: 53 B/clk a warp at .x16: a column of 32 lanes in 2.4 clk; NCU1 16 reads for .x32",
        0.5,
        2.4,
    ),
    _c("tmem_st", 12.4, "clk", "measured", "AS: st.x1 13.0, x4 14.6, x16 21.5, x32 31.5, x64 49.8"),
    _c("tmem_st_column", 0.6, "clk", "measured", "the same"),
    _c("tmem_alloc", 245.0, "clk", "measured", "AS 239..253"),
    _c("tmem_dealloc", 195.0, "clk", "measured", "AS"),
    # --- barriers and fences --------------------------------------------------------------------
    _c("mbarrier_arrive", 8.0, "clk", "published", "QRC 8.1"),
    _c("mbarrier_init", 9.5, "clk", "published", "QRC"),
    _c("mbarrier_try", 8.0, "clk", "published", "QRC 6..10 on a ready phase"),
    _c("mbarrier_wake", 40.0, "clk", "published", "AS: arrive + try_wait 52..54 clk", 25.0, 75.0),
    _c(
        "mbarrier_asleep",
        40.0,
        "clk",
        "unknown",
        "from the last arrive until a warp goes on that had been waiting for it; 67 on an H200",
        40.0,
        67.0,
    ),
    _c(
        "mbarrier_asleep_parted",
        40.0,
        "clk",
        "unknown",
        "the same for lanes that a branch has parted from others of their warp; 137 on an H200",
        40.0,
        137.0,
    ),
    _c(
        "arrive_parted",
        0.0,
        "clk",
        "unknown",
        "what lanes parted by a branch meet the others of their warp later if they have arrived at "
        "another CTA's barrier; 56 on an H200",
        58.0,
        0.0,
    ),
    _c("bar_base", 22.0, "clk", "measured", "AS, QRC: __syncthreads 22 + 2 a warp"),
    _c("bar_warp", 2.0, "clk", "measured", "the same"),
    _c(
        "cluster_sync",
        80.0,
        "clk",
        "published",
        "QRC: 102 relaxed, 370..395 with the fence of a release; H200: 121..148, 390..425",
        80.0,
        120.0,
    ),
    _c("fence_async", 20.0, "clk", "published", "AS, QRC: fence.proxy.async 10.8..36", 10.8, 36.0),
    _c("fence_gpu", 290.0, "clk", "published", "QRC: __threadfence 264..320; H200: 275"),
    _c(
        "fence_asked",
        215.0,
        "clk",
        "measured",
        "H200, docs/hopper.md: a fence after any access of the SM takes 489 instead of 275",
        150.0,
        300.0,
    ),
    _c("fence_line", 1.05, "clk", "measured", "the same: 498 after 1 KB, 516 after 4, 619 at 16"),
    _c("fence_lines", 150.0, "lines", "measured", "the same: 646 after 32 KB, 676 after 64"),
    _c("fence_cta", 4.0, "clk", "published", "AS: tcgen05.fence 2.8, fence.mbarrier_init 2.1"),
    _c("setmaxnreg", 40.0, "clk", "published", "QRC 23..73", 23.0, 73.0),
    # --- LSU, shared memory, arithmetic ---------------------------------------------------------
    _c("smem_load", 29.0, "clk", "published", "QRC 24..29"),
    _c("lsu_queue", 64.0, "clk", "unknown", "shared stores the LSU takes ahead", 256.0, 16.0),
    _c("l1_bytes", 1 << 17, "B", "unknown", "256 KB less shared memory", 192 << 10, 32 << 10),
    _c("shared_atomic", 2.0, "", "unknown", "atomic in loads: read and write", 1.0, 4.0),
    # --- launch ---------------------------------------------------------------------------------
    _c(
        "event_floor_us",
        4.2,
        "us",
        "published",
        "two events around an empty kernel (leaderboard hosts)",
        3.6,
        4.8,
    ),
    _c(
        "launch_gap_us",
        1.87,
        "us",
        "derived",
        "end of a kernel to the start of the next one in the queue: 1.2 in a graph (published), "
        "and 0.67 more where calls come from a queue (H200, rig launch: 1.45 to 1.61 us a "
        "kernel that does nothing, 0.74 to 0.95 in a graph)",
        1.2,
        2.2,
    ),
    _c(
        "cta_start_us",
        0.3,
        "us",
        "fitted",
        "GN traces: set-up takes 0.58..0.67 us in the kernel, of which barriers, "
        "TMEM and cluster sync are ~0.36; the rest is cold instruction and parameter fetch",
        0.1,
        0.6,
    ),
    _c("cta_dispatch_ns", 0.52, "ns", "published", "QRC: a CTA after the other"),
    _c(
        "cta_relaunch",
        400.0,
        "clk",
        "unknown",
        "a CTA's exit to the next CTA's first instruction on the same SM; H200: 407 where a CTA "
        "fills an SM (rig memory), 436 to 450 of the same with 4 to 16 CTAs an SM",
        150.0,
        1000.0,
    ),
    _c(
        "cluster_relaunch",
        590.0,
        "clk",
        "measured",
        "the same of a cluster. H200, rig clusters, turnover: 611 to 635 where clusters of 2, 4 "
        "and 8 end all at once, 563 to 582 one after the other, 27 of them the loop; CTAs 437, 426",
    ),
    _c(
        "store_drain",
        600.0,
        "clk",
        "unknown",
        "the last store to the end of the kernel (acknowledged by the L2)",
        300.0,
        900.0,
    ),
)

BY_NAME = {c.name: c for c in TABLE}


class Constants(SimpleNamespace):
    """The values as attributes. end: "nominal", "low" (every range at its fast end) or "high"."""

    @classmethod
    def make(cls, end: str = "nominal", **overrides: float) -> Constants:
        """Raises KeyError for an override that is not in the table."""
        values = {}
        for c in TABLE:
            ranged = {"low": c.low, "high": c.high}.get(end)
            values[c.name] = c.value if ranged is None else ranged
        for name, value in overrides.items():
            values[BY_NAME[name].name] = value
        return cls(**values)
