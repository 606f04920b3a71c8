"""A problem of one's own: the files of docs/own-problem.md, right, and with planted mistakes that
`diff` has to name. Which one is planted says what is expected.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

from harness.own import mistakes
from harness.own.problem import ProblemError, Truth, read

pytest.importorskip("triton")
FOLDER = Path("docs/examples/own")
SOFTMAX, LAYER_NORM = FOLDER / "softmax_nvfp4.py", FOLDER / "layer_norm.py"


@pytest.fixture
def evaluate(fork_server):
    return lambda *words: fork_server.run("eval.py", *map(str, words))


@pytest.mark.parametrize("problem", [SOFTMAX, LAYER_NORM], ids=lambda path: path.stem)
def test_the_examples_are_right(evaluate, problem):
    done = evaluate("test", "--problem", problem, "--strict")
    assert done.returncode == 0 and "2 of 2 passed" in done.stdout, done.stdout + done.stderr


# MORE run with the sweeps: another formula, operand or place of a kind that PLANTED has.
PLANTED = [
    (SOFTMAX, "tl.exp(", "tl.exp2(", "explained: exp2 in the place of exp"),
    (SOFTMAX, "low | high << 4", "high | low << 4", "the halves of each byte are exchanged"),
    (LAYER_NORM, " + b, mask", ", mask", "explained: bias is not read: zeros stand for it"),
    (LAYER_NORM, "value - mean", "value", "the mean is not taken off"),
    (LAYER_NORM, "y + row * columns", "y + (row ^ 1) * columns", "rows of the output are in other"
     " places: row i has what belongs in row i ^ 1"),
    (LAYER_NORM, "mask=inside)\n\n", "mask=at < columns - 8)\n\n", "were never stored by any"
     " launch"),
]  # fmt: skip
MORE = [
    (SOFTMAX, "tl.max(groups, 1) / 6.0", "tl.max(groups, 1)", "a scale is the largest"),
    (LAYER_NORM, "* w + b", "* b + w", "explained: weight and bias are exchanged"),
    (LAYER_NORM, "tl.load(weight + at,", "tl.load(weight + at % 64,", "the first 64 elements of weight are read for each 64"),
    (LAYER_NORM, "weight + at,", "weight + (at ^ 1),", "neighbouring elements of weight are exchanged in pairs"),
]  # fmt: skip


def planted(tmp_path, problem: Path, old: str, new: str) -> Path:
    text = problem.read_text()
    assert text.count(old) == 1, text.count(old)
    path = tmp_path / "kernel.py"
    path.write_text(text.replace(old, new))
    return path


@pytest.mark.parametrize(
    "problem, old, new, said",
    [*PLANTED, *(pytest.param(*case, marks=pytest.mark.slow) for case in MORE)],
)
def test_diff_names_a_planted_mistake(evaluate, tmp_path, problem, old, new, said):
    kernel = planted(tmp_path, problem, old, new)
    done = evaluate("diff", "--problem", problem, "--submission", kernel)
    assert done.returncode == 112 and said in done.stdout, done.stdout + done.stderr


def test_test_names_diff_as_the_next_step_and_compare_goes_on(evaluate, tmp_path):
    kernel = planted(tmp_path, LAYER_NORM, " + b, mask", ", mask")
    one = ("--problem", LAYER_NORM, "--case", "rows: 2; columns: 64")
    done = evaluate("test", *one, "--submission", kernel)
    assert done.returncode == 112
    assert re.search(r"next: python eval.py diff --problem \S+ --submission \S+", done.stdout)
    done = evaluate("compare", LAYER_NORM, kernel, *one, "--json")
    first, second = map(json.loads, done.stdout.splitlines())
    assert done.returncode == 112
    assert first["status"] == "pass" and first["time_us"] > 0 and first["kind"] == "modelled"
    assert second["status"] == "fail" and "128 of 128 elements differ" in second["message"]


@pytest.mark.parametrize(
    "words, said",
    [
        (("gemm", "--problem", LAYER_NORM), "expected one problem"),
        (("--problem", "nothing.py"), "there is no file nothing.py"),
        (("--problem", "eval.py"), "eval.py lacks CASES, inputs, reference"),
        (("--problem", LAYER_NORM, "--quick"), "--quick is of the four NVFP4 problems"),
        (("--problem", LAYER_NORM, "--case", "m: 3"), "has the keys rows, columns, seed"),
    ],
)
def test_what_cannot_be_is_said_in_a_line(evaluate, words, said):
    done = evaluate("test", *words)
    assert done.returncode == 2 and said in done.stderr and done.stderr.count("\n") == 1, done


def test_a_file_without_a_seed_is_refused(tmp_path):
    path = tmp_path / "problem.py"
    path.write_text("CASES = [{'n': 1}]\ndef inputs(n): ...\ndef reference(x): ...\n")
    with pytest.raises(ProblemError, match="inputs must take a seed"):
        read(path)


def test_the_softmax_reference_against_float64_by_hand():
    """One group of equal numbers: each softmax 1/16, scale 1/96 rounded to e4m3, all codes 7."""
    truth = Truth(SOFTMAX)
    codes, scales = truth.wanted((torch.zeros(1, 16),))
    assert scales.float().item() == pytest.approx(1 / 96, rel=1 / 16)
    assert codes.tolist() == [[0x77] * 8]


def test_lines_with_a_factor_or_an_offset_of_their_own():
    want = torch.randn(8, 32, generator=torch.Generator().manual_seed(0)).double()
    rows, columns = torch.arange(1.0, 9).double()[:, None], torch.arange(1.0, 33).double()
    assert [
        "row is wrong by a factor" in text for text in mistakes.of_lines(want * rows, want, 1e-4)
    ] == [True]
    assert [
        "column is wrong by an offset" in text
        for text in mistakes.of_lines(want + columns, want, 1e-4)
    ] == [True]
    assert mistakes.of_lines(want * 2, want, 1e-4) == []  # one factor for all is another mistake


def scores_named(damage) -> list[str]:
    """What explains scores of 32 rows whose second operand, bf16 [32, 64], was damaged."""
    q, k = torch.randn(2, 32, 64, generator=torch.Generator().manual_seed(1)).bfloat16()
    got = q.float() @ damage(k).float().T
    tried = mistakes.of_inputs((q, k), ("q", "k"))
    return [text for text, (q, k) in tried if torch.equal(q.float() @ k.float().T, got)]


def test_groups_of_k_exchanged_in_a_fill_are_named():
    """16 bytes of a K-major core matrix are 8 columns of bf16."""
    by_hand = lambda k: k.unflatten(1, (4, 2, 8)).flip(2).flatten(1)  # noqa: E731
    assert scores_named(by_hand) == ["groups of 8 columns of k are exchanged in pairs"]


def test_a_swizzle_of_the_reader_alone_is_named():
    """Row 5 of a 128-byte swizzle has its first chunk at 16-byte chunk 5 (PTX ISA, Swizzle-128B)."""

    def by_hand(k):
        read = torch.empty_like(k)
        for row in range(32):
            for chunk in range(8):
                there = chunk ^ row % 8
                read[row, 8 * chunk : 8 * chunk + 8] = k[row, 8 * there : 8 * there + 8]
        return read

    assert scores_named(by_hand) == ["k is read with a swizzle of 128 bytes that its fill has not"]


@pytest.mark.parametrize(
    "dtype", [torch.float4_e2m1fn_x2, torch.float8_e4m3fn, torch.float8_e8m0fnu]
)
def test_mistakes_of_an_input_of_small_floats_with_gaps(dtype):
    """torch has few operations for these types, and fewer where strides are not in order."""
    stored = torch.arange(2 * 8 * 8, dtype=torch.uint8).reshape(2, 8, 8)
    x = stored.permute(1, 2, 0).view(dtype)
    tried = dict(mistakes.of_input(x, "x"))
    assert all((y.shape, y.dtype) == (x.shape, x.dtype) for y in tried.values())
    bytes_of = {text: y.view(torch.uint8) for text, y in tried.items()}
    assert not bytes_of["x is not read: zeros stand for it"].any()
    halves = bytes_of["the two halves of the bytes of x are exchanged"]
    assert halves.tolist() == [
        [[(v % 16) * 16 + v // 16 for v in row] for row in rows]
        for rows in x.view(torch.uint8).tolist()
    ]
