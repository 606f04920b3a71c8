"""Where the outputs of a problem of one's own differ from the reference, and what gives them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from b200 import pictures
from harness.diagnosis import drawing, launched, moved, places
from harness.diagnosis.launched import Launched
from harness.own import mistakes
from harness.own.problem import Truth, Values, as_tuple
from utils import percent

SHOWN = 4  # explanations
BUDGET = 60.0  # seconds of references of other inputs
PARTIAL = 0.5  # share of the wrong elements from which an explanation is worth a line
LEFT_RIGHT = 0.5  # share of the right elements that an explanation must leave right


@dataclass(frozen=True)
class Map:
    """One value as a matrix [rows, columns, 1]: all axes but the last are rows."""

    name: str
    got: np.ndarray
    want: np.ndarray
    wrong: np.ndarray
    launched: Launched | None


def explain(
    truth: Truth,
    data: tuple[Any, ...],
    output: Any,
    launches: Iterable[Any] = (),
    picture: Path | None = None,
    what: str = "",
) -> tuple[bool, str]:
    """(whether the output is right, the report). data: as before the call. picture: a file for a
    map of the first wrong value. what: the case, for its title.
    """
    outputs, wanted = as_tuple(output), truth.wanted(data)
    right, message = truth.check(data, output)
    if right:
        return True, "the output is right: nothing to explain"
    if message.partition(":")[0] not in truth.values(wanted):
        return False, message  # no tensors that can be compared
    got, want = truth.values(outputs), truth.values(wanted)
    direct = {id(x): x for x in outputs}
    lines: list[str] = []
    for name in want:
        wrong = truth.wrong(name, got[name], want[name])
        if wrong.any():
            record = _record(list(launches), direct.get(id(got[name])))
            shown = _map(name, got[name], want[name], wrong, record)
            lines += _told(shown)
            if picture is not None:
                lines.append(_drawn(shown, picture, what))
                picture = None
    return False, "\n".join([*lines, *_why(truth, data, got, want)])


def _record(launches: list[Any], output: torch.Tensor | None) -> Launched | None:
    """What the launches stored to an output that is compared as it is."""
    if output is None or not output.is_contiguous() or output.dim() == 0:
        return None
    return launched.of(launches, output.view(-1, output.shape[-1], 1))


def _map(
    name: str, got: torch.Tensor, want: torch.Tensor, wrong: torch.Tensor, record: Launched | None
) -> Map:
    columns = want.shape[-1] if want.dim() else 1
    x, y = (t.float().reshape(-1, columns, 1).numpy() for t in (got, want))
    return Map(name, x, y, wrong.reshape(-1, columns, 1).numpy(), record)


def _told(shown: Map) -> list[str]:
    rows, columns, _ = shown.want.shape
    total = int(shown.wrong.sum())
    share = percent(total, shown.wrong.size)
    lines = [f"{shown.name} ({rows} x {columns}): {total:,} elements differ ({share})"]
    if shown.launched is not None and shown.launched.stored.any():
        missing = shown.wrong & ~shown.launched.stored
        if missing.any():
            count = "all of them" if (missing == shown.wrong).all() else f"{missing.sum():,}"
            where = (places.ranges(missing.sum((1 - axis, 2)) > 0) for axis in (0, 1))
            lines.append(f"  {count} were never stored by any launch (rows, columns: "
                         f"{'; '.join(where)})")  # fmt: skip
    if found := moved.explain(shown.got, shown.want, shown.wrong):
        lines.append(f"  explained: {found.replace(' of c ', f' of {shown.name} ')}")
    return lines + places.counts(shown) + places.text_map(shown)


def _drawn(shown: Map, path: Path, what: str) -> str:
    try:
        drawing.draw_map(shown, path, what, shown.name, f"{shown.name} is {{m}} x {{n}}")
    except pictures.NoPicture as error:
        return f"no picture: {error}"
    return f"picture: {path}"


def _why(truth: Truth, data: tuple[Any, ...], got: Values, want: Values) -> list[str]:
    """The mistakes that give the outputs as they are; else what lines have in common; else those
    that give a part.
    """
    shares = [(text, _share(truth, v, got, want)) for text, v in _mistakes(truth, data, want)]
    if exact := [text for text, share in shares if share == 1.0]:
        lines = [f"{'or' if i else 'explained'}: {text}" for i, text in enumerate(exact[:SHOWN])]
        lines += [f"... and {len(exact) - SHOWN} more"] if len(exact) > SHOWN else []
        apart = "these inputs cannot tell them apart; another --seed or case may"
        return [*lines, apart] if len(exact) > 1 else lines
    lines: list[str] = []
    for name in want:
        if truth.wrong(name, got[name], want[name]).any() and want[name].dim():
            x, y = (t.double().reshape(-1, t.shape[-1]) for t in (got[name], want[name]))
            near = max(1e-4, truth.tolerance(name, want[name])[0])
            lines += [f"of {name} {text}" for text in mistakes.of_lines(x, y, near)]
    best = sorted((s for s in shares if s[1] >= PARTIAL), key=lambda s: -s[1])[:SHOWN]
    lines += [f"{100 * share:.0f} % explained: {text}" for text, share in best]
    none = f"none of {len(shares)} known mistakes gives this output"
    return lines or [f"{none} (`mistakes` of the file adds others)"]


def _mistakes(truth: Truth, data: tuple[Any, ...], want: Values) -> Iterator[tuple[str, Values]]:
    """The file's own mistakes first."""
    for text, outputs in truth.mistakes(data):
        yield text, truth.values(outputs)
    for name, value in want.items():
        if not value.dtype.is_floating_point:
            continue
        for text, other in mistakes.of_output(value.double(), name):
            yield text, {**want, name: other}
    names, until = truth.input_names(data), time.monotonic() + BUDGET
    for text, other in mistakes.of_inputs(data, names):
        if time.monotonic() > until:
            return
        try:
            yield text, truth.values(truth.wanted(other))
        except Exception:  # noqa: BLE001  the reference has no answer for such inputs
            continue


def _share(truth: Truth, values: Values, got: Values, want: Values) -> float:
    """How much of what is wrong a mistake gives, 0 to 1: of all values together, of which it must
    leave the right elements mostly right.
    """
    given = total = 0
    for name in want:
        if values[name].shape != got[name].shape:
            return 0.0
        wrong = truth.wrong(name, got[name], want[name])
        unlike = truth.wrong(name, got[name], values[name])
        right = ~wrong
        if right.any() and float((unlike & right).sum() / right.sum()) > LEFT_RIGHT:
            return 0.0
        given += int((wrong & ~unlike).sum())
        total += int(wrong.sum())
    return given / max(total, 1)
