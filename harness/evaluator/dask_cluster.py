"""Jobs on a dask.distributed cluster (extra `dask`), in place of pool.py.

A job runs on a worker as it does here, in a process of its own. A worker that dies loses what it
was at to the others; a job that brings down several workers is reported as an error.
"""

from __future__ import annotations

import contextlib
import importlib.util
import pickle
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.evaluator import devices
from harness.evaluator.case.job import Job, Outcome
from harness.evaluator.devices import SetupError
from harness.evaluator.pool import Pool, die_with_parent

TICK = 0.5  # seconds between looks at what is done
CHECKOUT = Path(__file__).resolve().parents[2]
CONNECT = 10.0  # seconds to find the scheduler


def run_here(job: Job, source: str) -> Outcome:
    """On a worker: the job in an interpreter of its own, since neither a daemon nor a process with
    threads may fork. source: the submission, which may not be there as a file.
    """
    with tempfile.TemporaryDirectory(prefix="submission-") as folder:
        path = Path(folder, Path(job.submission).name)
        path.write_text(source)
        given, result = Path(folder, "job"), Path(folder, "outcome")
        given.write_bytes(pickle.dumps(replace(job, submission=str(path))))
        command = [sys.executable, "-m", "harness.evaluator.dask_cluster", str(given), str(result)]
        done = subprocess.run(
            command, cwd=CHECKOUT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        if not result.exists():
            last = done.stderr.strip().splitlines()[-1:] or ["no reason given"]
            return Outcome("error", f"the worker's process ended without an outcome: {last[0]}")
        return pickle.loads(result.read_bytes())


def main(given: str, result: str) -> None:
    """The interpreter of a job; it ends with the worker."""
    die_with_parent()
    job: Job = pickle.loads(Path(given).read_bytes())
    if job.device == "emulator":
        devices.start_emulator()
    (outcome,) = Pool("fork" if job.device == "emulator" else "spawn", workers=1).run([job])
    Path(result).write_bytes(pickle.dumps(outcome))


class Cluster:
    """Runs jobs on the workers of the scheduler at `address`. Raises SetupError without one.

    on_tick: see Pool; how long a job has been running is not known here.
    """

    def __init__(
        self,
        address: str,
        on_tick: Callable[[int, dict[int, float]], None] = lambda done, running: None,
    ):
        if importlib.util.find_spec("distributed") is None:
            raise SetupError(
                "--scheduler needs dask.distributed: run `python -m pip install '.[dask]'`"
            )
        from distributed import Client

        try:
            self._client = Client(address, timeout=CONNECT, set_as_default=False)
        except (OSError, ValueError) as error:
            raise SetupError(f"--scheduler: no dask scheduler at {address}: {error}") from None
        self._on_tick = on_tick

    def run(self, jobs: Sequence[Job]) -> Generator[Outcome, None, None]:
        """The outcomes in the order of the jobs, each once."""
        run = uuid.uuid4().hex  # keys are new: nothing of an earlier run is taken for this one's
        futures = [
            self._client.submit(
                run_here, job, Path(job.submission).read_text(), key=f"case-{run}-{i}", pure=False
            )
            for i, job in enumerate(jobs)
        ]
        try:
            for future in futures:
                while not _ended(future):
                    self._on_tick(sum(f.done() for f in futures), {})
                yield _outcome(future)
        finally:
            self._client.cancel(futures)
            self._client.close()


def _ended(future: Any) -> bool:
    """Whether a future is done, after waiting for it at most a tick."""
    with contextlib.suppress(Exception):  # what it raised is for _outcome to say
        future.result(timeout=TICK)
    return future.done()


def _outcome(future: Any) -> Outcome:
    try:
        return future.result()
    except Exception as error:
        return Outcome("error", f"the cluster gave no outcome: {type(error).__name__}: {error}")


if __name__ == "__main__":
    main(*sys.argv[1:])
