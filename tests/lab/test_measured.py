"""Times that a board gives back. The samples follow the public sources, not the parser:

gpu-mode/kernelbot 4bdd839: src/libkernelbot/report.py for the report and its signs, and the times of
tests/test_utils.py (test_format_time) as format_time writes them.
gpu-mode/popcorn-cli 886932d: src/service/mod.rs for the mean, src/cmd/submit.rs for how it is saved,
docs/profiling.md for the folder of a profile.
Nsight Compute's `--csv --page details`: the columns of captures in public repositories.
"""

from __future__ import annotations

import json

import pytest

from lab.boards import measured
from lab.boards.output import Measured, OutputError, read

ONE, TWO = (
    "m: 128; n: 7168; k: 16384; l: 1; seed: 1111",
    "m: 128; n: 4096; k: 7168; l: 1; seed: 1111",
)
REPORT = f"""**Ranked submission**
> ✅ Testing successful
> ✅ Benchmarking successful
> ✅ Leaderboard run successful

Running on:
* GPU: `NVIDIA B200`
* CPU: `INTEL(R) XEON(R) PLATINUM 8570`
* Device count: `1`
* Runtime: `CUDA`
* Platform: `Linux-5.15.0`
* Torch: `2.12.0`
* Hostname: `modal`


## ✅ Passed 1/1 tests:
```
✅ m: 128; n: 256; k: 256; l: 1; seed: 1111```

## Benchmarks:
```
{ONE}
 ⏱ 51.2 ± 0.04 µs
 ⚡ 50.9 µs 🐌 52.0 µs

{TWO}
 ⏱ 2.15 ± 0.000 µs
 ⚡ 1518 ns 🐌 3.75 ms
```

## Ranked Benchmark:
```
{ONE}
 ⏱ 50.8 ± 0.02 µs
 ⚡ 50.1 µs 🐌 51.9 µs
```"""
SAVED = json.dumps([REPORT], ensure_ascii=False)[1:-1]  # popcorn-cli leaves the brackets out
BACKGROUND = """Geomean score (public) on B200: 0.0000123 s
Geomean score (secret) on B200: 1.25e-05 s

{
  "submission_id": 4711,
  "leaderboard": "nvfp4_gemm",
  "runs": []
}"""
PIPE = f"""benchmark-count: 1
benchmark.0.spec: {ONE}
benchmark.0.runs: 100
benchmark.0.mean: 19012.25
benchmark.0.std: 20.5
benchmark.0.err: 2.05
benchmark.0.best: 18950.0
benchmark.0.worst: 19203.5
check: pass
"""
AS_JSON = json.dumps(dict(line.split(": ", 1) for line in PIPE.splitlines()), indent=2)
HEAD = '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size",'
HEAD += '"Grid Size","Device","CC","Section Name","Metric Name","Metric Unit","Metric Value"'
ROW = '"{}","71","python3.13","127.0.0.1","{}","1","7","(192, 1, 1)","(112, 1, 1)","0","10.0",'
SOL = '"GPU Speed Of Light Throughput"'
FIRST, SECOND = (ROW.format(i, name) for i, name in ((0, "kernel_gemm"), (1, "reduce")))
DETAILS = f"""==PROF== Connected to process 71
{HEAD}
{FIRST}{SOL},"SM Frequency","Ghz","1.10"
{FIRST}{SOL},"Duration","us","21.34"
{FIRST}"Launch Statistics","Registers Per Thread","register/thread","168"
{SECOND}{SOL},"Duration","ns","1,504"
"""


def written(tmp_path, text: str, name: str = "out.txt"):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("text", [REPORT, SAVED], ids=["as shown", "as saved"])
def test_a_report(tmp_path, text):
    benchmarks = {"what": "benchmarks", "where": "NVIDIA B200"}
    one, two, ranked = read(written(tmp_path, text))
    assert one == Measured(ONE, 51.2, 0.04, 50.9, 52.0, **benchmarks)
    assert (two.case, two.us, two.error_us) == (TWO, 2.15, 0.0)
    assert (two.best_us, two.worst_us) == (pytest.approx(1.518), pytest.approx(3750))
    assert (ranked.us, ranked.what) == (50.8, "ranked benchmark")


@pytest.mark.parametrize("text", [PIPE, AS_JSON], ids=["pipe", "JSON"])
def test_the_lines_of_the_runner(tmp_path, text):
    (found,) = read(written(tmp_path, text))
    assert (found.case, found.what) == (ONE, "benchmark")
    times = found.us, found.error_us, found.best_us, found.worst_us
    assert times == pytest.approx((19.01225, 0.00205, 18.95, 19.2035))


def test_the_geometric_mean_of_a_run_in_the_background(tmp_path):
    public, secret = read(written(tmp_path, BACKGROUND))
    assert (public.us, public.board) == (pytest.approx(12.3), "nvfp4_gemm")
    assert (secret.us, secret.what) == (pytest.approx(12.5), "geometric mean, secret")


@pytest.mark.parametrize(
    "folder, case",
    [
        ("profile.0-m-128-n-7168-k-16384-l-1-seed-1111", ONE),
        (
            "profile.3-m-128-384-n-4096-4096-k-1536-1536-g-2-seed-1111",
            "m: [128, 384]; n: [4096, 4096]; k: [1536, 1536]; g: 2; seed: 1111",
        ),
    ],
)
def test_a_profile_in_its_folder(tmp_path, folder, case):
    (found,) = read(written(tmp_path, DETAILS, f"{folder}/ncu-details.csv"))
    assert found.case == case and found.us == pytest.approx(21.34 + 1.504)
    assert found.kernels == (("kernel_gemm", 21.34), ("reduce", pytest.approx(1.504)))


# Text, what is said of it.
BAD = [
    ("", "holds no time: expected a board's report"),
    (
        "> ✅ Testing successful\n> ❌ Running benchmarks failed (timeout)\n",
        "❌ Running benchmarks",
    ),
    (f"{ONE}\n ⏱ –\n", "out.txt:2: '–' is no time"),
    (f"{ONE}\n ⏱ 19.0 ± 0.02 fs\n", "out.txt:2: '19.0 ± 0.02 fs' is no time"),
    ("Matrix multiplication\n ⏱ 19.0 µs\n", "out.txt:1: malformed case 'Matrix multiplication'"),
    ("benchmark.0.mean: 12\n", "benchmark.0.spec: malformed case ''"),
    (PIPE.replace("19012.25", "fast"), "benchmark.0.mean: 'fast' is no number of nanoseconds"),
    (DETAILS, "no folder profile.INDEX-CASE tells the case: pass --case TEXT"),
    (DETAILS.replace('"Metric Value"', '"Value"'), "no column 'Metric Value'"),
    (DETAILS.replace('"Duration"', '"Elapsed Cycles"'), "no 'Duration' of a kernel"),
    (DETAILS.replace('"21.34"', '"n/a"'), "out.txt:4: the duration 'n/a' 'us' is no time"),
    ("m: 128; k: 999936; l: 1\n ⏱ 19.0 µs\n", "no modelled time of gemv m: 128; k: 999936; l: 1"),
    ("Geomean score on B200: 0.0000123 s\n", "pass --problem NAME"),
]


@pytest.mark.parametrize("text, words", BAD)
def test_what_is_no_output_is_a_line(tmp_path, capsys, text, words):
    with pytest.raises(SystemExit) as ended:
        measured.main([str(written(tmp_path, text))])
    said = capsys.readouterr().err
    assert ended.value.code == 2 and words in said and said.count("\n") == 1


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(OutputError, match="cannot read .*nowhere"):
        read(tmp_path / "nowhere")


def record(case: str, us: float) -> dict:
    return {
        "problem": "nvfp4_gemm",
        "case": case,
        "time_us": us,
        "kernel_us": us - 2,
        "low_us": 0.9 * us,
        "high_us": 1.2 * us,
        "range_from": "errors on 9 published times of kind CTA pairs",
    }


def test_measured_beside_modelled():
    call = Measured(ONE, 19.0, 0.02, 18.9, 19.3, "ranked benchmark", "NVIDIA B200")
    alone = Measured(ONE, 30.0, what="profile", kernels=(("kernel_gemm", 30.0),))
    inside, outside = measured.pairs([call, alone], [record(ONE, 20.0)], "")
    assert measured.lines(inside) == [
        "gemm m: 128; n: 7168; k: 16384; l: 1",
        "  measured    19.00 us  a call ± 0.02, 18.90 .. 19.30, ranked benchmark, NVIDIA B200",
        "  modelled    20.00 us  18.00 .. 24.00 by errors on 9 published times of kind CTA pairs",
        "  modelled over measured 1.05: within the clock's errors",
    ]
    assert outside.modelled_us == 18.0 and outside.range_us == pytest.approx((16.2, 21.6))
    assert measured.lines(outside)[-1].endswith("0.60: outside of the clock's errors")


def test_a_mean_is_of_all_benchmark_cases(tmp_path, capsys):
    """By this checkout's own records."""
    assert measured.main([str(written(tmp_path, BACKGROUND)), "--json"]) == 0
    public, secret = map(json.loads, capsys.readouterr().out.splitlines())
    records = map(json.loads, measured.RECORDS.read_text().splitlines())
    product = 1.0
    for row in (r for r in records if r["problem"] == "nvfp4_gemm"):
        product *= row["time_us"]
    assert public["modelled_us"] == secret["modelled_us"] == pytest.approx(product ** (1 / 3))


def test_rows_for_the_ladder(tmp_path, capsys):
    from harness.evaluator.ladder.points import read_points

    assert measured.main([str(written(tmp_path, REPORT)), "--ladder", "v7"]) == 0
    rows = "problem,version,benchmark_shape,published_us,note\n" + capsys.readouterr().out
    one, two = read_points(written(tmp_path, rows, "times.csv"))
    assert (one.name, one.published_us, two.name) == ("gemm/v7 1", 50.8, "gemm/v7 2")
