"""Where an output differs from the reference, and which hypotheses reproduce it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from b200 import pictures
from harness.diagnosis import drawing, launched, moved, places, slips  # noqa: F401  registers
from harness.diagnosis.hypotheses import HYPOTHESES
from harness.diagnosis.launched import Launched
from harness.diagnosis.view import Operand, View, operand
from reference import ATOL, RTOL, ref_kernel
from utils import outputs_of, percent

FIRST_LOOK = 48  # wrong elements that a hypothesis is tried on before it is tried on more
SAMPLE = 600  # wrong elements that it must reproduce
TERMS = 2_000_000  # of their sums held at a time, so fewer elements where K is large
WORTH_MORE = 0.3  # share of the first look from which it is tried on all
PARTIAL = 0.5  # share from which it is worth a line though it does not explain all
SHOWN = 4  # hypotheses that explain all
FEW = 4  # elements that many a hypothesis explains by chance


@dataclass(frozen=True)
class Plane:
    """One group: output, truth and what the output held before the call, float32 (M, N, L), where
    they differ, bool, and what the launches did to it.
    """

    index: int
    got: np.ndarray
    want: np.ndarray
    before: np.ndarray
    wrong: np.ndarray
    a: Operand
    b: list[Operand]
    neighbours: list[Any]
    launched: Launched | None

    @property
    def k(self) -> int:
        return 2 * self.a.codes.shape[1]

    def with_random_inputs(self) -> Plane:
        rng = np.random.default_rng(0)
        a, *b = (each.random(rng) for each in (self.a, *self.b))
        near = [(by, x.random(rng), [y.random(rng) for y in ys]) for by, x, ys in self.neighbours]
        before = rng.standard_normal(self.before.shape).astype(np.float32)
        return replace(self, a=a, b=b, neighbours=near, before=before)

    def view(self, places: np.ndarray) -> View:
        """The view of these places, [S, 3]."""
        m, n, l = places.T
        before = self.before[m, n, l].astype(np.float64)
        return View(self.a, self.b, m, n, l, self.want.shape, before, self.neighbours)


def planes(data: tuple[Any, ...], output: Any, launches: Iterable[Any] = ()) -> Iterator[Plane]:
    """The groups of any of the four problems' data; one for all but nvfp4_group_gemm."""
    launches = list(launches)
    truth: Any = ref_kernel(data)
    before = outputs_of(data)
    if not isinstance(data[0], list):
        output, truth = [output], [truth]
    operands = list(_operands(data))
    for i, (a, b) in enumerate(operands):
        near = [(by, *operands[i + by]) for by in (1, -1) if 0 <= i + by < len(operands)]
        old, got, want = (t.float().cpu().numpy() for t in (before[i], output[i], truth[i]))
        with np.errstate(invalid="ignore"):
            wrong = ~(np.abs(got - want) <= ATOL + RTOL * np.abs(want)) & (got != want)
        wrong &= ~(np.isnan(got) & np.isnan(want))
        yield Plane(i, got, want, old, wrong, a, b, near, launched.of(launches, output[i]))


def _operands(data: tuple[Any, ...]) -> Iterator[tuple[Operand, list[Operand]]]:
    """(a, b or both) of each group."""
    if isinstance(data[0], list):
        for (a, b, _), (sfa, sfb), (pa, pb) in zip(*data[:3]):
            yield operand("a", a, sfa, pa), [operand("b", b, sfb, pb)]
        return
    count = (len(data) - 1) // 3  # codes, scales and permuted scales of each
    codes, scales, permuted = (data[i * count : (i + 1) * count] for i in range(3))
    parts = enumerate(zip(codes, scales, permuted))
    a, *b = (operand("b" if i else "a", *tensors) for i, tensors in parts)
    yield a, b


def explain(
    data: tuple[Any, ...],
    output: Any,
    picture: Path | None = None,
    what: str = "",
    launches: Iterable[Any] = (),
    inputs: str = "official",
) -> tuple[bool, str]:
    """(whether the output is right, the report).

    data: as before the call. picture: file for a map of the first wrong group
    (b200.pictures.SUFFIXES). what: the case, for its title. launches: of the call, with their
    stores where they were kept. inputs: the kind of `data`.
    """
    lines: list[str] = []
    for plane in planes(data, output, launches):
        if plane.wrong.any():
            found = _group(plane, inputs)
            if picture is not None:
                found.append(_drawn(plane, picture, what, found))
                picture = None
            lines += found
    return not lines, "\n".join(lines) or "the output is right: nothing to explain"


def _drawn(plane: Plane, path: Path, what: str, found: list[str]) -> str:
    """Draw the map. Returns where it is, or why it is not."""
    try:
        of = f"group {plane.index}, batch {{batch}}: c is {{m}} x {{n}}, K = {plane.k}"
        drawing.draw_map(plane, path, what, "\n".join(found), of)
    except pictures.NoPicture as error:
        return f"no picture: {error}"
    return f"picture: {path}"


def _group(plane: Plane, inputs: str) -> list[str]:
    m, n, l = plane.want.shape
    total = int(plane.wrong.sum())
    share = percent(total, plane.wrong.size)
    lines = [f"group {plane.index} (c is {m} x {n} x {l}): {total:,} elements differ ({share})"]
    return lines + _why(plane, inputs) + places.counts(plane) + places.text_map(plane)


def _why(plane: Plane, inputs: str) -> list[str]:
    """What explains the wrong elements: that nobody stored them, or a hypothesis."""
    lines, left = _never_stored(plane)
    if not left.any():
        return lines
    of = " of the others" if lines else ""
    if plane.launched is not None and not plane.launched.stored.any():
        lines.append("  no launch stored anything to the tensor that custom_kernel returned")
    places = _some(np.argwhere(left), min(SAMPLE, max(64, TERMS // plane.k)))
    scored = _scores(plane, places)
    exact = _alike(plane, places, [found for found in scored if found[1] == 1.0])
    for i, names in enumerate(exact[:SHOWN]):
        said = "; which here is the same as: ".join(names[:2])
        lines.append(f"  {'or' if i else 'explained'}{of}: {said}")
    if len(exact) > SHOWN:
        lines.append(f"  ... and {len(exact) - SHOWN} more")
    if len(exact) > 1:
        lines.append(f"  these inputs cannot tell the {len(exact)} apart; {_other_inputs(inputs)}")
    elif exact and len(places) <= FEW:
        lines.append(f"  {len(places)} element(s) are few to go by: it may be chance")
    if exact:
        return lines
    if where := moved.explain(plane.got, plane.want, left):
        return [*lines, f"  explained{of}: {where}"]
    partial = [found for found in scored if found[1] >= PARTIAL][:3]
    lines += [f"  {100 * share:.0f} %{of} explained: {name}" for name, share, _ in partial]
    if partial:
        return lines
    tried = sum(1 for _ in _all(plane.view(places[:1])))
    gives = f"none of {tried} known mistakes gives {'the others' if of else 'this output'}"
    return [*lines, f"  {gives} (harness/diagnosis/hypotheses.py and slips.py list them)"]


def _other_inputs(inputs: str) -> str:
    if inputs == "official":
        return "`--inputs quantized` has values that can"
    return "another --seed, or a larger case, may"


def _never_stored(plane: Plane) -> tuple[list[str], np.ndarray]:
    """(what to say of wrong elements that no launch has stored, those that are left)."""
    if plane.launched is None:
        return [], plane.wrong
    stored = plane.launched.stored
    if not stored.any():  # torch may have
        return [], plane.wrong
    missing = plane.wrong & ~stored
    if not missing.any():
        return [], plane.wrong
    count = f"{int(missing.sum()):,} of them"
    rows, columns = (places.ranges(missing.sum((1 - axis, 2)) > 0) for axis in (0, 1))
    if (missing == plane.wrong).all():
        count = "all of them"
    where = f"rows {rows}; columns {columns}"
    line = f"  explained: {count} were never stored by any launch ({where})"
    return [line], plane.wrong & stored


def _alike(
    plane: Plane, places: np.ndarray, exact: list[tuple[str, float, bool]]
) -> list[list[str]]:
    """The names of hypotheses, those together that say the same of any inputs of this shape."""
    if not exact:
        return []
    names = {
        name: name if kept else f"{name} (in these elements alone: elsewhere c is right)"
        for name, _, kept in exact
    }
    other = plane.with_random_inputs().view(_some(places, FIRST_LOOK))
    values = {name: value for name, value in _all(other) if name in names}
    groups: list[list[str]] = []
    for name in names:
        same = (g for g in groups if np.array_equal(values[g[0]], values[name], equal_nan=True))
        group = next(same, None)
        if group is None:
            groups.append(group := [])
        group.append(name)
    return [[names[name] for name in group] for group in groups]


def _some(places: np.ndarray, most: int) -> np.ndarray:
    if len(places) <= most:
        return places
    return places[np.random.default_rng(0).choice(len(places), most, replace=False)]


def _all(view: View) -> Iterator[tuple[str, np.ndarray]]:
    for make in HYPOTHESES:
        yield from make(view)


def _scores(plane: Plane, places: np.ndarray) -> list[tuple[str, float, bool]]:
    """(hypothesis, share of the wrong elements that it reproduces, whether it leaves the right ones
    right), best first. Places [S, 3] of wrong elements.
    """
    first = plane.view(_some(places, FIRST_LOOK))
    promising = {
        name: make
        for make in HYPOTHESES
        for name, values in make(first)
        if _share(plane, first, values) >= WORTH_MORE
    }
    view = plane.view(places)
    right = np.argwhere(~plane.wrong)
    at_right = plane.view(_some(right, FIRST_LOOK)) if len(right) else None
    found = []
    for make in dict.fromkeys(promising.values()):
        kept = {n: _share(plane, at_right, v) for n, v in make(at_right)} if at_right else {}
        for name, values in make(view):
            if name in promising:
                found.append((name, _share(plane, view, values), kept.get(name, 1.0) >= PARTIAL))
    return sorted(found, key=lambda each: (-each[1], not each[2]))


def _share(plane: Plane, view: View, values: np.ndarray) -> float:
    """How many of the elements at a view's places the values are, of several any. A value that is
    not finite says little: it counts only beside as many finite ones.
    """
    got = plane.got[view.m, view.n, view.l].astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = values.astype(np.float16).astype(np.float64).reshape(-1, len(got))
        near = np.abs(rounded - got) <= ATOL + RTOL * np.abs(rounded)
    finite = (near & np.isfinite(rounded)).any(0)
    infinite = ((rounded == got) & np.isinf(rounded)).any(0)
    return float((finite | infinite).mean() if finite.sum() >= infinite.sum() else finite.mean())
