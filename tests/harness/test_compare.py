"""Several submissions side by side, and an organiser's folder run in its own way."""

from __future__ import annotations

import json
import os

import pytest

from harness.evaluator import official
from harness.evaluator.compare import command as compare
from harness.evaluator.compare import side_by_side
from harness.evaluator.compare.command import Result
from task import find_problem
from tests import ROOT

CASE = "m: 128; n: 128; k: 256; l: 1"


@pytest.fixture
def command(tmp_path, fork_server):
    """command(*arguments): eval.py from the test's folder, which finds no GPU to take."""
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    return lambda *arguments: fork_server.run(
        str(ROOT / "eval.py"), *arguments, cwd=tmp_path, env=environment
    )


# Its numbers are the host's: what is compared here is how a kernel is told of, not how it computes.
READS_CODES = '''
import b200
from reference import ref_kernel

PTX = """.version 8.8
.target sm_100a
.address_size 64
.visible .entry k(.param .u64 codes) {
.reg .b64 %a;
ld.param.b64 %a, [codes];
cp.async.bulk.prefetch.L2.global [%a], 16384;
ret;
}
"""

def custom_kernel(data):
    for codes in data[:2]:
        b200._runtime.gpu.launch(PTX, None, (1, 1, 1), (1, 1, 1), args=[codes])
    return ref_kernel(data)
'''


def test_right_wrong_and_crashing_side_by_side(command, tmp_path):
    bodies = {
        "wrong.py": "return data[-1].zero_()",
        "crash.py": "import os; os._exit(3)",
        "cuda.py": "import torch\n    assert data[0].is_cuda and data[-1].device.type == 'cuda'\n"
        "    scratch = torch.empty(4, device='cuda')\n    from submission_ours import custom_kernel"
        " as ours\n    return ours(data)",
    }
    for name, body in bodies.items():
        (tmp_path / name).write_text(
            f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
            f"from task import input_t, output_t\nfrom utils import make_match_reference\n"
            f"def custom_kernel(data: input_t) -> output_t:\n    {body}\n"
        )
    (tmp_path / "submission_ours.py").write_text(READS_CODES)
    files = ("cuda.py", "wrong.py", "crash.py", "submission_ours.py")
    picture = tmp_path / "picture.png"
    done = command("compare", *files, "gemm", "--case", CASE, "--json", "--plot", str(picture))
    assert done.returncode == 112, done.stderr
    cuda, wrong, crash, ours = map(json.loads, done.stdout.splitlines())
    assert [r["submission"] for r in (cuda, wrong, crash, ours)] == list(files)
    assert (cuda["status"], ours["status"]) == ("pass", "pass"), cuda["message"]
    alone = command("leaderboard", "gemm", "--case", CASE, "--json", "--submission", files[-1])
    told = json.loads(alone.stdout)
    assert {key: told[key] for key in told.keys() & ours} == {
        key: ours[key] for key in told.keys() & ours
    }
    assert (wrong["status"], crash["status"]) == ("fail", "error")
    assert "elements differ" in wrong["message"] and "exit status 3" in crash["message"]
    assert cuda["kind"] == "modelled" and cuda["ratio"] == 1 and wrong["time_us"] is None
    assert ours["ratio"] == ours["time_us"] / cuda["time_us"]
    assert ours["dram_bytes"] == 2 * 128 * 128  # codes of weights and tokens, read once
    assert 0 < sum(us for _, us in ours["phases"]) <= ours["time_us"]
    assert picture.read_bytes().startswith(b"\x89PNG")


def rounds(*times: float | None, status: str = "pass", message: str = "") -> Result:
    from harness.evaluator.cases import make_case, parse

    records = [
        {"status": status, "message": message, "kind": "measured", "device": "NVIDIA B200"}
        | ({} if t is None else {"time_us": t, "low_us": t - 1, "high_us": t + 1})
        for t in times
    ]
    case = make_case(find_problem("gemm"), parse(CASE), CASE)
    return Result("a.py", case, records)


def test_the_median_of_the_rounds_counts():
    result = rounds(9.0, 5.0, 6.0)
    assert result.time_us == 6.0 and result.range_us() == (4.0, 10.0)
    assert compare.ratio(rounds(12.0), result) == 2.0
    assert compare.ratio(rounds(None), result) is None
    text = compare.table([[result, rounds(3.0)]])
    assert "measured on NVIDIA B200" in text and "0.500 of the first" in text


def test_what_the_checker_objects_to_is_timed_and_marked():
    result = rounds(5.0, status="fail", message=f"{side_by_side.CHECKER} 1 thing(s)\na race")
    line = compare.table([[result]]).splitlines()
    assert any("CHECK" in text and "5.00" in text for text in line)
    assert any(f"{side_by_side.CHECKER} 1 thing(s) | a race" in text for text in line)


def test_a_case_that_is_timed_again_keeps_its_verdict():
    verdict = {"status": "fail", "message": f"{side_by_side.CHECKER} 1 thing(s)", "time_us": None}
    other = {"status": "fail", "message": "12 of 64 elements differ"}
    assert side_by_side.objected([other, verdict, {"status": "pass", "message": ""}]) == [1]
    timed = {"status": "pass", "message": "", "time_us": 5.0}
    assert side_by_side.with_time(verdict, timed) == verdict | {"time_us": 5.0}
    assert side_by_side.with_time(verdict, {"status": "error"}) == verdict


@pytest.mark.parametrize(
    "arguments, said",
    [
        (("a.py", "gemm"), "a.py is not a file"),
        (("gemm",), "expected two or more submissions (FILE.py), got none"),
        (
            ("{here}", "gemm"),
            "expected two or more submissions (FILE.py), got 1; eval.py benchmark",
        ),
        (("{here}", "{here}"), "expected one problem (gemv, gemm, dual, group), got none"),
        (("{here}", "{here}", "gemm", "gemv"), "got gemm, gemv"),
        (("{here}", "{here}", "gemm", "--rounds", "0"), "--rounds must be positive, got 0"),
        (("{here}", "{here}", "gemm", "--case", "m: 1; n: 2"), "m: 1; n: 2"),
        (("{here}", "{here}", "gemm", "--plot", "no/p.png"), "--plot: there is no folder"),
    ],
)
def test_bad_arguments_of_compare(arguments, said, capsys):
    given = [a.format(here=ROOT / "submission.py") for a in arguments]
    assert compare.main(given) == 2
    captured = capsys.readouterr().err
    assert said in captured and len(captured.splitlines()) == 1


def test_names_tell_files_apart():
    assert compare.names_of(["/x/a.py", "/y/b.py"]) == ["a.py", "b.py"]
    assert compare.names_of(["/x/a.py", "/y/a.py"]) == ["x/a.py", "y/a.py"]


HARNESS = """
import multiprocessing, os, sys
from utils import WORD

def work(line):
    import torch
    from submission import custom_kernel
    return str(custom_kernel(torch.ones(2, device="cuda")).device)

if __name__ == "__main__":
    out = os.fdopen(int(os.environ["POPCORN_FD"]), "w")
    lines = open(sys.argv[2]).read().splitlines()
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        for line in lines:
            print(f"{WORD}.{sys.argv[1]}: {line} on {pool.apply(work, (line,))}", file=out)
    print("seed:", os.environ.get("POPCORN_SEED"), file=out)
    sys.exit(112)
"""

TASK = """
files:
  - {"name": "submission.py", "source": "@SUBMISSION@"}
  - {"name": "utils.py", "source": "../utils.py"}
  - {"name": "eval.py", "source": "harness.py"}
config:
  main: "eval.py"
description: |
  Several
  lines.
tests:
  - {"m": 128, "k": [64, 32]}
  - {"m": 256, "k": [64]}
benchmarks:
  - {"m": 512, "k": [64]}
"""


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "problems" / "one"
    place.mkdir(parents=True)
    (tmp_path / "problems" / "utils.py").write_text("WORD = 'test'\n")
    (place / "harness.py").write_text(HARNESS)
    (place / "task.yml").write_text(TASK)
    (tmp_path / "mine.py").write_text("def custom_kernel(data):\n    return data + 1\n")
    return place


def test_an_organisers_folder_runs_in_its_own_way(folder, command):
    pytest.importorskip("yaml")
    done = command("--official", str(folder), "test", "--submission", "mine.py", "--seed", "7")
    assert done.stdout.splitlines() == [
        "test.test: m: 128; k: [64, 32] on cuda:0",
        "test.test: m: 256; k: [64] on cuda:0",
        "seed: 7",
    ], done.stderr
    assert done.returncode == 112
    assert done.returncode == 112
    assert "mine.py: nothing that a board refuses" in done.stderr  # lint is the last step


@pytest.mark.parametrize(
    "theirs, more, status",
    [(0, "", 0), (0, "# no stream\n", 112), (3, "# no stream\n", 3)],
)
def test_an_organisers_folder_ends_with_the_status_of_lint(
    folder, tmp_path, monkeypatch, capsys, theirs, more, status
):
    """Their harness passes a file that a board's upload would refuse."""
    pytest.importorskip("yaml")
    monkeypatch.setattr(official, "run", lambda *arguments: theirs)
    mine = tmp_path / "mine.py"
    mine.write_text(mine.read_text() + more)
    assert official.main([str(folder), "test", "--submission", str(mine)]) == status
    said = capsys.readouterr().err
    assert ("mine.py: refused, for 1 reason" if more else "nothing that a board refuses") in said


def test_what_is_wrong_with_a_folder_is_said(folder, tmp_path, capsys):
    pytest.importorskip("yaml")
    assert official.main([str(tmp_path)]) == 2
    assert "task.yml is not a file" in capsys.readouterr().err
    (folder / "harness.py").unlink()
    assert official.main([str(folder)]) == 2
    assert "harness.py, which is not a file" in capsys.readouterr().err
    (folder / "task.yml").write_text("files: [1]")
    assert official.main([str(folder)]) == 2
    said = capsys.readouterr().err
    assert "is not a problem's task.yml" in said and len(said.splitlines()) == 1
