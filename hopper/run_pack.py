"""Runs packs (pack.py) on this machine's Hopper GPU: are results right, repeatable, as expected?

    python -m hopper.run_pack packs/*.npz [--repeat 10] [--out results.json]

Needs torch, cuda-python, and NVRTC or nvcc; not the DSL. Exit status: 0 all right, 1 not all,
2 cannot run.
"""

from __future__ import annotations

import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from b200.command_line import Parser
from hopper.errors import HopperError
from hopper.pack import Pack, digest, load, storages
from hopper.run import HopperKernel, require_gpu
from hopper.this_gpu import describe, write

LARGEST_KEPT = 1 << 20


@dataclass
class Result:
    """The result of running a pack.

    status: pass | fail | error; for a case its maker's check decides, not the emulator's bits.
    outputs: SHA-256 of each tensor that the launches changed. same_inputs, same_repeats,
    as_expected: None if there is nothing to compare. seconds: wall clock of each call, with the
    set-up of tensor memory and the waiting in it: never the kernel's time on a B200.
    """

    pack: str
    case: dict[str, Any] | None
    status: str
    message: str = ""
    same_inputs: bool | None = None
    same_repeats: bool | None = None
    as_expected: bool | None = None
    outputs: dict[int, str] | None = None
    seconds: list[float] | None = None


class Cases(Protocol):
    """The maker of the cases that packs name: it makes their data again and checks the results."""

    def make(self, case: dict[str, Any]) -> Any:
        """The data of a case on the GPU, ready for a call."""
        ...

    def check(self, data: Any) -> str:
        """What is wrong with the results in `data` after a call; empty if nothing is."""
        ...


def run(
    pack: Pack, name: str, repeat: int, keep: Path | None = None, cases: Cases | None = None
) -> Result:
    """Run a pack `repeat` times on the GPU and compare the result with what is expected.

    keep: a folder for results of at most LARGEST_KEPT bytes that are not as expected. cases: makes
    and checks the data of a pack that names a case. Raises HopperError for such a pack if it is
    None.
    """
    result = Result(name, pack.case, "pass")
    data, tensors = _inputs(pack, cases)
    result.same_inputs = tuple(digest(t) for t in tensors) == pack.digests
    kernels = [
        HopperKernel(pack.programs[launch.program], launch.kernel) for launch in pack.launches
    ]
    initial = [t.clone() for t in tensors]
    buffers = buffers_of(pack, tensors)
    addresses = [t.data_ptr() for t in (*tensors, *buffers)]
    outputs, result.seconds = [], []
    for _ in range(repeat):
        for tensor, contents in zip(tensors, initial, strict=True):
            tensor.copy_(contents)
        start = time.perf_counter()
        for launch, kernel in zip(pack.launches, kernels, strict=True):
            kernel.launch(launch.shape, launch.relocated(addresses))
        result.seconds.append(round(time.perf_counter() - start, 4))
        outputs.append(tuple(digest(t) for t in tensors))
    result.outputs = {i: d for i, d in enumerate(outputs[0]) if d != pack.digests[i]}
    result.same_repeats = all(o == outputs[0] for o in outputs) if repeat > 1 else None
    if pack.expected is not None:
        result.as_expected = outputs[0] == pack.expected
        if keep is not None and not result.as_expected:
            _keep(keep / f"{name}.npz", tensors, result.outputs)
    if pack.case is not None and cases is not None and (wrong := cases.check(data)):
        result.status, result.message = "fail", wrong
    decisive = [result.same_inputs, result.same_repeats]
    if pack.case is None:
        decisive.append(result.as_expected)
    if False in decisive:
        result.status = "fail"
    return result


def buffers_of(pack: Pack, tensors: list) -> list:
    """The buffers of a pack on the GPU. tensors: the pack's tensors on the GPU. A buffer without
    contents gets random bytes.
    """
    import torch

    buffers = [
        torch.randint(0, 256, (b.size,), dtype=torch.uint8, device="cuda") for b in pack.buffers
    ]
    contents = pack.buffer_contents([t.data_ptr() for t in (*tensors, *buffers)])
    for buffer, data in zip(buffers, contents, strict=True):
        if data is not None:
            buffer.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
    return buffers


def _keep(path: Path, tensors: list, outputs: dict[int, str]) -> None:
    """Write the tensors that changed."""
    import numpy as np

    if sum(tensors[i].numel() for i in outputs) <= LARGEST_KEPT:
        np.savez_compressed(path, **{str(i): tensors[i].cpu().numpy() for i in outputs})


def _inputs(pack: Pack, cases: Cases | None) -> tuple[Any, list]:
    """The data of the case on the GPU (or None), and the storages in the order of the pack."""
    import torch

    if pack.case is not None:
        if cases is None:
            raise HopperError("missing", f"the pack names a case, {pack.case}, and has no tensors")
        data = cases.make(pack.case)
        return data, storages(data)
    contents = pack.tensors or ()
    return None, [torch.frombuffer(bytearray(t), dtype=torch.uint8).cuda() for t in contents]


def main(argv: list[str], cases: Cases | None = None) -> int:
    parser = Parser("python -m hopper.run_pack", "Run packs on a Hopper GPU.")
    parser.add_argument("packs", nargs="+", type=Path, metavar="PACK.npz", help="packs to run")
    parser.add_argument(
        "--repeat",
        type=int,
        default=1,
        metavar="N",
        help="calls of each pack; their bits must agree",
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="write the results, with device and versions"
    )
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep results that differ")
    arguments = parser.parse_args(argv)
    try:
        require_gpu()
    except HopperError as error:
        print(f"hopper.run_pack: {error}", file=sys.stderr)
        return 2
    results = []
    for path in arguments.packs:
        try:
            result = run(load(path), path.stem, arguments.repeat, arguments.keep, cases)
        except HopperError as error:
            result = Result(path.stem, None, "error", f"{error.kind}: {error}")
        results.append(result)
        print(_line(result), flush=True)
        if arguments.out:
            write(arguments.out, describe(), results=[asdict(r) for r in results])
    return 0 if all(r.status == "pass" for r in results) else 1


def _line(r: Result) -> str:
    facts = {"inputs": r.same_inputs, "repeats": r.same_repeats, "emulator's bits": r.as_expected}
    said = ", ".join(
        f"{what} {'same' if same else 'DIFFER'}" for what, same in facts.items() if same is not None
    )
    calls = (
        f"{r.seconds[0]:.3f} s first, {min(r.seconds):.3f} s best (not a kernel time)"
        if r.seconds
        else ""
    )
    return f"{r.status:5} {r.pack}: {said}; {calls} {r.message}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
