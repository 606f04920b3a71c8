"""Constants that make the clock agree with what a chip's probes gave.

The clock itself predicts each probe, so a constant is found by root finding on the prediction: the
same kernel, the same queues. Probes come in the order in which they build on one another, and
twice, since a later constant may have a small part in an earlier probe.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from b200.clock.devices import B200
from harness.measure.devices import Clock, Device
from harness.measure.probes import PROBES, Probe

SWEEPS = 2
STEPS = 8  # predictions a constant and sweep, at most
CLOSE = 0.002  # of the measured value: found
REACHED = 0.03  # of the measured value, still: the constant explains it
DEAF = 0.01  # relative change of a prediction for 10 % of its constant: less tells nothing
FURTHEST = 8.0  # a constant is looked for within its table value times and over this


@dataclass(frozen=True)
class Fitted:
    """A probe and the constant it told. measured, before, after: the probe's value on the chip, and
    the clock's with the table's constants and with the fitted ones, in `unit`. table, fitted: the
    constant; fitted is None where no value of it explains what was measured.
    """

    probe: str
    constant: str
    unit: str
    measured: float
    before: float
    after: float
    table: float
    fitted: float | None


def measure(device: Device, probes: Iterable[Probe] = PROBES) -> dict[str, float]:
    """Value of each probe that the device can run, by name."""
    return {probe.name: probe.measure(device) for probe in probes if probe.runs_on(device)}


class Predictions:
    """What the clock of a chip says of probes with fitted constants: each asked for once."""

    def __init__(self, chip: str):
        self.chip = chip
        self._known: dict[tuple[str, frozenset[tuple[str, float]]], float] = {}

    def table(self, constant: str) -> float:
        return Clock(chip=self.chip).value(constant)

    def __call__(self, probe: Probe, constants: Mapping[str, float]) -> float:
        """In the probe's unit; the other constants are the table's."""
        given = {name: value for name, value in constants.items() if value != self.table(name)}
        key = probe.name, frozenset(given.items())
        if key not in self._known:
            self._known[key] = probe.measure(Clock(given, self.chip))
        return self._known[key]


def fit(
    measured: dict[str, float], probes: Iterable[Probe] = PROBES, chip: str = B200.name
) -> list[Fitted]:
    """The constants that explain what was measured, one a probe. chip: whose clock it is."""
    used = [probe for probe in probes if probe.name in measured]
    predicted = Predictions(chip)
    found: dict[str, float] = {}
    deaf: set[str] = set()
    for _ in range(SWEEPS):
        for probe in used:
            value = _solve(probe, measured[probe.name], found, predicted)
            if value is None:
                deaf.add(probe.constant)
                found.pop(probe.constant, None)
            else:
                deaf.discard(probe.constant)
                found[probe.constant] = value
    return [
        Fitted(
            probe.name,
            probe.constant,
            probe.unit,
            measured[probe.name],
            predicted(probe, {}),
            predicted(probe, found),
            predicted.table(probe.constant),
            None if probe.constant in deaf else found[probe.constant],
        )
        for probe in used
    ]


def _solve(
    probe: Probe, measured: float, constants: Mapping[str, float], predicted: Predictions
) -> float | None:
    """The value of the probe's constant that predicts `measured`; None if it makes no difference or
    none does.

    Secant steps, kept inside a factor FURTHEST of the table's value.
    """
    start = predicted.table(probe.constant)

    def error(value: float) -> float:
        return predicted(probe, {**constants, probe.constant: value}) - measured

    last = constants.get(probe.constant, start)
    off = error(last)
    if abs(off) <= CLOSE * abs(measured):
        return last
    now = last * 1.1
    off_now = error(now)
    if abs(off_now - off) < DEAF * abs(measured) * 0.1:
        return None
    for _ in range(STEPS):
        if abs(off_now) <= CLOSE * abs(measured) or off_now == off:
            break
        step = off_now * (now - last) / (off_now - off)
        last, off = now, off_now
        now = min(max(now - step, start / FURTHEST), start * FURTHEST)
        if now == last:
            break
        off_now = error(now)
    return now if abs(off_now) <= REACHED * abs(measured) else None


def as_constants(fitted: Iterable[Fitted]) -> dict[str, float]:
    """What was found, as `Options(constants=...)` and `--constants FILE` take it."""
    return {f.constant: f.fitted for f in fitted if f.fitted is not None}
