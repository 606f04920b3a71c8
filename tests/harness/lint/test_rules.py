"""What lint says of files with one forbidden thing each, and of the same files without it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from harness.lint import boards, command
from harness.lint.rules import RULES, remarks
from harness.lint.submission import Submission, read
from tests import ROOT

ENTRY = "def custom_kernel(data):\n    return data[-1]\n"
HEAD = "#!POPCORN leaderboard nvfp4_gemm\n#!POPCORN gpu NVIDIA\n"

# Rule, grade, text of the file, the line (0: none), words of the remark.
FORBIDDEN = [
    ("word", "refused", f"# two streams\n{ENTRY}", 1, "two streams"),
    ("word", "refused", f"{ENTRY}\nNAME = 'upSTREAM'\n", 4, "upSTREAM"),
    ("directive", "refused", f"#!POPCORN gpu\n{ENTRY}", 1, "an argument is missing"),
    ("directive", "refused", f"#!POPCORN board nvfp4_gemm\n{ENTRY}", 1, "got board"),
    ("directive", "refused", f"{HEAD}#!POPCORN gpus NVIDIA\n{ENTRY}", 3, "gpu is named twice"),
    ("place", "note", f"\n{HEAD}{ENTRY}", 2, "popcorn-cli reads it"),
    ("board", "refused", f"#!POPCORN leaderboard nvfp4_gem\n{ENTRY}", 1, "meant nvfp4_gemv or nvfp4_gemm?"),
    ("board", "note", f"#!POPCORN leaderboard my_own_board\n{ENTRY}", 1, "my_own_board is none of"),
    ("gpu", "refused", f"{HEAD.replace('NVIDIA', 'H100')}{ENTRY}", 2, "has the GPU NVIDIA, not H100"),
    ("one-gpu", "refused", f"{HEAD.replace('NVIDIA', 'NVIDIA B200')}{ENTRY}", 2, "takes one GPU"),
    ("offered", "offer", ENTRY, 0, "#!POPCORN gpu NVIDIA can be"),
    ("syntax", "refused", f"{ENTRY}x = = 1\n", 3, "SyntaxError"),
    ("entry", "refused", "def my_kernel(data):\n    return data[-1]\n", 0, "no custom_kernel"),
    ("entry", "refused", f"class Gemm:\n    {ENTRY.replace('    ', '        ')}", 0, "no custom_kernel"),
    ("arguments", "refused", ENTRY.replace("data)", "a, b)"), 1, "custom_kernel(a, b)"),
    ("arguments", "refused", ENTRY.replace("data)", "data, *, tile)"), 1, "one argument"),
    ("arguments", "refused", f"async {ENTRY}", 1, "is async"),
    ("ours", "refused", f"import b200.clock\n{ENTRY}", 1, "import b200.clock"),
    ("ours", "refused", f"from harness import evaluator\n{ENTRY}", 1, "import harness"),
    ("ours", "refused", f"from exact_product import *\n{ENTRY}", 1, "import exact_product"),
    ("ours", "refused", "def custom_kernel(data):\n    import b200\n", 2, "import b200"),
    ("one-file", "refused", f"from . import tiles\n{ENTRY}", 1, "a relative import"),
    ("one-file", "refused", f"import sibling\n{ENTRY}", 1, "sibling is a file beside it"),
    ("one-file", "refused", f"SOURCE = open('kernel.cu').read()\n{ENTRY}", 1, "kernel.cu is a file"),
    ("one-file", "refused", f"CUDA = '''\n#include \"kernel.cu\"\n'''\n{ENTRY}", 1, "kernel.cu is a file"),
    ("image", "refused", f"import cupy\n{ENTRY}", 1, "import cupy"),
    ("image", "refused", f"import importlib\nimportlib.import_module('jax')\n{ENTRY}", 2, "import jax"),
    ("image", "refused", f"import imp\n{ENTRY}", 1, "gone from the standard library"),
    ("image", "refused", f"from cuda import cudart\n{ENTRY}", 1, "cuda.cudart"),
    ("image", "refused", f"import cuda.cuda as driver\n{ENTRY}", 1, "cuda.cuda"),
    ("image", "note", f"try:\n    import cupy\nexcept ImportError:\n    cupy = None\n{ENTRY}", 2, "import cupy"),
    ("beside", "refused", f"from task import PROBLEMS\n{ENTRY}", 1, "task.py has no PROBLEMS"),
    ("beside", "refused", f"import utils\nutils.permute_scales\n{ENTRY}", 2, "utils.py has no permute_scales"),
    ("tvm-ffi", "refused", f"OPTIONS = '--enable-tvm-ffi'\n{ENTRY}", 1, "apache-tvm-ffi"),
    ("tvm-ffi", "refused", f"import cutlass.cute as cute\nk = cute.compile(f, enable_tvm_ffi=True)\n{ENTRY}", 2, "tvm"),
    ("installs", "refused", f"import os\nos.system('pip install x')\n{ENTRY}", 2, "installs packages"),
    ("installs", "refused", f"import subprocess as s, sys\ns.run([sys.executable, '-m', 'pip', 'install', 'x'])\n{ENTRY}", 2, "pip"),
    ("reference", "note", "import reference\ndef custom_kernel(data):\n    return reference.ref_kernel(data)\n", 3, "measures no kernel"),
    ("prints", "note", "def say(x):\n    print(x)\ndef custom_kernel(data):\n    say(data)\n", 2, "16,384 characters"),
    ("kernelguard", "refused", f"import torch\ntorch.cuda.synchronize = lambda: None\n{ENTRY}", 0, "kernelguard filters it"),
]  # fmt: skip
BYTES = [  # Rule, name of the file, content, words of the remark.
    ("empty", "mine.py", b"", "the file is empty"),
    ("size", "mine.py", f"{HEAD}{ENTRY}#{'x' * 1_000_000}".encode(), "bytes, at most 1,000,000"),
    ("encoding", "mine.py", f"# caf\N{LATIN SMALL LETTER E WITH ACUTE}\n{ENTRY}".encode("latin-1"), "not UTF-8: byte 0xe9"),
    ("name", "mine.txt", f"{HEAD}{ENTRY}".encode(), "a name that ends in .txt"),
    ("name", "mine", f"{HEAD}{ENTRY}".encode(), "a name that ends in nothing"),
    ("language", "mine.cu", f"{HEAD}{ENTRY}".encode(), "these boards have `lang: py`"),
]  # fmt: skip
CLEAN = {
    "the least": ENTRY,
    "one of the least letters": f"STREAK = 'st ream'\n{ENTRY}",
    "a lambda": "custom_kernel = lambda data: data[-1]\n",
    "a method": "class K:\n    def __call__(self, data): return data[-1]\ncustom_kernel = K()\n",
    "in a branch": "import torch\nif torch.__version__:\n    def custom_kernel(data, tile=8, *more): return data[-1]\n",
    "made by another": "from task import *\n",
    "the runner's packages": "import torch, numpy, cutlass.cute as cute\nfrom cuda.bindings import driver\nimport triton\n" + ENTRY,
    "the organisers' names": "from task import input_t, output_t\nfrom utils import make_match_reference\n"
    "from reference import ref_kernel\nimport eval\n" + ENTRY,
    "another utils": "import cutlass.utils as utils\nutils.SmemAllocator\n" + ENTRY,
    "for a person": f"{ENTRY}def check():\n    import b200, cupy\n    print(b200)\nif __name__ == '__main__':\n    import harness\n    check()\n",
    "for types": f"from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import cupy\n{ENTRY}",
    "to stderr": "import sys\ndef custom_kernel(data):\n    print(1, file=sys.stderr)\n    return data[-1]\n",
    "a word of prose": f"'''Run pip install first; kernel.cu is beside it.'''\n{ENTRY}",
    "no file of that name": f"NAME = 'other.cu'\n{ENTRY}",
    "without tvm": f"import cutlass.cute as cute\nk = cute.compile(f, enable_tvm_ffi=False)\n{ENTRY}",
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("lint")
    for name in ("sibling.py", "kernel.cu"):
        (made / name).write_text("")
    return made


@pytest.fixture(autouse=True)
def without_kernelguard(monkeypatch, request):
    """A process for each file; the rule has a test of its own."""
    if "kernelguard" not in request.node.name:
        rest = tuple(rule for rule in RULES if rule.name != "kernelguard")
        monkeypatch.setattr("harness.lint.rules.RULES", rest)


def said(submission: Submission) -> list[tuple[str, str, int, str]]:
    return [
        (r.rule.name, r.found.grade, (r.found.lines or (0,))[0], r.found.text)
        for r in remarks(submission)
    ]


@pytest.mark.parametrize("rule, grade, text, line, words", FORBIDDEN)
def test_a_forbidden_thing_is_one_remark_with_its_line(folder, rule, grade, text, line, words):
    if rule == "kernelguard":
        pytest.importorskip("kernelguard")
    found = said(Submission(folder / "mine.py", text.encode()))
    (only,) = [remark for remark in found if remark[:3] == (rule, grade, line)]
    assert words in only[3]
    assert [r for r in found if r != only and r[1] == "refused" and r[0] != "kernelguard"] == []


@pytest.mark.parametrize("rule, name, content, words", BYTES)
def test_the_upload_refuses_bytes_and_names(folder, rule, name, content, words):
    found = [r for r in said(Submission(folder / name, content)) if r[1] == "refused"]
    assert [r[0] for r in found] == [rule] and words in found[0][3]


REFUSED = [
    (rule, "mine.py", text.encode()) for rule, grade, text, *_ in FORBIDDEN if grade == "refused"
]
REFUSED += [(rule, name, content) for rule, name, content, _ in BYTES]
REFUSED = [row for row in REFUSED if row[0] != "kernelguard"]


@pytest.mark.parametrize("rule, name, content", REFUSED)
def test_the_command_refuses_it_in_one_line_with_its_source(
    folder, rule, name, content, tmp_path, capsys
):
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / name).write_bytes(content)
    assert command.main([str(tmp_path / name)]) == 112
    lines = capsys.readouterr().out.splitlines()
    (line,) = [line for line in lines if line.startswith("refused: ")]
    assert re.search(rf" \[{rule}: gpu-mode/[\w-]+@[0-9a-f]{{7}} \S+\]$", line)
    assert lines[-1].endswith(": refused, for 1 reason")


def test_more_than_a_dozen_things_are_refused():
    assert len({rule for rule, *_ in REFUSED}) >= 15 and len(REFUSED) >= 35


def test_every_rule_has_a_file_that_breaks_it():
    assert {row[0] for row in (*FORBIDDEN, *BYTES)} == {rule.name for rule in RULES}


@pytest.mark.parametrize("text", CLEAN.values(), ids=CLEAN)
def test_what_a_board_takes_is_left_alone(folder, text):
    assert said(Submission(folder / "mine.py", (HEAD + text).encode())) == []


EXAMPLES = sorted(ROOT.glob("docs/examples/*.py"))
OWN = [ROOT / "submission.py", *(e for e in EXAMPLES if "def custom_kernel(" in e.read_text())]


@pytest.mark.parametrize("path", OWN, ids=[path.name for path in OWN])
def test_our_own_files_are_clean_for_kernelguard_too(path):
    pytest.importorskip("kernelguard")
    assert {remark.rule.name for remark in remarks(read(path))} <= {"offered"}


@pytest.mark.parametrize("board", boards.GPUS)
def test_a_board_that_is_known_is_in_the_lines_that_are_offered(folder, board):
    (only,) = said(Submission(folder / "mine.py", ENTRY.encode(), board))
    assert f"leaderboard {board} and #!POPCORN gpu {boards.GPUS[board][0]}" in only[3]


def test_a_file_for_another_board_is_refused(folder):
    found = said(Submission(folder / "mine.py", (HEAD + ENTRY).encode(), "nvfp4_gemv"))
    assert [r[3] for r in found] == ["for the board nvfp4_gemm, not nvfp4_gemv"]
    modal = HEAD.replace("nvfp4_gemm", "modal_nvfp4_dual_gemm").replace("NVIDIA", "B200")
    assert said(Submission(folder / "mine.py", (modal + ENTRY).encode(), "nvfp4_dual_gemm")) == []


def test_what_the_page_on_submitting_says_is_clean(tmp_path):
    """Its directives on top of an example, and the GPU of its command lines."""
    page = (ROOT / "docs" / "submit.md").read_text()
    lines = re.findall(r"`(#!POPCORN [^`]+)`", page)
    assert [line.split()[1] for line in lines] == ["leaderboard", "gpu"]
    file = tmp_path / "mine.py"
    file.write_text("\n".join([*lines, (ROOT / "docs" / "examples" / "gemm_fast.py").read_text()]))
    assert said(read(file)) == []
    commands = re.findall(r"`popcorn submit ((?:(?!--local)[^`])*--gpu[^`]*)`", page)
    named = [re.search(r"--leaderboard (\S+) --gpu (\S+)", text).groups() for text in commands]
    assert named and all(gpu in boards.GPUS[board] for board, gpu in named)
