"""More of what a wrong kernel may have computed: the slips of a first NVFP4 kernel."""

from __future__ import annotations

import numpy as np

from harness.diagnosis.hypotheses import Predictions, hypothesis
from harness.diagnosis.view import View, silu

TILE = 128  # rows of a tile, and of an atom of scale factors
# Powers of two, and what a block's scale is made with: the largest e2m1 and e4m3 numbers.
FACTORS = (2, 4, 8, 16, 32, 6, 448, 6 * 448)
SPLITS, EPILOGUE_TILES = (2, 4), (16, 32, 64)


@hypothesis
def exchanged_scales(v: View) -> Predictions:
    yield (
        "SFA and SFB are exchanged: a takes the scale factors of b, b those of a",
        v.value(scales={"a": {"of": "b"}, "b": {"of": "a"}}),
    )
    yield "a takes the scale factors of b, as b does", v.value(scales={"a": {"of": "b"}})
    yield "b takes the scale factors of a, as a does", v.value(scales={"b": {"of": "a"}})
    tiles = {
        "a": {"of": "b", "rows": lambda r: v.n // TILE * TILE + r % TILE},
        "b": {"of": "a", "rows": lambda r: v.m // TILE * TILE + r % TILE},
    }
    each = f"in each tile of {TILE} x {TILE}"
    yield (
        f"SFA and SFB are exchanged {each}: a takes the scale factors of b's tile, b those of a's",
        v.value(scales=tiles),
    )
    yield f"a takes the scale factors of b's tile {each}", v.value(scales={"a": tiles["a"]})
    yield f"b takes the scale factors of a's tile {each}", v.value(scales={"b": tiles["b"]})
    if v.dual:
        (a, b), (first, second) = (v.a, v.b), v.b
        swapped = [
            type(each)(each.name, each.codes, other.scales, other.atoms)
            for each, other in ((first, second), (second, first))
        ]
        for text, operands in (
            ("the scale factors of b1 and b2 are exchanged", swapped),
            ("b2 takes the scale factors of b1", [first, swapped[1]]),
            ("b1 takes the scale factors of b2", [swapped[0], second]),
            ("b1 and b2 are exchanged", b[::-1]),
        ):
            if (other := v.of(a, operands)) is not None:
                yield text, other.value()


@hypothesis
def tiles_of_scales(v: View) -> Predictions:
    """The tile whose scale factors are loaded is not the operand's own."""
    for name, other in (("a", v.n), ("b", v.m)):
        axis = {"a": "n", "b": "m"}[name]
        for text, rows in (
            (f"are those of its first {TILE} rows in each tile", lambda r: r % TILE),
            (
                f"are taken by the tile's index along {axis}, not its own",
                lambda r, o=other: o // TILE * TILE + r % TILE,
            ),
            ("are those of the tile after it", lambda r: r + TILE),
            ("are those of the tile before it", lambda r: np.maximum(r - TILE, r % TILE)),
        ):
            yield f"scale factors of {name} {text}", v.value(scales={name: {"rows": rows}})


@hypothesis
def half_of_k(v: View) -> Predictions:
    terms = [v.terms(w) for w in range(len(v.b))]
    half = terms[0].shape[1] // 2
    text = "the {} half of K alone counts: K is twice a.shape[1], a byte has two elements"
    yield text.format("first"), v.finish([t[:, :half].sum(1) for t in terms])
    yield text.format("second"), v.finish([t[:, half:].sum(1) for t in terms])


@hypothesis
def epilogue(v: View) -> Predictions:
    value = v.value()
    yield "the sign is wrong: the result is negated", -value
    for factor in FACTORS:
        yield f"the result is {factor} times too large", value * factor
        yield f"the result is {factor} times too small", value / factor
    yield "the result is clamped to be positive (relu)", np.maximum(value, 0)
    yield "silu is applied to the result", silu(value)
    if v.dual:
        p1, p2 = (v.terms(w).sum(1) for w in (0, 1))
        yield "the exponent of silu has the wrong sign: p1 / (1 + exp(p1))", silu(-p1) * -p2
        yield "silu of the first product negated", silu(-p1) * p2
        with np.errstate(over="ignore", invalid="ignore"):
            sigmoid = 1 / (1 + np.exp(-np.clip(p1, -700, 700)))
            two = p1 / (1 + np.exp2(-np.clip(p1, -1000, 1000)))
        yield "a sigmoid in the place of silu", sigmoid * p2
        yield "silu with exp2 of the product: log2(e) is missing", two * p2
        yield "relu in the place of silu", np.maximum(p1, 0) * p2
        yield "the sum of silu of the first product and the second", silu(p1) + p2


@hypothesis
def owners_of_a_split(v: View) -> Predictions:
    """Of a K split each part owns epilogue tiles, to which the others send their sums."""
    whole = [v.terms(w) for w in range(len(v.b))]
    k = whole[0].shape[1]
    for axis in (0, 1):
        size, at = v.shape[axis], (v.m, v.n)[axis]
        for tile in EPILOGUE_TILES:
            for by in (tile, -tile):
                sent = v.moved(axis, lambda r, d=by, s=size: np.clip(r + d, 0, s - 1))
                other = [sent.terms(w) for w in range(len(v.b))]
                for parts in SPLITS:
                    if k % parts or size < 2 * tile:
                        continue
                    part = np.arange(k) // (k // parts)
                    own = part == (at // tile % parts)[:, None]
                    sums = [np.where(own, x, y).sum(1) for x, y in zip(whole, other)]
                    what = ("rows", "columns")[axis]
                    yield (
                        f"of a K split in {parts} the other parts' sums are of {what} {by:+d}: they"
                        f" go to the wrong owner (epilogue tiles of {tile})",
                        v.finish(sums),
                    )
