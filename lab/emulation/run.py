"""Cases in the emulator of one source tree, for speed.py, which runs this file in
the folder of that tree, so that all else is imported from there.

A line of JSON comes in for each case and one goes out. A case runs in a process forked from this
one, as eval.py does it. What is imported here has to exist in every tree that is compared: from
5b385bd on, it does.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import os
import resource
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO


class Recorded:
    """A kernel that remembers what it returned, and what of its time went into launches.

    bits: a hash of each result. launches: a list a call, with (CPU seconds, instructions that warps
    executed) of each launch.
    """

    def __init__(self, kernel: Callable[[Any], Any], gpu: Any):
        self.kernel, self.gpu = kernel, gpu
        self.bits: list[str] = []
        self.launches: list[list[tuple[float, int]]] = []
        self.launch, gpu.launch = gpu.launch, self.timed

    def timed(self, *args: Any, **kwargs: Any) -> Any:
        begin = time.process_time()
        done = self.launch(*args, **kwargs)
        spent = time.process_time() - begin
        self.launches[-1].append((spent, sum(done.counters.values())))
        return done

    def __call__(self, data: Any) -> Any:
        self.launches.append([])
        result = self.kernel(data)
        self.bits.append(hash_of(result))
        return result


def hash_of(result: Any) -> str:
    """A hash of the bits of a CPU tensor, or of some."""
    digest = hashlib.sha256()
    for tensor in result if isinstance(result, (list, tuple)) else [result]:
        digest.update(str((tuple(tensor.shape), tensor.dtype)).encode())
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()


def of_the_harness(*names: str) -> Any:
    """A module of the harness of the tree that this runs in, which may be of before its rooms.
    names: what it is called now, and was called before.
    """
    for name in names:
        for package in ("harness.evaluator.case", "harness.evaluator", "harness"):
            try:
                return importlib.import_module(f"{package}.{name}")
            except ModuleNotFoundError as missing:
                if not f"{package}.{name}".startswith(missing.name or "?"):
                    raise
    raise ModuleNotFoundError(f"the harness of {os.getcwd()} has no module {' or '.join(names)}")


def carry_out(job: dict[str, Any]) -> dict[str, Any]:
    """A case. job: problem, args, submission, schedule (or None), and `timed`: whether the modelled
    time is asked for, in place of two checked calls.
    """
    import b200
    from reference import generate_input

    WrongResult = of_the_harness("timing").WrongResult

    def generate(seed: int) -> Any:
        args = {**job["args"], "seed": seed}
        return generate_input(job["problem"], inputs="official", device="cpu", **args)

    of_the_harness("guard").Guard()  # as each case of eval.py has it, which costs time
    gpu = b200.install(check=True, schedule=job["schedule"])
    load = of_the_harness("loading", "worker").load_kernel
    kernel = of_the_harness("gpu_data").on_gpu(load(Path(job["submission"])))
    seed = job["args"]["seed"]
    if job["timed"]:
        found, _ = of_the_harness("modelled").model(job["problem"], kernel, generate(seed))
        return {"modelled": found}
    recorded = Recorded(kernel, gpu)
    try:
        said = of_the_harness("checks").check_twice(recorded, generate, seed, lambda: None)
    except WrongResult as wrong:
        said = str(wrong)
    findings = of_the_harness("findings").verdict(gpu.launches, everything=True)[1]
    text = "\n".join(filter(None, [said, findings]))
    return {
        "bits": recorded.bits,
        "launches": recorded.launches,
        "said": text.replace(job["submission"], Path(job["submission"]).name),
    }


def forked(job: dict[str, Any]) -> dict[str, Any]:
    """What `carry_out` finds in a process of its own, with the CPU seconds that this process and
    its children take and its peak memory in MB. `error` is a traceback, "" where all is well.
    """
    die_with_parent = of_the_harness("pool").die_with_parent
    with tempfile.TemporaryDirectory(prefix="emulation-") as scratch:
        answer = Path(scratch, "answer")
        child = os.fork()
        if not child:
            die_with_parent()
            tempfile.tempdir = os.environ["TMPDIR"] = scratch
            try:
                found: dict[str, Any] = {"error": "", **carry_out(job)}
            except BaseException:  # whatever it is, the process ends here
                found = {"error": traceback.format_exc()}
            usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, -1)]
            found["seconds"] = sum(u.ru_utime + u.ru_stime for u in usage)
            found["peak_mb"] = usage[0].ru_maxrss / 1024
            with contextlib.suppress(OSError):
                answer.write_text(json.dumps(found))
            os._exit(0)
        os.waitpid(child, 0)
        if not answer.exists():
            return {"error": "the process of the case died"}
        return json.loads(answer.read_text())


def serve(jobs: TextIO, answers: TextIO) -> None:
    of_the_harness("pool").die_with_parent()
    of_the_harness("devices").start_emulator()
    for line in jobs:
        print(json.dumps(forked(json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a case prints is no answer
    serve(sys.stdin, answers)
