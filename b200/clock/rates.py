"""What instructions cost their sub-core: issue slots and latency of the result, with source.

A slot is one clk in which a sub-core issues nothing else; four sub-cores make an SM, so an
instruction that runs at 128 lanes a clk and SM takes one slot, at 64 lanes two. Grades as in
constants.py; "derived" follows from another line. These are built into the code that a block is
translated to, so they cannot be overridden for a launch as those constants can.

Sources: QRC = ademeure/QuickRunCUDA (B300); AS = AndreSlavescu/flashinfer-competition (B200); SA =
SemiAnalysisAI/microbench-blackwell (B200). H200: b200/hopper/issue_cost.py, docs/hopper.md. SASS:
nvcc 13.0 for sm_100a.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Rate:
    """slots: of the sub-core's issue, clk; latency: clk until the result can be read."""

    name: str
    slots: float
    latency: float
    grade: str
    source: str


TABLE = (
    Rate("nothing", 0, 0, "derived", "moves, parameters and address conversions vanish in SASS"),
    Rate("special register", 1, 12, "unknown", "S2R/S2UR; not published for this chip"),
    # --- arithmetic
    Rate("float", 1, 4, "published", "QRC, AS: FFMA, FADD, FMUL 128 lanes; 4..4.44 clk"),
    Rate(
        "half", 2, 4, "published", "QRC, AS: HFMA2, HADD2, HMUL2 64 lanes, one or two halves each"
    ),
    Rate("integer", 2, 4, "published", "QRC, AS: LOP3, PRMT, SHF, IADD, IMAD 64 lanes; 4 clk"),
    Rate("uniform integer", 1, 4, "unknown", "one issue to the uniform datapath"),
    Rate("integer 64", 4, 6, "derived", "two 32-bit instructions"),
    Rate("predicate", 2, 6, "unknown", "as integer; a predicate is read 2 clk later"),
    Rate("widen", 1, 4, "derived", "cvt between integers of two widths: one move"),
    Rate("f64", 64, 64, "unknown", "two lanes a clk and SM"),
    Rate("divide", 20, 60, "published", "helion's note: ~22 clk against 2 of a product"),
    Rate("divide approximately", 10, 24, "derived", "reciprocal and product"),
    # --- conversions
    Rate("unpack", 2, 4, "published", "QRC: F2FP.UNPACK_B of e2m1x2, e4m3x2: 64 lanes"),
    Rate("pack", 4, 4, "published", "QRC: F2FP packs from f32, one or two: 32 lanes (H200: 64)"),
    Rate("half to float", 2, 5, "published", "SASS HADD2.F32: QRC 64 lanes; H200 2.0 clk, 5"),
    Rate("integer to float", 2, 4, "measured", "SASS I2FP; H200 2.1 clk"),
    Rate("float to integer", 8, 17, "measured", "SASS F2I; H200 8.0 clk, 17"),
    # --- special functions
    Rate("ex2", 4, 17, "published", "QRC: MUFU.EX2 32 lanes, 17 clk"),
    Rate("special function", 8, 17, "published", "QRC: RCP, TANH and others 16 lanes, 17 clk"),
    # --- between lanes, and control
    Rate("shuffle", 4, 24, "published", "QRC, AS: SHFL 32 lanes, 24..26 clk"),
    Rate("vote", 2, 12, "unknown", "a predicate of all lanes to a uniform register"),
    Rate("elect", 2, 2, "fitted", "SA main loop, even rows: 8 elected MMAs in at most 242 clk"),
    Rate("active mask", 1, 8, "unknown", ""),
    Rate("sleep", 40, 0, "unknown", "nanosleep; its argument is a hint"),
    Rate("branch", 1, 1, "derived", "one issue; forward over a few instructions: a predicate"),
    Rate("loop", 1, 6, "published", "QRC: 51 clk a non-unrolled loop against 45 unrolled"),
    Rate("hint", 4, 0, "unknown", "griddepcontrol, prefetch"),
    Rate("issue", 2, 0, "unknown", "any other instruction with state; its unit adds the rest"),
)

_BY_NAME = {r.name: (float(r.slots), float(r.latency)) for r in TABLE}


def rate(name: str) -> tuple[float, float]:
    """(slots, latency) of a line of the table. Raises KeyError."""
    return _BY_NAME[name]
