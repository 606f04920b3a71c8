"""What a survey adds to submission.py, for a board that shows only what is printed.

`lab/survey/make.py` joins both to one file. The first call of `custom_kernel` there runs the trials
one by one. Each is named before it runs: where one hangs, its line is the last. It is held against
the plainest configuration of its problem, which comes first, and timed by turns with it, as the
boards time.

python survey.py OUT.txt 2>> OUT.txt     where no board calls it: goes on behind what OUT.txt says
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import re
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

from submission import Config, Groups, Problem, bind, forms_of, launch, problem_of, unpack

SECONDS = 120.0  # from the import to the last trial that begins; a board ends a test after 180
TRIAL_SECONDS = 30.0  # to compile, check and time one; then it hangs
CALLS, GROUP_CALLS = 50, 15  # between two events, each on inputs of its own, as the boards do
WORK_BYTES = 8 << 30  # of tensors at most for these calls: fewer calls where they are large
ROUNDS = 100
CLEAR_BYTES = 1 << 29  # written before a timed run: four times the L2
CLEAR_SECONDS, MAX_CLEARS = 50e-6, 100  # a write of so much takes longer than that
RTOL = ATOL = 1e-3  # the boards', for fp16
EVENT_STEP = 2.048e-3  # milliseconds: some GPUs' events tick in steps of so much
HUNG = 3  # exit status
IN_SOFTWARE = " in software"
SMALL_CODES = 0xBB  # mask of two codes: 0, 0.5, 1, 1.5 and their negatives
EIGHTH, OCTAVE = 0x20, 8  # 1/8 in ue4m3, and from a power of two to the next


class Trial(NamedTuple):
    """One configuration of a problem. name: the problem, its case, what the configuration sets."""

    number: int
    name: str
    problem: Problem
    config: Config


TRIALS: list[Trial] = []
DIGEST = ""  # of the submission without its table of picks
BEGIN = time.monotonic()


def say(text: str) -> None:
    """A line that is there whatever comes next."""
    print(f"survey: {text}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def time_limit(trial: Trial) -> Iterator[None]:
    """End the process, with a line, where a trial takes too long: nothing else ends a kernel."""

    def end() -> None:
        say(f"hung {trial.number}: no end after {TRIAL_SECONDS:g} s")
        os._exit(HUNG)

    timer = threading.Timer(TRIAL_SECONDS, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


# ---- a problem's data ----------------------------------------------------------------------------


def random_operands(problem: Problem, device: torch.device) -> Groups:
    """Operands whose sums are exact in fp32, so that all orders of them agree: multiples of 1/256
    below 2^16, where K is below 29,000. Codes are 0 to 1.5, scales 1/8 to 1 in octaves; c is unset.
    """
    groups = []
    for operands in forms_of(problem):
        tensors = {}
        for key, operand in operands.items():
            place = {"device": device, "size": operand.shape, "stride": operand.stride()}
            if key == "c":
                tensors[key] = torch.empty_strided(**place, dtype=operand.dtype)
                continue
            values = torch.empty_strided(**place, dtype=torch.uint8)
            if key.startswith("sf"):
                values.random_(0, 4).mul_(OCTAVE).add_(EIGHTH)
            else:
                values.random_(0, 256).bitwise_and_(SMALL_CODES)
            tensors[key] = values.view(operand.dtype)
        groups.append(tensors)
    return groups


def calls_of(problem: Problem, size: int) -> int:
    """How many calls a timed run has, of `size` bytes of tensors each: as the boards, a gemv's is
    alone."""
    if problem.is_gemv:
        return 1
    calls = CALLS if len(problem.groups) == 1 else GROUP_CALLS
    return max(1, min(calls, WORK_BYTES // size))


class Work:
    """The inputs of a timed run of a problem, and what its plainest configuration makes of them."""

    def __init__(self, problem: Problem, device: torch.device):
        self.problem, self.device = problem, device
        self.inputs: list[Groups] = []
        self.plainest: Callable[[], None] | None = None
        self.expected: list[torch.Tensor] = []

    @property
    def outputs(self) -> list[torch.Tensor]:
        return [tensors["c"] for groups in self.inputs for tensors in groups]

    def judge(self, config: Config) -> str:
        """Whether a configuration agrees with the first one, and how long a call takes."""
        if self.plainest is None:
            self.begin(config)
        assert self.plainest is not None
        call = self.run(config)
        if wrong := self.wrong(call):
            return f"differs: {wrong} of {len(self.expected)} results"
        us, plain_us = self.times(call, self.plainest)
        if wrong := self.wrong(call):
            return f"differs: {wrong} of {len(self.expected)} results after the timing"
        return f"ok: {us:.3f} us, plainest {plain_us:.3f}"

    def begin(self, plainest: Config) -> None:
        """Make the inputs, and the results that all others are held against."""
        first = random_operands(self.problem, self.device)
        size = sum(tensor.nbytes for tensors in first for tensor in tensors.values())
        others = range(calls_of(self.problem, size) - 1)
        self.inputs = [first, *(random_operands(self.problem, self.device) for _ in others)]
        call = self.run(plainest)
        call()
        torch.cuda.synchronize()
        self.expected = [c.clone() for c in self.outputs]
        self.plainest = call

    def run(self, config: Config) -> Callable[[], None]:
        """What calls a configuration on all inputs, one after the other."""
        calls = [bind(self.problem, groups, config) for groups in self.inputs]

        def call() -> None:
            for each in calls:
                each()

        return call

    def wrong(self, call: Callable[[], None]) -> int:
        """How many results of a run are not the plainest's. All outputs are NaN before."""
        for c in self.outputs:
            c.fill_(float("nan"))
        call()
        torch.cuda.synchronize()
        pairs = zip(self.outputs, self.expected, strict=True)
        return sum(not torch.allclose(a.float(), b.float(), RTOL, ATOL) for a, b in pairs)

    def times(self, call: Callable[[], None], plainest: Callable[[], None]) -> tuple[float, float]:
        """Microseconds of one call of either, timed by turns between two events. Before each run a
        write clears the L2, and takes longer than the host to launch."""
        clear = torch.zeros(CLEAR_BYTES, dtype=torch.uint8, device=self.device)
        begin = time.perf_counter()
        call()
        host = time.perf_counter() - begin
        clears = min(1 + int(host / CLEAR_SECONDS), MAX_CLEARS)
        found: dict[Callable[[], None], list[float]] = {plainest: [], call: []}
        for _ in range(ROUNDS):
            for run, times in found.items():
                for _ in range(clears):
                    clear.zero_()
                start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                start.record()
                run()
                stop.record()
                stop.synchronize()
                times.append(start.elapsed_time(stop))
        calls = len(self.inputs)
        return 1e3 * usual(found[call]) / calls, 1e3 * usual(found[plainest]) / calls


def usual(times: list[float]) -> float:
    """The mean of the milliseconds that are not far above the median. Events may tick in steps:
    over these a mean is right, and a median is one of two steps."""
    limit = 1.5 * statistics.median(times) + EVENT_STEP
    return statistics.fmean(time for time in times if time <= limit)


# ---- the survey ----------------------------------------------------------------------------------


def survey(device: torch.device) -> bool:
    """Run the trials; whether all of them are done. RuntimeError where one takes the GPU with it:
    nothing runs any more in this process."""
    begin(device)
    work = None
    for place, trial in enumerate(TRIALS):
        if time.monotonic() - BEGIN > SECONDS:
            say(f"end: out of time, {len(TRIALS) - place} left")
            return False
        if work is None or work.problem != trial.problem:
            work = Work(trial.problem, device)
        elif work.plainest is None:
            say(f"skipped {trial.number}: nothing to hold it against")
            continue
        say(f"try {trial.number} {trial.name}")
        with time_limit(trial):
            try:
                verdict = work.judge(trial.config)
            except Exception as error:
                verdict = failed(trial, error)
        word, _, rest = verdict.partition(":")
        say(f"{word} {trial.number}:{rest}")
    say("end: all tried")
    return True


def failed(trial: Trial, error: Exception) -> str:
    """The verdict of a trial that raised; RuntimeError if the GPU is lost."""
    first = str(error).partition("\n")[0][:120]
    try:
        torch.cuda.synchronize()
    except Exception:
        say(f"faulted {trial.number}: {first}")
        raise RuntimeError(f"the GPU is lost since this ran: {trial.name}") from error
    return f"failed: {type(error).__name__}: {first}"


def begin(device: torch.device) -> None:
    """The line that says what ran where and when. A B200 in software replaces functions of
    torch.cuda, not the count of devices below them, which a torch without CUDA lacks."""
    name = torch.cuda.get_device_name(device)
    count = getattr(torch._C, "_cuda_getDeviceCount", None)
    if count is None or count() == 0:
        name += IN_SOFTWARE
    capability = ".".join(map(str, torch.cuda.get_device_capability(device)))
    dsl = importlib.metadata.version("nvidia-cutlass-dsl")
    day = time.strftime("%Y-%m-%d", time.gmtime())
    say(f"begin: {name}; {capability}; {day}; submission {DIGEST}; DSL {dsl}; {len(TRIALS)} trials")


def go_on(said: str) -> list[Trial]:
    """The trials that are left after what was said, with the plainest of each of their problems. A
    problem whose plainest did not come out well is left out."""
    lines = said.splitlines()
    tried = {int(n) for n in re.findall(r"^survey: try (\d+) ", said, re.MULTILINE)}
    left = []
    for problem in dict.fromkeys(trial.problem for trial in TRIALS):
        first, *others = [trial for trial in TRIALS if trial.problem == problem]
        new = [trial for trial in others if trial.number not in tried]
        is_good = any(line.startswith(f"survey: ok {first.number}:") for line in lines)
        if first.number not in tried or (is_good and new):
            left += [first, *new]
    return left


SURVEYED = threading.Lock()


def custom_kernel(data: Any) -> Any:
    """The survey, in the first call; then c of the caller's problem by its pick, and it."""
    groups, result = unpack(data)
    problem = problem_of(data, groups)
    if SURVEYED.acquire(blocking=False):
        survey(groups[0]["c"].device)
    launch(problem, groups)
    return result


if __name__ == "__main__" and len(sys.argv) == 2:
    path = Path(sys.argv[1])
    TRIALS = go_on(path.read_text() if path.exists() else "")
    sys.exit(0 if survey(torch.device("cuda")) else 1)
