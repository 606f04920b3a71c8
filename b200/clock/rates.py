"""The costs of instructions on their sub-core: issue slots, pipes, latency of the result; sources.

An SM has four sub-cores; each issues one instruction a clk. An issued instruction enters a pipe. An
instruction that runs at 64 lanes a clk and SM takes its pipe two clk; meanwhile others may be
issued to other pipes. The grades are those of constants.toml; "derived" follows from another line.
These numbers are built into the code that a block is translated to, so a launch cannot override
them as it can override the constants.

Sources: QRC = ademeure/QuickRunCUDA (B300), pipes: ULTRA_DENSE_B300_PIPE_CATALOG.md, sections 3, 4
and 6; AS = AndreSlavescu/flashinfer-competition (B200); SA = SemiAnalysisAI/microbench-blackwell
(B200). H200: lab/h200/issue_cost.py, docs/lab/hopper.md. SASS: nvcc 13.0 for sm_100a.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# The issue port of a sub-core and its pipes, by Nsight Compute's names; "fma" is both its halves.
PIPES = ("issue", "alu", "fma", "xu", "lsu", "fp64")
# What ptxas gives to "alu" or "fma", whichever has less to do: SASS has IADD3 and IMAD.IADD,
# IADD3.X and IMAD.X, SHF.L and IMAD.SHL, MOV and IMAD.MOV; QRC: 128 lanes of add.u32, two to one.
EITHER = "either"


@dataclass(frozen=True)
class Rate:
    """The cost of an instruction. issues: its number of instructions in SASS. takes: clk that it
    takes its pipes. latency: clk from its issue to that of an instruction that reads the result.
    """

    name: str
    issues: float
    takes: Mapping[str, float]
    latency: float
    grade: str
    source: str


ALU, FMA, ANY = {"alu": 2}, {"fma": 2}, {EITHER: 2}
TABLE = (
    Rate("nothing", 0, {}, 0, "derived", "moves, parameters and address conversions vanish"),
    Rate("special register", 1, {}, 12, "unknown", "S2R/S2UR; not published for this chip"),
    # --- arithmetic
    Rate("float", 1, {"fma": 1}, 4, "published", "QRC, AS: FFMA, FADD, FMUL 128 lanes"),
    Rate("packed float", 1, FMA, 4, "published", "QRC: FFMA2 64 lanes"),
    Rate("half", 1, FMA, 4, "published", "QRC, AS: HFMA2, HADD2, HMUL2 64 lanes, 1 or 2 halves"),
    Rate("integer", 1, ALU, 4, "published", "QRC, AS: LOP3, PRMT, SHF, SEL, FMNMX 64 lanes"),
    Rate("add", 1, ANY, 4, "published", "QRC: IADD3, IMAD.IADD, IMAD.SHL 64 lanes each"),
    Rate("multiply", 1, FMA, 4, "published", "QRC: IMAD, IMAD.WIDE 64 lanes"),
    Rate("multiply high", 1, {"fma": 4}, 13, "published", "QRC: IMAD.HI 32 lanes, 13 clk"),
    Rate("uniform integer", 1, {}, 4, "unknown", "one issue to the uniform datapath"),
    Rate("integer 64", 2, {"alu": 4}, 6, "derived", "two LOP3 or the like"),
    Rate("add 64", 2, {EITHER: 4}, 6, "published", "QRC: IADD3, IMAD.X, 6 clk"),
    Rate("multiply 64", 5, {"fma": 4, "alu": 6}, 12, "published", "QRC: 2 IMAD, 3 IADD3"),
    Rate("predicate", 1, ALU, 6, "unknown", "ISETP; a predicate is read 2 clk later"),
    Rate("widen", 1, ANY, 4, "derived", "cvt between integers of two widths: one move"),
    Rate("f64", 1, {"fp64": 64}, 64, "published", "QRC: DFMA 2 lanes, 64 clk"),
    Rate("divide", 20, {}, 60, "published", "helion's note: ~22 clk against 2 of a product"),
    Rate("divide approximately", 2, {"xu": 8, "fma": 1}, 24, "derived", "reciprocal, product"),
    # --- conversions
    Rate("unpack", 1, ALU, 4, "published", "QRC: F2FP.UNPACK_B of e2m1x2, e4m3x2: 64 lanes"),
    Rate("pack", 1, {"alu": 4}, 4, "published", "QRC: F2FP packs from f32: 32 lanes (H200: 64)"),
    Rate("half to float", 1, FMA, 5, "published", "SASS HADD2.F32: QRC 64 lanes; H200 2.0 clk, 5"),
    Rate("integer to float", 1, ALU, 4, "measured", "SASS I2FP; H200 2.1 clk; QRC alu"),
    Rate("float to integer", 1, {"xu": 8}, 17, "measured", "SASS F2I; H200 8.0 clk, 17"),
    # --- special functions
    Rate("ex2", 1, {"xu": 4}, 17, "published", "QRC: MUFU.EX2 32 lanes, 17 clk"),
    Rate("special function", 1, {"xu": 8}, 17, "published", "QRC: RCP, TANH... 16 lanes, 17 clk"),
    # --- between lanes, and control
    Rate("shuffle", 1, {"lsu": 4}, 24, "published", "QRC, AS: SHFL 32 lanes, 24..26 clk"),
    Rate("vote", 1, ALU, 12, "unknown", "a predicate of all lanes to a uniform register"),
    Rate("elect", 2, {}, 4, "fitted", "SA main loop, even rows: 8 elected MMAs in at most 242 clk"),
    Rate("active mask", 1, {}, 8, "unknown", ""),
    Rate("sleep", 40, {}, 0, "unknown", "nanosleep; its argument is a hint"),
    Rate("branch", 1, {}, 1, "derived", "one issue; forward over a few instructions: a predicate"),
    Rate("loop", 1, {}, 6, "published", "QRC: 51 clk a non-unrolled loop against 45 unrolled"),
    Rate("hint", 4, {}, 0, "unknown", "griddepcontrol, prefetch"),
    Rate("fill", 2, {}, 0, "unknown", "st.bulk, as issue; wait.py adds what it fills"),
    Rate("issue", 2, {}, 0, "unknown", "any other instruction with state; its unit adds the rest"),
)

_BY_NAME = {r.name: r for r in TABLE}


def rate(name: str) -> Rate:
    """A line of the table. Raises KeyError."""
    return _BY_NAME[name]
