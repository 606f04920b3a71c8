"""Times without a B200: the kernel runs in the emulator with a clock.

What a leaderboard would report is modelled. Arithmetic of the tensor core takes no simulated time
and may be left out, where nobody asks for the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from b200 import pictures
from b200.command_line import cannot_write
from harness.evaluator.case.timing import plan
from task import GEMV

if TYPE_CHECKING:
    from b200.chip.launch import Launch
    from b200.clock.timeline import Timeline

UNCHECKED = "not checked: results were not computed (eval.py test checks them)"
TRACED_CTAS = 8
STRIP = ".json"  # ends the name of a plot that another process is to draw


def model(
    problem: str,
    kernel: Callable[[Any], Any],
    data: Any,
    trace: str = "",
    plot: str = "",
    what: str = "",
    constants: Mapping[str, float] = MappingProxyType({}),
    sweep_constants: bool = False,
    arithmetic: bool = False,
) -> tuple[dict[str, Any] | None, str]:
    """(fields of b200.clock.call_time.Reported, and `unwritten`: a line on a file that could not be
    written; None if nothing was launched; profile as text).

    trace, plot: files to write the timeline of the first CTAs to; nothing where empty; a plot that
    ends in STRIP is what there is to draw (b200/clock/strip.py). what: the
    case, for the title of the picture. constants: in place of the clock's. sweep_constants: the
    range is how far the time moves over the constants' ranges, which takes two runs more; else it
    is the errors of the clock on published times. arithmetic: what the kernel returns is right.
    """
    import b200
    from b200.clock import Options, call_time, profile

    # One gemv call follows a write of 4 GiB: the L2 is full of lines that must be written back.
    options = Options(
        arithmetic=arithmetic,
        sweep_constants=sweep_constants,
        trace=TRACED_CTAS if trace or plot else 0,
        dirty_l2=problem == GEMV.name,
        constants=dict(constants),
    )
    gpu = b200.install(timing=options)
    before = len(gpu.launches)
    kernel(data)
    launches = gpu.launches[before:]
    if not launches:
        return None, ""
    longest = max(launches, key=lambda launch: launch.time.time_us).time
    unwritten = _draw(longest, trace, plot, what)
    text = "\n".join(f"{profile.text(launch.time)}\n{_budget(launch)}" for launch in launches)
    reported = asdict(call_time.reported(launches, plan(problem, "benchmark").calls))
    fields = reported | _where(launches) | {"unwritten": unwritten}
    return fields, f"{_call(reported)}\n{text}"


def _draw(record: Timeline, trace: str, plot: str, what: str) -> str:
    """Write the files of a timeline that are asked for. Returns a line on one that could not be
    written, "" if there is none: the time is not to be lost for it.
    """
    from b200.clock import draw, strip

    try:
        if trace:
            draw.write_trace(record, Path(trace))
        if plot.endswith(STRIP):
            Path(plot).write_text(strip.to_json(strip.strip_of(record, what)))
        elif plot:
            draw.write_picture(record, Path(plot), what)
    except OSError as error:
        return f"--trace: {cannot_write(Path(trace), error)}"
    except pictures.NoPicture as error:
        return f"--plot: {error}"
    return ""


def _call(reported: dict[str, Any]) -> str:
    """What a benchmark's time of a call is made of."""
    calls = reported["calls"]
    between = "one call" if calls == 1 else f"each of {calls} calls"
    parts = ", ".join(f"{name} {us:.2f}" for name, us in reported["parts"] if us >= 0.005)
    return f"{reported['time_us']:.2f} us is {between} between two events: {parts}"


def _where(launches: Iterable[Launch]) -> dict[str, Any]:
    """Where the time of the launches goes: microseconds a phase, bytes moved."""
    from b200.clock import profile

    records, phases = [launch.time for launch in launches], {}
    for record in records:
        for name, microseconds in profile.phases(record):
            phases[name] = phases.get(name, 0.0) + microseconds
    return {
        "phases": list(phases.items()),
        "dram_bytes": int(sum(record.chip.dram_bytes for record in records)),
        "l2_bytes": int(sum(record.chip.l2_bytes for record in records)),
    }


def _budget(launch: Launch) -> str:
    """What the launch takes of an SM, a line each."""
    return "\n".join(["what a CTA takes:", *(f"  {line}" for line in launch.budget.lines())])
