"""eval.py tune: what it asks of a submission, what it says, and a cluster that loses a worker."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.evaluator import cases, trials
from harness.evaluator.case import configs
from harness.evaluator.case.job import Outcome
from harness.evaluator.devices import Device
from task import PROBLEMS
from tests import ROOT
from tests.harness.sooner import eval_script

# A submission whose configuration is the number of rounds of a loop; the pick is not the best.
SUBMISSION = '''
import time
from dataclasses import dataclass
import b200
PTX = """.version 8.8
.target sm_100a
.address_size 64
.visible .entry k(.param .u32 rounds) {
.reg .b32 %i; .reg .pred %p;
ld.param.b32 %i, [rounds];
L: sub.u32 %i, %i, 1;
setp.ne.u32 %p, %i, 0;
@%p bra L;
ret;
}
"""

@dataclass(frozen=True)
class Config:
    rounds: int = 500
    spare: int = 0

def legal_configs(problem):
    return [Config(100 * i) for i in range(1, 9)]

def estimate(config, problem):
    return abs(config.rounds - 500)

def pick(problem):
    return min(legal_configs(problem), key=lambda config: estimate(config, problem))

def custom_kernel(data):
    config = pick(tuple(data[-1].shape))
    time.sleep(SLEEP)
    b200._runtime.gpu.launch(PTX, None, (1, 1, 1), (32, 1, 1), args=[config.rounds])
    return data[-1]
'''
CASE = "m: 8; n: 40; k: 64; l: 1"
EMULATED = ("--device", "emulator")


@pytest.fixture
def submission(tmp_path):
    def write(sleep: float = 0.0) -> str:
        path = tmp_path / "rounds.py"
        path.write_text(SUBMISSION.replace("SLEEP", str(sleep)))
        return str(path)

    return write


def module():
    space: dict = {"__name__": "rounds"}
    found = SimpleNamespace()
    sys.modules["rounds"] = found  # where dataclasses look for their module
    exec(SUBMISSION.replace("SLEEP", "0"), space)
    for name, value in space.items():
        setattr(found, name, value)
    # custom_kernel looks names up in `space`; a module's functions do so in the module.
    found.custom_kernel = lambda data: found.pick(data)
    return found


def asking(asked):
    """A module, its kernel and data."""
    return asked, asked.custom_kernel, "problem"


def test_configurations_are_ranked_by_the_kernels_own_estimate_the_pick_first():
    ranked = configs.rank(*asking(module()), 4)
    assert [fields["rounds"] for fields, _ in ranked] == [500, 400, 600, 300]
    assert [estimate for _, estimate in ranked] == [0, 100, 100, 200]


def test_a_configuration_takes_the_place_of_the_pick():
    asked = module()
    configs.fix(asked, {"rounds": 300})
    kernel = asked.custom_kernel
    assert (kernel("problem").rounds, kernel("other").rounds) == (300, 300)


@pytest.mark.parametrize("name", ["legal_configs", "estimate", "pick"])
def test_what_a_submission_must_have(name):
    asked = module()
    delattr(asked, name)
    with pytest.raises(configs.NoConfigs, match=f"no function {name}"):
        configs.rank(*asking(asked), 4)


def test_a_submission_that_never_asks():
    asked = module()
    asked.custom_kernel = lambda data: data
    with pytest.raises(configs.NoConfigs, match="does not call pick"):
        configs.rank(*asking(asked), 4)


def tuned(times) -> trials.Tuned:
    """A shape whose configurations take these microseconds."""
    (case,) = [cases.make_case(PROBLEMS["nvfp4_gemm"], cases.parse(CASE))]
    found = trials.Tuned(
        case, Outcome("pass", ranked=[({"a": 1, "b": i}, float(i)) for i in range(len(times))])
    )
    for trial, us in zip(found.trials, times):
        right = Outcome("pass", stats={"mean": us * 1e3}) if us else None
        trial.outcome = right or Outcome("error", "ValueError: no")
    return found


def test_the_loss_is_that_of_the_pick_against_the_best():
    found = tuned([3.0, 2.5, 4.0])
    record = found.record(Device("cuda", "B200", "B200"))
    assert (record["status"], record["kind"]) == ("pass", "measured")
    assert (record["time_us"], record["best_us"]) == (3.0, 2.5)
    assert record["loss"] == pytest.approx(0.2) and record["best"] == "b=1"
    lines = list(found.lines("measured"))
    assert "loses 20.0% to the best of 3, measured" in lines[0]
    assert lines[2].split()[:3] == ["2.50", "+0.0%", "2"] and lines[3].endswith("b=0  <- pick")


def test_a_configuration_that_fails_is_said_and_the_rest_counts():
    found = tuned([3.0, None, 2.0])
    assert found.outcome.status == "error" and found.record(Device("cuda", "x", "x"))["loss"] == 0.5
    assert any("ValueError: no" in line for line in found.lines("measured"))


def test_the_command(run_eval, submission, tmp_path):
    given = ("tune", "gemm", "--case", CASE, "--submission", submission(), "-n", "5", *EMULATED)
    done = run_eval(*given, "--json", "--plot", str(tmp_path / "trials.html"))
    assert done.status == 0, done.stderr
    (record,) = done.records
    assert record["mode"] == "tune" and record["kind"] == "modelled"
    times = {trial["config"]["rounds"]: trial["time_us"] for trial in record["tried"]}
    assert list(times) == [500, 400, 600, 300, 700]
    assert sorted(times, key=times.__getitem__) == sorted(times)  # more rounds take longer
    assert record["best"] == "rounds=300" and record["loss"] == times[500] / times[300] - 1
    page = (tmp_path / "trials.html").read_text()
    assert "the pick loses" in page and "us: rounds=700" in page
    assert "<- pick" in run_eval(*given).stdout


PLANTED = """
    if config.rounds == 400:
        time.sleep(600)
    if config.rounds == 600:
        os._exit(7)
    if config.rounds == 300:
        raise ValueError("no registers left")
"""


def test_what_hangs_dies_or_raises_costs_itself(run_eval, submission, tmp_path):
    path = Path(submission())
    text = path.read_text().replace("    time.sleep(0.0)\n", PLANTED.lstrip("\n"))
    path.write_text("import os\n" + text)
    given = ("tune", "gemm", "--case", CASE, "--submission", str(path), "-n", "6", *EMULATED)
    done = run_eval(*given, "--json", "--timeout", "4")
    (record,) = done.records
    found = {trial["config"]["rounds"]: trial["status"] for trial in record["tried"]}
    assert found == {
        500: "pass",
        400: "timeout",
        600: "error",
        300: "error",
        700: "pass",
        200: "pass",
    }
    assert record["best"] == "rounds=200"


def test_a_cluster_that_is_not_there(fork_server, submission, tmp_path):
    pytest.importorskip("distributed")
    given = ("tune", "gemm", "--case", CASE, "--submission", submission(), *EMULATED)
    command = eval_script(tmp_path, "harness.evaluator.dask_cluster.CONNECT", 0.5)
    done = fork_server.run(command, *given, "--scheduler", "tcp://127.0.0.1:9")
    assert done.returncode == 2 and done.stdout == ""
    assert "eval.py: --scheduler: no dask scheduler at tcp://127.0.0.1:9" in done.stderr


@pytest.mark.slow
def test_a_worker_that_is_killed_half_way(run_eval, submission, tmp_path):
    """Two workers, one killed for good: every configuration is there once, with the same times."""
    pytest.importorskip("distributed")
    given = ["tune", "gemm", "--submission", submission(sleep=0.5), "-n", "2", "--json", *EMULATED]
    for m in (8, 16):
        given += ["--case", CASE.replace("m: 8", f"m: {m}")]
    address = f"tcp://127.0.0.1:{_free_port()}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    paths = [tmp_path / f"{i}.log" for i in range(3)]
    logs = [open(path, "w") for path in paths]
    started = [
        subprocess.Popen(
            [sys.executable, "-m", f"distributed.cli.dask_{kind}", *more],
            env=environment,
            stdout=log,
            stderr=log,
            cwd=tmp_path,
        )
        for log, (kind, more) in zip(
            logs,
            [
                ("scheduler", ["--host", address, "--no-dashboard"]),
                ("worker", [address, "--nthreads", "1", "--no-nanny", "--no-dashboard"]),
                ("worker", [address, "--nthreads", "1", "--no-nanny", "--no-dashboard"]),
            ],
        )
    ]
    try:
        alone = run_eval(*given, limit=900)
        for path in paths[1:]:
            _wait_for("Registered to", path)
        process = subprocess.Popen(
            [sys.executable, str(ROOT / "eval.py"), *given, "--scheduler", address],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
        )
        first = process.stdout.readline()  # a shape is done, the other under way
        started[1].send_signal(signal.SIGKILL)
        out, err = process.communicate(timeout=900)
    finally:
        for server in started:
            server.kill()
            server.wait()
    assert process.returncode == 0, f"{first}{out}{err}"
    rows = [json.loads(line) for line in [first, *out.splitlines()]]
    assert [_without_seconds(row) for row in rows] == [_without_seconds(r) for r in alone.records]
    assert [len(row["tried"]) for row in rows] == [2, 2]


def _wait_for(said: str, log: Path) -> None:
    end = time.monotonic() + 120
    while said not in log.read_text():
        assert time.monotonic() < end, f"{said!r} is not in {log.read_text()}"
        time.sleep(0.1)


def _without_seconds(row: dict) -> dict:
    return {key: value for key, value in row.items() if key != "seconds"}


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
