"""What the cases run on: a B200, a Hopper GPU, or the emulator; and whether they fit there.

`cuda` is whatever CUDA GPU there is, `b200` one of the B200's compute capability and no other."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
from dataclasses import dataclass

from harness.evaluator.cases import Case, CaseError, bytes_needed

CHOICES = ("auto", "b200", "cuda", "hopper", "emulator")
CAPABILITY = 10  # major compute capability of the B200
HOPPER_CAPABILITY = 9
GIB_A_CASE = 4  # memory to leave for each case that runs at the same time


class SetupError(Exception):
    """Nothing can run here; str() says in one line what is missing."""


@dataclass(frozen=True)
class Device:
    """kind: "cuda", "hopper" or "emulator". name: of the GPU, or "emulator". label: the name with
    versions, for a person.
    """

    kind: str
    name: str
    label: str

    @property
    def method(self) -> str:
        """How a case's process is started. CUDA does not survive a fork, not even where this
        process has only asked the GPU for its name.
        """
        from b200.host import own_gpu

        return "fork" if self.kind == "emulator" and not own_gpu.is_used() else "spawn"


def resolve(wanted: str) -> Device:
    """The device for one of CHOICES; auto prefers a B200, then a Hopper GPU. Raises SetupError."""
    import torch

    if wanted == "hopper":
        return _hopper()
    from b200.host import own_gpu

    gpu = wanted != "emulator" and own_gpu.is_there()
    if wanted in ("b200", "cuda") and not gpu:
        raise SetupError(
            f"--device {wanted}: torch finds no CUDA GPU here; --device emulator needs none"
        )
    if gpu:
        major, minor = torch.cuda.get_device_capability()
        name = torch.cuda.get_device_name()
        if wanted == "b200" and major != CAPABILITY:
            raise SetupError(
                f"--device b200: expected compute capability {CAPABILITY}, found {name} of"
                f" {major}.{minor}; --device cuda takes any"
            )
        if major == CAPABILITY or wanted == "cuda":
            odd = (
                ""
                if major == CAPABILITY
                else f", compute capability {major}.{minor}: kernels here are for {CAPABILITY}"
            )
            return Device(
                "cuda", name, f"{name} (torch {torch.__version__}, {_dsl_version()}{odd})"
            )
        if major == HOPPER_CAPABILITY:
            return _hopper()
    return Device(
        "emulator",
        "emulator",
        f"emulator (a B200 in software; torch {torch.__version__}, {_dsl_version()})",
    )


def _hopper() -> Device:
    """A Hopper GPU that runs the B200 kernel, tcgen05 in software. Raises SetupError."""
    import torch

    from hopper import HopperError
    from hopper.run import require_gpu

    try:
        name = require_gpu()
    except HopperError as error:
        raise SetupError(f"--device hopper: {error}") from None
    label = (
        f"{name}, the B200 kernel with tcgen05 in software (torch {torch.__version__},"
        f" {_dsl_version()})"
    )
    return Device("hopper", f"{name} (tcgen05 in software)", label)


def _dsl_version() -> str:
    try:
        return f"nvidia-cutlass-dsl {importlib.metadata.version('nvidia-cutlass-dsl')}"
    except importlib.metadata.PackageNotFoundError:
        return "nvidia-cutlass-dsl of unknown version"


def hide_gpus() -> None:
    """From the cases, too: asking whether there is one is enough for CUDA not to survive a fork,
    and a kernel shall not hear of another chip.
    """
    os.environ["CUDA_VISIBLE_DEVICES"] = ""


def start_emulator() -> None:
    """Import and install the emulator here, so that every case forked from here has it at once.
    What is imported stays for good, so the garbage collector is told to leave it out.

    Hides GPUs. Raises SetupError if what is installed cannot be taken over.
    """
    hide_gpus()
    try:
        import torch

        import b200

        torch.set_num_threads(1)  # no thread may run when a case is forked
        b200.install()
        with contextlib.suppress(ImportError):  # not of a kernel in PTX, CUDA or Triton
            import cutlass  # noqa: F401  install() takes it over as soon as it is imported
        import harness.evaluator.case.worker  # noqa: F401
        from b200.chip import tensors

        tensors.set_apart()
    except Exception as error:
        raise SetupError(
            f"the emulator cannot be installed: {type(error).__name__}: {error}"
        ) from error


def check_memory(case: Case, device: Device) -> None:
    """Raise CaseError if the memory that is free is less than any test of the case needs."""
    if device.kind == "emulator":
        free, where = _free_bytes(), "this machine"
    else:
        import torch

        free, where = torch.cuda.mem_get_info()[0], device.name
    needed = bytes_needed(case)
    if needed > free:
        raise CaseError(
            f"case {case.text!r} of {case.problem.name} needs at least {needed / 2**30:,.1f} GiB,"
            f" {where} has {free / 2**30:,.1f} GiB free"
        )


def parallel_cases(device: Device, mode: str, wanted: int | None) -> tuple[int, int]:
    """(cases at a time, CPU threads for each); on a GPU one, but for tests as many as `wanted`."""
    cores = len(os.sched_getaffinity(0))
    if device.kind != "emulator" and mode != "test":
        workers = 1
    elif wanted:
        workers = wanted
    elif device.kind == "emulator" and mode in ("test", "tune"):
        workers = max(1, min(cores, (_free_bytes() >> 30) // GIB_A_CASE))
    else:
        workers = 1
    return workers, max(1, cores // workers)


def _free_bytes() -> int:
    """Memory that can be had (proc(5), MemAvailable)."""
    with open("/proc/meminfo") as lines:
        kib = next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    return kib << 10
