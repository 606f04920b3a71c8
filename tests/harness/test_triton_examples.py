"""docs/triton.md's examples: submissions in Triton and in Gluon pass, and are checked."""

from __future__ import annotations

import json

import pytest

from tests import ROOT

pytest.importorskip("triton", minversion="3.8")

EXAMPLES = {
    "gemv_triton.py": ("gemv", "m: 135; k: 704; l: 2"),
    "dual_gluon.py": ("dual", "m: 135; n: 75; k: 704; l: 1"),
}


def evaluate(fork_server, submission, problem: str, case: str) -> dict:
    options = ("--json", "--device", "emulator", "--case", case, "--submission", str(submission))
    done = fork_server.run(str(ROOT / "eval.py"), "test", problem, *options)
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", EXAMPLES)
def test_it_passes(fork_server, name):
    record = evaluate(fork_server, ROOT / "docs" / "examples" / name, *EXAMPLES[name])
    assert record["status"] == "pass", record


def test_a_missing_wait_is_named(fork_server, tmp_path):
    text = (ROOT / "docs" / "examples" / "dual_gluon.py").read_text()
    wait = "        mbarrier.wait(full.index(stage), step // 2 & 1)\n"
    assert text.count(wait) == 1
    submission = tmp_path / "no_wait.py"
    submission.write_text(text.replace(wait, "\n"))
    line = next(i for i, each in enumerate(text.splitlines(), 1) if "mma_scaled(x, y1" in each)
    record = evaluate(fork_server, submission, *EXAMPLES["dual_gluon.py"])
    assert record["status"] == "fail"
    assert f"no_wait.py:{line}: race: tcgen05.mma reads shared memory" in record["message"]
