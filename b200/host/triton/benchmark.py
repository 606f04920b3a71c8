"""triton.testing.do_bench over launches that run in software, and what autotuning takes for a time.

Triton's own repeats a call until it has taken 100 ms. One call says as much here: a modelled time
is the same each time, and the wall clock of the emulation says nothing of a B200.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from b200.host.event_clock import EventClock
from b200.host.imports import when_imported
from b200.host.runtime import Runtime

_choosing: list[bool] = []  # an entry for each autotuner that is at work
_chosen: list[bool] = []  # an entry for each configuration that an autotuner has looked at


def install(runtime: Runtime) -> None:
    when_imported("triton.testing", functools.partial(_patch_testing, runtime))
    when_imported("triton.runtime.autotuner", _patch_autotuner)


def _patch_testing(runtime: Runtime, testing: ModuleType) -> None:
    for name in ("do_bench", "do_bench_cudagraph"):
        bench = functools.wraps(getattr(testing, name))(functools.partial(do_bench, runtime))
        setattr(testing, name, bench)
    sweep = testing.Mark.run

    @functools.wraps(sweep)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _clock(runtime).is_modelled():
            return sweep(self, *args, **kwargs)
        _say(
            "a sweep of triton.testing.perf_report is passed over, since launches take no modelled"
            " time; `b200 run --time` runs it"
        )
        return [] if kwargs.get("return_df") else None

    testing.Mark.run = run


def _patch_autotuner(autotuner: ModuleType) -> None:
    """Note while an autotuner looks at one of its configurations, by whatever benchmark."""
    original = autotuner.Autotuner._bench

    @functools.wraps(original)
    def bench(*args: Any, **kwargs: Any) -> Any:
        _choosing.append(True)
        try:
            return original(*args, **kwargs)
        finally:
            _chosen.append(_choosing.pop())

    autotuner.Autotuner._bench = bench


def do_bench(
    runtime: Runtime,
    fn: Callable[[], Any],
    *_times: Any,
    grad_to_none: Sequence[Any] | None = None,
    quantiles: Sequence[float] | None = None,
    return_mode: str = "mean",
    **_more: Any,
) -> float | list[float]:
    """Milliseconds of one call of fn, in the form that triton.testing.do_bench returns them."""
    for tensor in grad_to_none or ():
        tensor.grad = None
    clock, chosen = _clock(runtime), len(_chosen)
    start = clock.now()
    fn()
    if len(_chosen) > chosen:  # what an autotuner has run in there is no part of the call
        start = clock.now()
        fn()
    if _choosing and not clock.is_modelled():
        _say(
            "triton.autotune runs each configuration once and takes the first; `b200 run --time`"
            " chooses by modelled time"
        )
        found = 1.0
    else:
        found = clock.milliseconds(start, clock.now())
    if quantiles is not None:
        return [found] * len(quantiles)
    return [found] if return_mode == "all" else found


def choose(runtime: Runtime, fn: Callable[[], Any], *args: Any, **kwargs: Any) -> Any:
    """What the driver gives an autotuner to measure with."""
    _choosing.append(True)
    try:
        return do_bench(runtime, fn, *args, **kwargs)
    finally:
        _choosing.pop()


_clock = functools.cache(EventClock)


@functools.cache
def _say(text: str) -> None:
    """Once in a process."""
    print(f"b200: {text}", file=sys.stderr)
