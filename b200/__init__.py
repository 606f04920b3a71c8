"""A B200 in software: runs the PTX that is compiled for sm_100a on a CPU.

    import b200

    gpu = b200.install()  # before the first compile: later launches of this process run in software
    custom_kernel(data)   # ordinary CPU tensors
    gpu.launches[-1]      # report: grid, cluster, counters, findings

Layers, each knowing only those below it:

    host/                        what a program meets: the DSL's runtime functions, torch's "cuda"
    explore/                     all orders of a checked run's synchronisation
    checker/  clock/             two ways to look at a run: rules, time
    chip/                        state, scheduler and instruction set of the GPU; `chip.gpu.Gpu`
    program/                     PTX text -> blocks -> Python functions over 32 lanes
    registry, formats, errors, hardware, spaces

This module composes them: it picks the machine and hands it to the host layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from b200.errors import EmulatorError

if TYPE_CHECKING:
    from b200.chip.global_memory import GlobalMemory
    from b200.chip.gpu import Gpu
    from b200.chip.launch import Launch
    from b200.chip.machine import Machine
    from b200.clock.options import Options
    from b200.host.cuda.extension import Extensions
    from b200.host.cuda.modules import Modules
    from b200.host.runtime import Runtime

__all__ = [
    "EmulatorError",
    "Gpu",
    "at_work",
    "forget_failure",
    "install",
    "machine",
    "run_cuda",
    "run_ptx",
    "unfinished",
]
__version__ = "0.3.0"

_runtime: Runtime | None = None
_modules: Modules | None = None
_extensions: Extensions | None = None


def __getattr__(name: str) -> Any:
    """Gpu, which is imported when it is asked for: it brings the whole chip along."""
    if name != "Gpu":
        raise AttributeError(f"module 'b200' has no attribute {name!r}")
    from b200.chip.gpu import Gpu

    return Gpu


def machine(
    memory: GlobalMemory,
    check: bool | str = True,
    timing: bool | Options = False,
    schedule: str | None = None,
    budget: float | None = None,
) -> Machine:
    """A machine over `memory` that checks its launches, or gives them simulated time.

    check: races and protocol errors are looked for (`launch.findings`); "all": in every cluster,
    also in those that do what one before has done (b200/checker/following.py). timing: True, or
    b200.clock.Options: launches take simulated time (`launch.time`) and are not checked. schedule:
    "early", "late" or "random:SEED", the order in which warps and completions take turns
    (b200/chip/schedules.py), "pdl": dependent launches overlap, or "all": the usual order, of which
    all others are explored (b200/explore, `launch.orders`), which takes the checker; ValueError for
    another. budget: seconds after which a launch is stopped by an EmulatorError of kind "budget".
    """
    from b200.checker import Checker
    from b200.chip.abreast.order import SideBySide
    from b200.chip.machine import Machine
    from b200.chip.overlap import Overlapping
    from b200.chip.schedules import Scheduled, parse
    from b200.time_budget import TimeBudget

    limits = () if budget is None else (TimeBudget(budget),)
    if timing:
        from b200.clock import timed_machine

        return timed_machine(memory, None if timing is True else timing)
    asked = parse(schedule) if schedule else None
    if asked is not None and asked.kind == "all":
        from b200.explore import Explorer

        if not check:
            raise ValueError("schedule 'all' needs the checker: check must not be False")
        checker = Checker(follow=False)
        return Machine(memory, watchers=(checker, Explorer(checker), *limits))
    order = SideBySide()
    if asked is not None:
        order = Overlapping() if asked.kind == "pdl" else Scheduled(asked)
    checkers = (Checker(follow=check != "all"),) if check else ()
    return Machine(memory, order, (*checkers, *limits))


def install(
    check: bool | str = True,
    timing: bool | Options = False,
    gpu: Gpu | None = None,
    schedule: str | None = None,
    budget: float | None = None,
) -> Gpu:
    """Make what this process compiles with the CuTe DSL and launches run in software.

    Call before the first compile. Returns the Gpu; calling again returns the same one, with another
    machine and as if nothing had been launched. torch's "cuda" is this B200 (host/torch/), and a
    GPU of this machine is neither seen nor touched; EmulatorError where torch has used it in this
    process. Holds for the processes that this one forks or spawns. gpu: what launches kernels
    instead (a Hopper GPU: hopper/backend.py of the checkout). check, timing, schedule, budget: see
    `machine`. A process that does not call this is untouched.
    """
    global _runtime, _modules, _extensions
    if _runtime is None:
        from b200.chip.gpu import Gpu
        from b200.host import cuda, own_gpu, triton
        from b200.host.cuda.modules import Modules
        from b200.host.features import CUDA_PYTHON, DSL, TORCH
        from b200.host.imports import when_imported
        from b200.host.runtime import Runtime
        from b200.host.takeover import take_over

        chosen = gpu or Gpu()
        if not chosen.real:
            own_gpu.hide()
        _runtime = Runtime(chosen)
        _modules = Modules(_runtime)
        torch, dsl = ([f for f in of if f.real_gpu or not chosen.real] for of in (TORCH, DSL))
        # To import torch and the DSL takes two seconds of CPU time, which programs without them
        # need not spend.
        when_imported("torch", lambda _: take_over(torch, _runtime))
        when_imported("cutlass", lambda _: take_over(dsl, _runtime))
        take_over(() if chosen.real else CUDA_PYTHON, _modules)
        _extensions = cuda.install(_modules)
        triton.install(_modules)
    if gpu is None:
        from b200.host import spawned

        settings = {"check": check, "timing": timing, "schedule": schedule, "budget": budget}
        spawned.follow(Path(__file__).with_name("spawned_process.py"), settings)
    if _modules is not None:
        _modules.failed = None
    _runtime.begin()
    found = _runtime.gpu
    found.machine = machine(found.memory, check, timing, schedule, budget)
    _record(found, schedule, _runtime)
    return found


def install_alone(**settings: Any) -> Modules:
    """As `install`, for a process without torch and the DSL: what a compiled CUDA program has on
    the device. settings: check, timing, schedule, budget, as `machine` has them.
    """
    global _runtime, _modules
    from b200.chip.gpu import Gpu
    from b200.host.cuda.modules import Modules
    from b200.host.runtime import Runtime

    gpu = Gpu()
    _runtime = Runtime(gpu)
    _modules = Modules(_runtime)
    gpu.machine = machine(gpu.memory, **settings)
    _record(gpu, settings.get("schedule"), _runtime)
    return _modules


def modules() -> Modules:
    """What programs have on the device of this process, which has called `install`."""
    assert _modules is not None, "install() comes first"
    return _modules


def _record(gpu: Gpu, schedule: str | None, runtime: Runtime | None = None) -> None:
    """Where this process is one of a run that keeps a journal: write its launches there."""
    from b200.reports import journal, recorder, records

    if (of_run := journal.of_the_run()) is not None:
        recording = recorder.attach(gpu, of_run[0])
        recording.schedule = schedule or records.USUAL
        if runtime is not None:
            runtime.told = recording.sync


def forget_failure() -> None:
    """What a kernel has left when it failed is gone, as after cudaDeviceReset: the next launch is
    carried out. Queues have no work, and no graph is under capture.
    """
    if _runtime is not None and _modules is not None:
        _modules.failed = _runtime.error = _runtime.refused = None
        _runtime.unasked.clear()
        _runtime.begin()


def run_ptx(
    text: str,
    kernel: str | None,
    grid: int | Sequence[int],
    block: int | Sequence[int],
    args: Sequence[Any] = (),
    cluster: int | Sequence[int] = 1,
    smem: int = 0,
    check: bool | str = True,
    timing: bool | Options = False,
    schedule: str | None = None,
) -> Launch:
    """Run one kernel of a PTX text for sm_100a on a B200 of its own, and return the report. It
    needs numpy alone, and no call of `install`.

    kernel: its name, or None for the only one. grid, block, cluster: x, or up to (x, y, z), in
    CTAs, threads and CTAs. args: for each parameter an array of numpy, which the kernel reads and
    writes in place, or a number; a scalar of numpy has its own size. smem: bytes of dynamic shared
    memory of a CTA. check, timing, schedule: see `machine`. Raises EmulatorError for what hardware
    would not complete, TypeError or ValueError for arguments that do not fit.
    """
    from b200.chip.gpu import Gpu

    gpu = Gpu()
    gpu.machine = machine(gpu.memory, check, timing, schedule)
    _record(gpu, schedule)
    return gpu.launch(text, kernel, _dim3(grid), _dim3(block), _dim3(cluster), smem, args)


def _dim3(size: int | Sequence[int]) -> tuple[int, int, int]:
    sizes = (size,) if isinstance(size, int) else tuple(size)
    if not 1 <= len(sizes) <= 3:
        raise ValueError(f"expected one to three sizes, got {size!r}")
    x, y, z = (*sizes, 1, 1)[:3]
    return x, y, z


def run_cuda(source: Path, arguments: Sequence[str], others: Sequence[Path] = ()) -> int:
    """Compile a CUDA program with a `main` and run it in this process, which has called `install`;
    its status. others: further source files of it. Raises RuntimeError where it does not compile,
    EmulatorError for a kernel.
    """
    from b200.host.cuda import program

    assert _extensions is not None, "install() comes first"
    return program.run(_extensions, (source, *others), arguments)


def unfinished() -> list[str]:
    """Work that neither the program nor torch's current queue has waited for, a line each: its
    queue and latest kernel. On a GPU it need not be done when what the current queue has is.
    """
    if _runtime is None:
        return []
    from b200.host import own_gpu, queues
    from b200.program.names import readable

    current = queues.DEFAULT
    if own_gpu.is_replaced():  # else the program does without torch
        import torch

        current = torch.cuda.current_stream().cuda_stream
    return [
        f"queue {queue:#x}: {readable(kernel)}"
        for queue, kernel in _runtime.queues.unfinished(current)
    ]


def unasked() -> list[str]:
    """Launches of cuda.bindings that were refused with a number at which the program has not
    looked, a line each: what they should have written is as it was.
    """
    return [] if _runtime is None else list(_runtime.unasked)


def at_work() -> list[str]:
    """Where the kernel is that this process runs in software: a line for each place in its source
    at which warps are that do not wait. For a signal handler; empty where no launch is under way.
    """
    if _runtime is None or not hasattr(_runtime.gpu, "machine"):
        return []
    from b200.chip.describe import at_work as places

    return places(_runtime.gpu.machine)
