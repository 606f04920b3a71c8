"""A survey in the emulator, run by run as on a board: one trial hangs, one takes the GPU with it, one
has wrong sums. They cost three lines; the rest is chosen, and fills the table.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import submission
from lab.boards import measured
from lab.survey import make, said, table
from submission import Pick
from tests import ROOT

CASE = "m: 40; n: 256; k: 512; l: 1"
RUN = """
import importlib.util, sys, time
from pathlib import Path
import b200
b200.install(check=False, timing=True)
import torch
spec = importlib.util.spec_from_file_location("survey", sys.argv[1])
m = importlib.util.module_from_spec(spec)
sys.modules["survey"] = m
spec.loader.exec_module(m)
m.CALLS, m.ROUNDS, m.MAX_CLEARS, m.CLEAR_BYTES = 2, 2, 1, 1 << 10
m.SECONDS = 1e6
hang, fault, wrong = (m.TRIALS[i].config for i in (1, 2, 3))
bind, synchronize, limit, lost = m.bind, torch.cuda.synchronize, m.time_limit, []

def limited(trial):
    m.TRIAL_SECONDS = 8.0 if trial.config == hang else 30.0
    return limit(trial)

def planted(problem, groups, config):
    call = bind(problem, groups, config)

    def other():
        call()
        if config == hang:
            time.sleep(600)
        if config == fault:
            lost.append(config)
        if config == wrong:
            groups[0]["c"].mul_(1.01)

    return other

def checked():
    if lost:
        raise RuntimeError("an illegal memory access was encountered")
    synchronize()

m.bind, torch.cuda.synchronize, m.time_limit = planted, checked, limited
out = Path(sys.argv[2])
m.TRIALS = m.go_on(out.read_text() if out.exists() else "")
sys.exit(0 if m.survey(torch.device("cuda")) else 1)
"""


@pytest.mark.slow
def test_a_hang_a_fault_and_wrong_sums_cost_three_lines(tmp_path):
    survey, out, copy = (tmp_path / name for name in ("survey.py", "out.txt", "mine.py"))
    assert make.main(["gemm", "--case", CASE, "--count", "6", "--out", str(survey)]) == 0
    ends = []
    while 0 not in ends and len(ends) < 5:
        command = [sys.executable, "-c", RUN, str(survey), str(out)]
        done = subprocess.run(command, stderr=open(out, "a"), cwd=ROOT, timeout=300)
        ends.append(done.returncode)
    assert ends == [3, 1, 0]
    judged = said.latest(said.read(out.read_text(), "out.txt"))
    (verdicts,) = judged.values()
    assert [one.verdict for one in verdicts.values()] == [
        "ok",
        "hung",
        "faulted",
        "differs",
        "ok",
        "ok",
    ]
    given = ["--after", str(out), "--out", str(survey), "--count", "6"]
    assert make.main(["gemm", "--case", CASE, *given]) == 0  # nothing is left
    source = Path(submission.__file__).read_text()
    copy.write_text(source)
    assert measured.main([str(out), "--apply", "--any-gpu", "--submission", str(copy)]) == 0
    good = [one for one in verdicts.values() if one.verdict == "ok"]
    best = min(good, key=lambda one: one.score)
    row = table.row(best.problem, Pick(best.config, f"NVIDIA B200 in software, {best.day}"))
    assert copy.read_text().count(row + "\n") == 1
    assert copy.read_text().replace(row + "\n", "") == source
