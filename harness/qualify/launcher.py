"""The DSL's own launcher on the CUDA GPU that is here: JSON lines, one a question.

python -m harness.qualify.launcher --submission submission.py

The emulator and a Hopper GPU that runs our packs take a kernel's parameters from the DSL's host
code and launch it themselves. Here the DSL does it all: its host code, its runtime library, the
driver. Only the image of the kernel is another one, a probe (harness/qualify/probe.py) that tells
what arrived, so any GPU of compute capability 9 or more will do. Asked is about a call with eight
groups: more than 4 KB of parameters, and whatever clusters the submission picks.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import time
import timeit
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from b200.command_line import Parser
from b200.program.parse import parse
from harness.evaluator import cases
from harness.evaluator.case import loading
from harness.qualify.probe import VARIABLE, Probe, loadable, maps_of
from harness.qualify.submission import Submission
from task import GROUP
from utils import tensors_of

LOAD, LOAD_ARGUMENTS = "_cudaLibraryLoadData", 8
LEAST_CAPABILITY = 9  # clusters, tensormaps
CALLS, REPEATS = 100, 5
AHEAD_BYTES = 2_000_000_000  # a fill that keeps the default queue busy for the time of a call
OCCUPANCY = """
import json, time, torch
from cutlass.utils import HardwareInfo
torch.empty(1, device="cuda")  # a context
asked, begin = [], time.perf_counter()
for size in range(1, 9):
    asked.append(HardwareInfo(torch.cuda.current_device()).get_max_active_clusters(size))
print(json.dumps({"clusters": asked, "seconds": round(time.perf_counter() - begin, 2)}))
"""

Load = Callable[..., int]  # cudaLibraryLoadData: 8 words in, an error number out


class Takeover:
    """Loads probes in place of the kernels of this process. `make` makes them; loaded:
    (probe, handle of its library), in order. error: what the loading function could not raise.

    load: the runtime's own function; that of the DSL's library, if None.
    """

    def __init__(self, load: Load | None = None):
        self.make: Callable[[Any], Probe] = Probe
        self.loaded: list[tuple[Probe, int]] = []
        self.error: Exception | None = None
        self._load = load or _of_the_library()
        self._ptx, self._images = "", []
        self._patch()

    def _patch(self) -> None:
        import cutlass._mlir.execution_engine as engines
        import cutlass.cutlass_dsl.cuda_jit_executor as cuda_jit

        words = [ctypes.c_uint64] * LOAD_ARGUMENTS
        function = ctypes.CFUNCTYPE(ctypes.c_int32, *words)(self._load_probe)

        class Engine(engines.ExecutionEngine):
            def __init__(self, *args: Any, **kwargs: Any):
                super().__init__(*args, **kwargs)
                self.function = function
                self.raw_register_runtime(LOAD, ctypes.cast(function, ctypes.c_void_p))

        engines.ExecutionEngine = Engine
        compiled: Any = cuda_jit.CudaDialectJitCompiledFunction
        load = compiled._load_cuda_library

        def load_with_ptx(one: Any) -> Any:
            self._ptx = one.__ptx__
            return load(one)

        compiled._load_cuda_library = load_with_ptx

    def _load_probe(self, out: int, _image: int, *rest: int) -> int:
        try:
            (kernel,) = parse(self._ptx).kernels.values()
            probe = self.make(kernel)
            image = ctypes.create_string_buffer(probe.text.encode())
        except Exception as error:  # an exception cannot cross the JIT's machine code
            self.error = error
            return 1  # cudaErrorInvalidValue
        self._images.append(image)
        status = self._load(out, ctypes.addressof(image), *rest)
        if not status:
            self.loaded.append((probe, ctypes.c_uint64.from_address(out).value))
        return status


def _of_the_library() -> Load:
    """cudaLibraryLoadData of the DSL's runtime library."""
    from b200.host.dsl.engine import frontends

    for path in frontends()[0].get_shared_libs():
        function = getattr(ctypes.CDLL(path), LOAD, None)
        if function is not None:
            function.argtypes = [ctypes.c_uint64] * LOAD_ARGUMENTS
            function.restype = ctypes.c_int32
            return function
    raise RuntimeError(f"no library of the DSL has {LOAD}")


def seen_by(probe: Probe, library: int) -> bytes:
    """What a probe saw. RuntimeError for an error of CUDA."""
    from cuda.bindings import runtime  # pyright: ignore[reportAttributeAccessIssue]

    handle, name = runtime.cudaLibrary_t(library), VARIABLE.encode()
    status, address, _ = runtime.cudaLibraryGetGlobal(handle, name)
    to_host = runtime.cudaMemcpyKind.cudaMemcpyDeviceToHost
    seen = ctypes.create_string_buffer(probe.size)
    if not int(status):
        (status,) = runtime.cudaMemcpy(ctypes.addressof(seen), address, probe.size, to_host)
    if int(status):
        raise RuntimeError(f"cannot read what the probe saw: {status}")
    return seen.raw


def misplaced(probe: Probe, params: bytes, data: Any) -> list[str]:
    """What of the parameters is not as the tensors of the call are."""
    groups = len(data[0])
    operands = [t for a, b, _ in data[0] for t in (a, b)] + [t for pair in data[2] for t in pair]
    sizes = {t.data_ptr(): t.numel() * t.element_size() for t in operands}
    maps = [found for _, found in maps_of(probe.kernel, params)]
    wrong = []
    if sorted(found.address for found in maps) != sorted(sizes):
        wrong.append(f"{len(maps)} tensormaps are not of the {len(sizes)} operands")
    wrong += [
        f"{found} describes {found.extent} bytes of {sizes[found.address]}"
        for found in maps
        if found.extent != sizes.get(found.address, found.extent)
    ]
    words = {params[at : at + 8] for at in range(0, len(params) - 7, 4)}
    results = [c.data_ptr().to_bytes(8, "little") for _, _, c in data[0]]
    if found := [i for i in range(groups) if results[i] not in words]:
        wrong.append(f"the results of the groups {found} are not among the parameters")
    return wrong


def questions(submission: Submission, takeover: Takeover, data: Any) -> Iterator[tuple[str, str]]:
    """(what was found, what is wrong) of one question after the other."""
    import torch

    def call() -> None:
        submission.kernel(data)
        if takeover.error:
            raise takeover.error

    takeover.make = Probe
    call()
    probe, library = takeover.loaded[-1]
    counters, params, _ = probe.read(seen_by(probe, library))
    wrong = misplaced(probe, params, data)
    maps = maps_of(probe.kernel, params)
    told = f"{len(params)} bytes of parameters, {len(maps)} tensormaps, {len(data[0])} results"
    yield told, "; ".join(wrong)
    yield ", ".join(f"{n} {name}" for name, n in counters.items()), ""

    capability = torch.cuda.get_device_capability()[0]
    takeover.make = lambda kernel: Probe(kernel, loadable(maps, capability))
    submission.forget_choices(compiled=True)
    ahead = torch.empty(AHEAD_BYTES, dtype=torch.uint8, device="cuda")
    tensors = [t for t in tensors_of(data) if t.is_cuda]
    values = {tensor.data_ptr(): 1 + i % 100 for i, tensor in enumerate(tensors)}
    ahead.fill_(1)
    for tensor in tensors:
        bits = torch.empty(0, dtype=torch.uint8, device="cuda").set_(tensor.untyped_storage())
        bits[:8].fill_(values[tensor.data_ptr()])
    call()
    probe, library = takeover.loaded[-1]
    _, params, boxes = probe.read(seen_by(probe, library))
    placed = {at: found.address for at, found in maps_of(probe.kernel, params)}
    pairs = zip(probe.loads, boxes)
    stale = sum(box != bytes([values[placed[at]]] * 8) for (at, _), box in pairs)
    told = f"{len(boxes)} boxes of {len(maps)} tensormaps, written on the default queue just before"
    yield told, f"{stale} boxes hold something else" if stale else ""

    per_call = min(timeit.repeat(call, number=CALLS, repeat=REPEATS)) / CALLS * 1e6
    torch.cuda.synchronize()
    yield f"{per_call:.1f} us a call on the host, the fastest of {REPEATS} x {CALLS}", ""


def occupancy() -> tuple[str, str]:
    """The driver's answer for clusters of 1 to 8 CTAs, asked as a kernel for this GPU would."""
    environment = {k: v for k, v in os.environ.items() if k != "CUTE_DSL_ARCH"}
    command = [sys.executable, "-c", OCCUPANCY]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        return "clusters at a time", (done.stderr.strip().splitlines() or ["no reason given"])[-1]
    told = json.loads(done.stdout.splitlines()[-1])
    answer = f"clusters of 1 to 8 CTAs at a time: {told['clusters']}, in {told['seconds']} s"
    return answer, "" if min(told["clusters"]) > 0 else "an answer is not positive"


def main(argv: list[str] | None = None) -> int:
    parser = Parser("python -m harness.qualify.launcher", __doc__)
    parser.add_argument("--device", choices=("cuda", "hopper"), default="cuda")
    parser.add_argument("--submission", type=Path, required=True)
    options = parser.parse_args(argv)
    import torch

    if not torch.cuda.is_available():
        print("launcher: needs a CUDA GPU, and torch finds none here", file=sys.stderr)
        return 2
    if torch.cuda.get_device_capability()[0] < LEAST_CAPABILITY:
        name, least = torch.cuda.get_device_name(), LEAST_CAPABILITY
        print(f"launcher: needs compute capability {least} or more, found {name}", file=sys.stderr)
        return 2
    from b200.host.dsl import engine
    from reference import generate_input

    engine.keep_ptx()
    takeover = Takeover()
    submission = Submission.of(loading.load_kernel(options.submission.resolve()))
    case = cases.official(GROUP, "benchmark")[0]
    data = generate_input(GROUP.name, device="cuda", **case.args)
    wrong, begin = 0, time.perf_counter()
    for told, problem in (*questions(submission, takeover, data), occupancy()):
        status = "fail" if problem else "pass"
        row = {"problem": GROUP.name, "case": case.text, "mode": "launcher", "status": status}
        seconds = round(time.perf_counter() - begin, 1)
        message = f"{told}: {problem}" if problem else told
        print(json.dumps({**row, "message": message, "seconds": seconds}), flush=True)
        wrong += status == "fail"
    return 112 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
