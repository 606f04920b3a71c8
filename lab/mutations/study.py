"""Random single mutations of submission.py's compiled PTX: how many are caught, and how many named.

    python -m lab mutations --count 180 --jobs 16 --lines FILE [--out FILE]

A mutation drops an arrive, a fence or a wait, or changes a count, an offset, a parity or a
coordinate. It runs in the emulator under two schedules and is caught by a guard, a deadlock report,
a finding of the checker, or a wrong result. Every instruction that the launch executes may be
drawn, and no draw is left out. Its cause is named if the first three lines of what is said have it
(trials.py). Survivors are listed with why they are harmless.

FILE gets a line of JSON for each mutation as soon as it is done; those of the same kernel and seed
that stand there already are not run again.
"""

from __future__ import annotations

import functools
import hashlib
import json
import multiprocessing
import random
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path

import torch

import b200
import submission
from b200 import records
from b200.command_line import Parser
from harness import digest
from lab.mutations import kinds
from lab.mutations.trials import Result, places, trial, verdict

# --- in a process of its own ----------------------------------------------------------------------


@functools.cache
def _drawn(seed: int, count: int) -> tuple:
    """(gpu, the launches, the mutations, what the instructions of each launch work on); once in a
    process.
    """
    torch.set_num_threads(1)
    gpu = b200.install(check=True)
    rng, subjects = random.Random(seed), kinds.subjects(gpu)
    drawn = list(kinds.draw(subjects, rng, count))
    return gpu, subjects, drawn, {subject.name: places(gpu, subject) for subject in subjects}


def _kernel(seed: int, count: int) -> str:
    """A digest of the kernels that are mutated; AssertionError if one of them is not clean."""
    gpu, subjects, _, _ = _drawn(seed, count)
    for subject in subjects:
        how = verdict(gpu, subject, subject.text).how
        assert how == "survived", f"{subject.name} is not clean: {how}"
    return hashlib.sha256("".join(s.text for s in subjects).encode()).hexdigest()[:16]


def _run(seed: int, count: int, number: int) -> Result:
    gpu, _, drawn, works_on = _drawn(seed, count)
    subject, mutation = drawn[number]
    return trial(gpu, number, subject, mutation, works_on[subject.name])


# --- the command ----------------------------------------------------------------------------------


class Lines:
    """The file of results: those of this run that stand there, and those that are added."""

    def __init__(self, path: Path | None, run: dict):
        self.path, self.run = path, run
        self.results: dict[int, Result] = {}
        if path is not None and path.exists():
            for line in path.read_text().splitlines():
                found = json.loads(line)
                if {key: found.pop(key, None) for key in run} == run:
                    self.results[found["number"]] = Result(**found)

    def add(self, result: Result) -> None:
        self.results[result.number] = result
        line = json.dumps({**self.run, **asdict(result)})
        print(line, flush=True)
        if self.path is not None:
            with self.path.open("a") as file:
                file.write(line + "\n")


def summary(results: list[Result], seed: int) -> str:
    caught = [r for r in results if r.caught]
    tally = Counter(r.how for r in caught)
    right = sum(r.named for r in caught)
    return (
        f"{len(caught)} of {len(results)} caught ({len(caught) / len(results):.0%}), the cause of "
        f"{right} in the first three lines ({right / max(1, len(caught)):.0%} of those caught), "
        f"seed {seed}: " + ", ".join(f"{n} {how}" for how, n in tally.most_common())
    )


def made_by() -> dict[str, str]:
    """What the verdicts on mutations depend on."""
    parts = digest.made_by(parts=("program", "chip", "checker"))
    return parts | {"submission": digest.of_file(Path(submission.__file__))}


def record(results: list[Result], seed: int) -> dict:
    """The run as lab/tables/catalogue.py renders it: counts by kind, the survivors one by one."""
    drawn, caught, right = Counter(), Counter(), Counter()
    for r in results:
        kind = r.mutation.split(":")[0]
        drawn[kind] += 1
        caught[kind] += r.caught
        right[kind] += r.named
    return {
        "made_by": made_by(),
        "count": len(results),
        "seed": seed,
        "how": dict(Counter(r.how for r in results if r.caught).most_common()),
        "kinds": [
            {"kind": kind, "drawn": n, "caught": caught[kind], "named": right[kind]}
            for kind, n in sorted(drawn.items())
        ],
        "survivors": [
            {"launch": r.launch, "mutation": r.mutation, "ptx": r.ptx[:60], "why": r.why}
            for r in results
            if not r.caught
        ],
    }


def main() -> int:
    parser = Parser("python -m lab mutations", __doc__)
    parser.add_argument("--count", type=int, default=60, help="mutations to draw (default 60)")
    parser.add_argument("--seed", type=int, default=1, help="of the draw (default 1)")
    parser.add_argument("--jobs", type=int, default=1, help="processes (default 1)")
    parser.add_argument(
        "--lines",
        type=Path,
        metavar="FILE",
        help="keep results here, and go on with those that are there",
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="also write the counts there")
    options = parser.parse_args()
    seed, count, begin = options.seed, options.count, time.perf_counter()
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.jobs, mp_context=spawn) as pool:
        run = {"seed": seed, "kernel": pool.submit(_kernel, seed, count).result()}
        lines = Lines(options.lines, run)
        todo = [number for number in range(count) if number not in lines.results]
        for future in as_completed(pool.submit(_run, seed, count, number) for number in todo):
            lines.add(future.result())
    results = [lines.results[number] for number in range(count)]
    said = [f"{summary(results, seed)}, in {time.perf_counter() - begin:.0f} s", "survivors:"]
    said += [f"  {r.launch}: {r.mutation}, {r.ptx}\n    {r.why}" for r in results if not r.caught]
    print("\n".join(said), file=sys.stderr)
    if options.out:
        records.write(options.out, record(results, seed))
    return 0


if __name__ == "__main__":
    sys.exit(main())
