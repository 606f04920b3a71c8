"""Instructions against an NVIDIA H200 (driver 580): inputs and results of 32 lanes for each form.

data/h200_instructions.npz: `forms` (JSON: opcode, destination types, source types or immediates),
and the rows of `sources` and `results` in that order, a row an operand, as uint64. sm_90 and sm_100
share these instructions. Operands are random patterns and corner cases within the documented
ranges.
"""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests import DATA as DATA_FOLDER
from tests.b200.chip.isa_support import execute

DATA = dict(np.load(DATA_FOLDER / "h200_instructions.npz"))
FORMS = json.loads(str(DATA["forms"]))

# Largest error in units in the last place, of the hardware's result from the exact one.
# PTX ISA 9.7.3, 9.7.4; our result is exact to half a unit.
ULP = {"rcp": 2, "sqrt": 2, "rsqrt": 3, "ex2": 3, "div": 3, "tanh.f16": 2, "tanh.bf16": 2}
FLOATS = {"f16": np.float16, "f32": np.float32, "f64": np.float64}
NAN_OPEN = ("abs", "neg", "cvt")  # what NaN becomes is open in PTX, or not modelled (payloads)


def rows() -> dict[str, list]:
    """Cases grouped by mnemonic: (opcode, destinations, sources, source rows, result rows)."""
    grouped, i, o = {}, 0, 0
    for opcode, dsts, sources in FORMS:
        n = sum(s.startswith(("b", "p")) for s in sources)
        operands = [s if s.startswith(("b", "p")) else int(s, 0) for s in sources]
        case = (
            opcode,
            dsts,
            operands,
            DATA["sources"][i : i + n],
            DATA["results"][o : o + len(dsts)],
        )
        grouped.setdefault(opcode.split(".")[0], []).append(case)
        i, o = i + n, o + len(dsts)
    return grouped


CASES = rows()


def values(opcode: str, patterns: np.ndarray) -> np.ndarray:
    """Results of a floating-point opcode as float64."""
    kind = next(m for m in opcode.split(".")[1:] if m[0] in "bft" and m[-1].isdigit())
    if kind in ("bf16", "tf32"):
        shift = 16 if kind == "bf16" else 0
        return (patterns << np.uint64(shift)).astype(np.uint32).view(np.float32).astype(np.float64)
    dtype = FLOATS[kind]
    return patterns.astype(f"u{dtype().itemsize}").view(dtype).astype(np.float64)


def close(opcode: str, got: np.ndarray, want: np.ndarray):
    """.approx results agree within the documented error, and in NaN and infinity."""
    op, kind = opcode.split(".")[0], opcode.split(".")[-1]
    x, y = values(opcode, got), values(opcode, want)
    assert np.array_equal(np.isnan(x), np.isnan(y)) and np.array_equal(np.isinf(x), np.isinf(y))
    finite = np.isfinite(x)
    x, y = x[finite], y[finite]
    if op == "lg2":
        error, bound = np.abs(x - y), np.maximum(2.0**-22 * np.abs(y), 2.0**-22)
    elif op == "tanh" and kind == "f32":
        error, bound = np.abs(x - y), 2.0**-10.9 * np.abs(y)
    elif kind == "f64":
        error, bound = np.abs(x - y), 2.0**-20 * np.abs(y)
    else:
        digits = {"f32": 23, "f16": 10, "bf16": 7}[kind]
        least = {"f32": -126, "f16": -14, "bf16": -126}[kind]
        exponent = np.maximum(np.frexp(y)[1] - 1, least)
        error = np.abs(x - y)
        bound = ULP.get(f"{op}.{kind}", ULP.get(op)) * np.ldexp(1.0, exponent - digits)
    assert (error <= bound).all()


@pytest.mark.parametrize("mnemonic", sorted(CASES))
def test_as_measured(mnemonic):
    with np.errstate(all="ignore"):
        for opcode, dsts, sources, operands, want in CASES[mnemonic]:
            got = execute(opcode, dsts, sources, *operands)
            got = np.stack(got) if len(dsts) > 1 else got[None]
            if "approx" in opcode or "full" in opcode:
                close(opcode, got[0], want[0])
                continue
            differ = (got != want).any(0)
            if differ.any() and mnemonic in NAN_OPEN and "f" in opcode:
                differ &= ~has_nan(opcode, sources, operands)
            lane = int(differ.argmax())
            assert not differ.any(), (
                f"{opcode}: {[hex(int(x)) for x in operands[:, lane]]} gives"
                f" {[hex(int(x)) for x in got[:, lane]]}, an H200"
                f" {[hex(int(x)) for x in want[:, lane]]}"
            )


def has_nan(opcode: str, sources: list, operands: np.ndarray) -> np.ndarray:
    """Lanes with a NaN in the (only) source."""
    kind = opcode.split(".")[-1]
    (u,) = operands
    halves = [u & np.uint64(0xFFFF), u >> np.uint64(16)] if kind.endswith("x2") else [u]
    infinity = {"f16": 0x7C00, "bf16": 0x7F80, "f32": 0x7F800000, "f64": 0x7FF << 52}[
        kind.removesuffix("x2")
    ]
    sign = {"f16": 15, "bf16": 15, "f32": 31, "f64": 63}[kind.removesuffix("x2")]
    magnitude = np.uint64((1 << sign) - 1)
    return np.any([(h & magnitude) > infinity for h in halves], axis=0)
