"""Published against modelled times: reading, halves, statistics, resuming."""

from __future__ import annotations

import json

import pytest

from b200.clock.kind import KINDS
from harness.evaluator.ladder import command, errors
from harness.evaluator.ladder.points import LadderError, Point, read_points
from tests import ROOT

HEAD = "problem,version,benchmark_shape,published_us,note\n"


def record(shape: int, version: str, published: float, modelled: float | None, **more) -> dict:
    point = Point("gemm", version, shape, published, "")
    status = "pass" if modelled is not None else "error"
    fields = {"name": point.name, "parity": point.parity, "kind": "pairs", "problem": "gemm"}
    return fields | {
        "shape": shape,
        "published_us": published,
        "time_us": modelled,
        "status": status,
        "message": "no such thing",
        **more,
    }


@pytest.mark.parametrize(
    "problem, version, parity",
    # first bytes of `printf gemm/v0 | sha256sum` and so on: 43, 74, e3, 00
    [("gemm", "v0", "odd"), ("gemm", "v2", "even"), ("dual", "v2", "odd"), ("group", "v6", "even")],
)
def test_halves_are_told_by_the_digest(problem, version, parity):
    assert Point(problem, version, 1, 1.0, "").parity == parity


def test_published_times_are_read(tmp_path):
    path = tmp_path / "times.csv"
    path.write_text(HEAD + 'gemm,v1,2,8.47,"split K, fp32"\ngroup,v6,4,6.43,\n')
    first, last = read_points(path)
    assert first == Point("gemm", "v1", 2, 8.47, "split K, fp32")
    assert first.file(tmp_path) == tmp_path / "nvfp4_gemm" / "submission_v1.py"
    assert first.case().args["n"] == 4096 and last.case().args["g"] == 2


@pytest.mark.parametrize(
    "text, said",
    [
        ("", "holds no times"),
        ("problem,version,shape\na,b,1\n", "no column benchmark_shape"),
        (HEAD + "gem,v1,1,8.5,\n", ":2: unknown problem"),
        (HEAD + "gemm,v1,1,8.5,\ngemm,v1,4,8.5,\n", ":3: benchmark_shape of gemm is 1..3, got 4"),
        (HEAD + "gemm,v1,1,-8.5,\n", "published_us must be positive, got -8.5"),
        (HEAD + "gemm,v1,one,8.5,\n", ":2: invalid literal"),
        (HEAD + "gemm,../v1,1,8.5,\n", "expected a version such as v3b, got '../v1'"),
    ],
)
def test_bad_times_are_named(tmp_path, text, said):
    path = tmp_path / "times.csv"
    path.write_text(text)
    with pytest.raises(LadderError, match=said.replace(".", r"\.")):
        read_points(path)


def test_rank_correlation():
    def found(*pairs: tuple[float, float]) -> float | None:
        return errors.spearman([record(1, f"v{i}", p, m) for i, (p, m) in enumerate(pairs)])

    assert found((1, 10), (2, 20), (3, 40), (9, 41)) == pytest.approx(1)
    assert found((1, 9), (2, 8), (3, 7)) == pytest.approx(-1)
    # scipy.stats.spearmanr([1, 2, 2, 4], [1, 3, 2, 4])
    assert found((1, 1), (2, 3), (2, 2), (4, 4)) == pytest.approx(0.9486832980505138)
    assert found((1, 1), (2, 2)) is None and found((1, 1), (1, 2), (1, 3)) is None


def test_the_most_a_rank_correlation_can_be():
    def found(*published: float) -> float | None:
        return errors.most_spearman([record(1, f"v{i}", p, 1) for i, p in enumerate(published)])

    assert found(3, 1, 2) == pytest.approx(1)
    # scipy.stats.spearmanr([9.43, 10.3, 10.3, 10.3, 10.3, 11.0], [1, 2, 3, 4, 5, 6])
    assert found(11.0, 10.3, 10.3, 9.43, 10.3, 10.3) == pytest.approx(0.8451542547285166)
    assert found(1, 2) is None and found(2, 2, 2) is None


def test_summaries():
    records = [record(1, "v0", 10, 11), record(1, "v3b", 10, 7), record(1, "v2", 10, 10.5)]
    odd, _, _, even, *_ = errors.summaries(records)
    assert (odd["name"], odd["count"]) == ("odd half", 2)
    assert odd["median"] == pytest.approx(0.2) and odd["worst"] == pytest.approx(0.3)
    assert odd["mean"] == pytest.approx(-0.1)
    assert (even["name"], even["count"]) == ("even half", 1)
    plain = errors.summaries([record(1, "v2", 10, 12), record(2, "v2", 10, 12, kind="split K")])
    names = ["even half", "even: problem gemm", "even: kind pairs", "even: kind split K"]
    assert [s["name"] for s in plain] == names
    failed = record(1, "v4", 10, None)
    shown = errors.text([*records, failed])
    assert "ERROR: no such thing" in shown and "gemm/v0 1" in shown and "+10.0%" in shown


READS_B = '''
import b200

PTX = """.version 8.8
.target sm_100a
.address_size 64
.visible .entry k(.param .u64 b) {
.reg .b64 %a, %o;
.reg .b32 %c;
ld.param.b64 %a, [b];
mov.b32 %c, %ctaid.x;
mul.wide.u32 %o, %c, 65536;
add.s64 %a, %a, %o;
cp.async.bulk.prefetch.L2.global [%a], 65536;
ret;
}
"""

def custom_kernel(data):
    ctas = data[1].numel() // 65536
    b200._runtime.gpu.launch(PTX, None, (ctas, 1, 1), (1, 1, 1), args=[data[1]])
    return data[-1]
'''


def test_a_ladder_is_run_once(tmp_path, capsys, fork_server):
    """A version that reads the weights, one that crashes, and one without a file; run again, only
    what failed is run.
    """
    folder = tmp_path / "files" / "nvfp4_gemm"
    folder.mkdir(parents=True)
    (folder / "submission_ours.py").write_text(READS_B)
    (folder / "submission_bad.py").write_text("raise RuntimeError('not today')\n")
    times, points = tmp_path / "times.csv", tmp_path / "points.jsonl"
    rows = ("ours,3,6.5", "bad,3,7.0", "absent,3,8.0")
    times.write_text(HEAD + "".join(f"gemm,{row},\n" for row in rows))
    arguments = ("ladder", str(times), str(tmp_path / "files"), "--out", str(points))
    command = (str(ROOT / "eval.py"), *arguments)
    done = fork_server.run(*command, cwd=tmp_path)
    assert done.returncode == 112 and "no file for gemm/absent" in done.stderr, done.stderr
    ours, bad = map(json.loads, points.read_text().splitlines())
    assert ours["status"] == "pass" and 2 < ours["time_us"] < 20
    assert ours["dram_bytes"] == 7168 * 2048 // 2  # b's codes of the third shape
    assert ours["kind"] in KINDS and bad["kind"] == ""
    assert bad["status"] == "error" and "not today" in bad["message"]
    points.write_text(json.dumps({**ours, "time_us": 5.0}) + '\n{"name": "gem')
    (folder / "submission_bad.py").unlink()
    again = fork_server.run(*command, cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert "    5.00  -23.1%" in again.stdout
    (only,) = map(json.loads, points.read_text().splitlines())
    assert only["time_us"] == 5.0


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["absent.csv", "."], "cannot read absent.csv"),
        (["times.csv", "absent"], "there is no folder absent"),
        (["times.csv", "."], "no submission of these times is there; expected nvfp4_gemm/"),
        (["times.csv", ".", "--only", "gemm/v9"], "--only gemm/v9: no such problem or version"),
        (["times.csv", ".", "--jobs", "0"], "--jobs must be 1..256, got 0"),
    ],
)
def test_bad_arguments_are_named(tmp_path, monkeypatch, capsys, arguments, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "times.csv").write_text(HEAD + "gemm,v1,1,8.5,\n")
    assert command.main([*arguments, "--out", "out.jsonl"]) == 2
    assert said in capsys.readouterr().err
