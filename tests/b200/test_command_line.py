"""Arguments of `b200` and its commands: what is wrong is told in a line before anything runs, what
stands behind a program is the program's, and output that cannot be written is said.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from b200.__main__ import main
from b200.command_line import undecodable, unwritable
from b200.last_words import only_defines
from tests import ROOT
from tests.b200.ptx_support import kernel

SCRIPT = "import sys; print(sys.argv[1:])"
# Command line, what is said of it; the exit status is 2. script.py and the folder `folder` exist.
BAD = [
    ("", "b200: a command is missing: the commands are run, exec, info, report"),
    ("rnu script.py", "b200: no command is called rnu: did you mean run? the commands are"),
    ("script.py", "b200: no command is called script.py: to run it, b200 run script.py"),
    ("backwards", "b200: no command is called backwards: the commands are"),
    ("info extra", "b200 info: unrecognized arguments: extra"),
    ("run", "b200 run: a program is missing: SCRIPT.py, PROGRAM.cu, or -m and a module"),
    ("run -m", "b200 run: -m takes the name of a module"),
    ("run --", "b200 run: a program is missing"),
    ("run no.py", "b200 run: no.py is not a file"),
    ("run folder", "b200 run: folder is not a file"),
    ("run -m no.such", "b200 run: -m no.such: "),
    ("run --nosuch script.py", "b200 run: unrecognized arguments: --nosuch"),
    ("run --no script.py", "b200 run: unrecognized arguments: --no"),
    ("run --schedule backwards script.py", "--schedule: a schedule is early, late, random:SEED, pdl"),
    ("run --schedule random script.py", "--schedule: a schedule is early, late, random:SEED, pdl"),
    ("run --schedule", "argument --schedule: expected one argument"),
    ("run --schedule all --no-check script.py", "--schedule all needs the checker: leave out --no-c"),
    ("run --time --schedule late script.py", "--schedule does not go with --time"),
    ("run --strict --no-check script.py", "--strict needs the checker: leave out --no-check"),
    ("run --strict --time script.py", "--strict needs the checker: leave out --time"),
    ("run --time --constants no.json script.py", "--constants: no.json is not a file of constants"),
    ("run --time --constants script.py script.py", "--constants: script.py is not a file of const"),
    ("run --constants fast.json script.py", "b200 run: --constants are of the clock: add --time"),
    ("run --report no/x.json script.py", "--report: there is no folder"),
    ("run --report folder script.py", "--report: folder is a folder"),
    ("run --report /proc/x.json script.py", "--report: /proc/x.json cannot be written: "),
    ("run --ptx no/folder script.py", "--ptx: there is no folder"),
    ("run --ptx script.py script.py", "--ptx: script.py is no folder"),
    ("run latin.py", "latin.py:2: byte 0xe9 is not utf-8; save the file as UTF-8, or name"),
]  # fmt: skip


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder that a user is in."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "fast.json").write_text('{"l2_far": 200}')
    (tmp_path / "latin.py").write_bytes(b"x = 1\n# caf\xe9\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("line, said", BAD, ids=[row[0] or "nothing" for row in BAD])
def test_bad_arguments(folder, capsys, line, said):
    before = sorted(folder.rglob("*"))
    try:
        status = main(line.split())
    except SystemExit as end:
        status = end.code
    out, err = capsys.readouterr()
    assert status == 2 and out == "" and err.startswith("b200") and said in err
    assert err.count("\n") == 1 and len(err) < 500
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize("line", ["--help", "run --help", "exec --help", "info --help"])
def test_help(capsys, line):
    try:
        assert main(line.split()) == 0
    except SystemExit as end:
        assert end.code == 0
    assert "b200" in capsys.readouterr().out


# --- what stands behind a program is its own
@pytest.fixture
def run(folder, fork_server):
    def call(*arguments: str, script: str = SCRIPT, **how):
        (folder / "script.py").write_text(script)
        return fork_server.run("-m", "b200", "run", "--no-again", *arguments, cwd=folder, **how)

    return call


@pytest.mark.parametrize("program", [("script.py",), ("-m", "script"), ("--", "script.py")])
def test_arguments_of_the_program(run, program):
    own = ["--n", "64", "--time", "--schedule", "x", "-m", "k", "--check=all", "--", "-h"]
    for given in (own, ["--", *own]):
        done = run(*program, *given)
        assert (done.returncode, done.stdout) == (0, f"{own}\n"), done.stderr


# --- what a run says
CLEAN = kernel("ret;", [".u64 a"])
LAUNCH = f"""
import b200, numpy
x = numpy.zeros(1, dtype=numpy.int32)
b200.install().launch({CLEAN!r}, None, (1, 1, 1), (32, 1, 1), args=[x])
"""
NOTHING = "b200 run: no kernel was launched on the software B200\n"


def test_a_program_that_launches_nothing(run):
    done = run("script.py", script="def custom_kernel(data):\n    return data\n")
    why = "script.py defines custom_kernel, and calls no function of its own"
    assert (done.returncode, done.stderr) == (2, f"{NOTHING[:-1]}: {why}\n")
    done = run("--may-launch-nothing", "script.py")
    assert (done.returncode, done.stderr) == (0, NOTHING)
    done = run("script.py", script="import sys; sys.exit(3)")
    assert (done.returncode, done.stderr) == (3, "")
    done = run("--strict", "script.py")
    assert (done.returncode, done.stderr) == (1, NOTHING)
    assert NOTHING not in run("script.py", script=LAUNCH).stderr


def test_a_front_end_that_finds_no_gpu_is_named(run, folder):
    """Whether its program fails, or goes on without a GPU and ends well."""
    (folder / "tinygrad.py").write_text("")
    done = run("script.py", script="import tinygrad")
    assert done.returncode == 0 and done.stderr.startswith(NOTHING), done.stderr
    assert "tinygrad finds no GPU in the software B200: its CUDA source runs as" in done.stderr
    done = run("script.py", script="import tinygrad; raise RuntimeError('no libcuda')")
    assert done.returncode == 1 and "tinygrad finds no GPU" in done.stderr
    assert "tinygrad" not in run("script.py", script=f"import tinygrad\n{LAUNCH}").stderr


@pytest.mark.parametrize(
    "text, told",
    [
        ("def f(): pass", True),
        ("'A text.'\nimport os\nN: int = len('x')\nclass A: pass\ndef f(): f()", True),
        ("def f(): pass\nx = f()", False),
        ("def f(): pass\nf()", False),
        ("def f(): pass\nif __name__ == '__main__': f()", False),
        ("import os", False),
    ],
)
def test_a_file_that_only_defines(tmp_path, text, told):
    path = tmp_path / "script.py"
    path.write_text(text)
    assert bool(only_defines(path)) == told


@pytest.mark.parametrize("timing, told", [("", True), ("timing=True", False)])
def test_a_clock_that_stands_is_told(run, timing, told):
    clock = kernel("mov.u64 %rd2, %clock64;", [".u64 a"])
    script = LAUNCH.replace("install()", f"install({timing})").replace(repr(CLEAN), repr(clock))
    done = run("script.py", script=script)
    assert done.returncode == 0, done.stderr
    assert ("k reads %clock64: where no time is modelled they stand" in done.stderr) == told


# Eight locations of shared memory that nobody has written are read, each at a line of its own.
READS = "".join(f".loc 1 {i + 1} 0\nld.shared.u32 %r1, [slot+{4 * i}];\n" for i in range(8))
UNWRITTEN = kernel(READS, [".u64 a"], smem=".shared .align 128 .b8 slot[128];")
UNWRITTEN += '.file 1 "reads.cu"\n'


def test_all_findings(run, folder):
    script = LAUNCH.replace(repr(CLEAN), repr(UNWRITTEN))
    done = run("--report", "report.json", "script.py", script=script)
    assert done.returncode == 0 and "... 2 more: --all-findings" in done.stderr, done.stderr
    assert done.stderr.count(": uninitialised (note): ") == 6
    assert len(json.loads((folder / "report.json").read_text())["findings"]) == 8
    done = run("--all-findings", "script.py", script=script)
    assert done.returncode == 0 and "more: --all-findings" not in done.stderr
    assert done.stderr.count(": uninitialised (note): ") == 8


def test_ptx_of_what_is_launched(run, folder):
    """Of two modules with one name and of one that faults; without a string's end."""
    fault = kernel("ld.param.u64 %rd1, [a]; ld.global.u32 %r1, [%rd1+1];", [".u64 a"])
    script = (
        f"import sys\nsys.argv, texts = sys.argv, {[CLEAN, CLEAN + '// other' + chr(0), fault]!r}\n"
    )
    script += LAUNCH.replace(repr(CLEAN), "texts[0]") + "gpu = b200.install()\n"
    script += "for text in texts: gpu.launch(text, None, (1, 1, 1), (32, 1, 1), args=[x])\n"
    done = run("--ptx", "folder/new", "script.py", script=script)
    assert (
        done.returncode == 1
        and "b200 run: the PTX of 3 module(s) is in folder/new\n" in done.stderr
    )
    found = {path.name: path.read_text() for path in (folder / "folder/new").iterdir()}
    assert found == {"k.ptx": CLEAN, "k.1.ptx": CLEAN + "// other", "k.2.ptx": fault}


# --- output that cannot be written
FULL = Path("/dev/full")
PATH = {"PYTHONPATH": str(ROOT)}
needs_full = pytest.mark.skipif(not FULL.exists(), reason="there is no /dev/full here")


@needs_full
def test_a_full_disk_is_a_line(run, fork_server, folder):
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    script = LAUNCH + "print('right')"
    done = run("script.py", script=script, files={1: FULL}, anew=True, env=buffered | PATH)
    said = "b200: the output cannot be written: No space left on device\n"
    assert done.returncode == 120 and said in done.stderr and "Traceback" not in done.stderr
    done = fork_server.run("-m", "b200", "info", cwd=folder, files={1: FULL})
    assert (done.returncode, done.stderr) == (120, said)


@needs_full
def test_a_report_that_cannot_be_written(run):
    done = run("--report", str(FULL), "script.py", script=LAUNCH)
    said = "b200 run: --report: /dev/full cannot be written: No space left on device\n"
    assert done.returncode == 120 and done.stderr.endswith(said)
    done = run("--report", str(FULL), "script.py", script=LAUNCH + "raise SystemExit(3)")
    assert done.returncode == 3 and done.stderr.endswith(said)


def test_trying_a_path_leaves_what_is_there(tmp_path):
    there, new = tmp_path / "there", tmp_path / "new"
    there.write_text("kept")
    assert unwritable(there) == unwritable(new) == ""
    assert there.read_text() == "kept" and not new.exists()


def test_encodings(tmp_path):
    path = tmp_path / "script.py"
    for data, said in [
        (b"# caf\xc3\xa9\n", ""),
        (b"# -*- coding: latin-1 -*-\n# caf\xe9\n", ""),
        (b"\xef\xbb\xbfx = 1\n", ""),
        (b"# -*- coding: nosuch -*-\n", f"{path}: unknown encoding: nosuch"),
        (b"\n\nx = 'caf\xe9'\n", f"{path}:3: byte 0xe9 is not utf-8;"),
        (b"# caf\xe9\n", f"{path}:1: byte 0xe9 is not utf-8;"),
    ]:
        path.write_bytes(data)
        found = undecodable(path)
        assert found.startswith(said) and bool(found) == bool(said)


# --- programs, and what is none
NO_PROGRAMS = {
    "README.md": ("# A title\nSome text.\n", "is no program: it is not Python (line 2: invalid syntax)"),
    "a.out": ("\x7fELF\x02", "is a compiled program"),
    "k.ptx": (".version 8.8\n", "is PTX: b200.run_ptx runs a kernel of it"),
}  # fmt: skip


@pytest.mark.parametrize("name, text, said", [(n, *row) for n, row in NO_PROGRAMS.items()])
def test_a_file_that_is_no_program(folder, capsys, name, text, said):
    (folder / name).write_text(text)
    assert main(["run", name]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"b200 run: {name} {said}") and err.count("\n") == 1


def test_a_program_of_another_name_runs(folder, fork_server):
    (folder / "script").write_text(LAUNCH)
    done = fork_server.run("-m", "b200", "run", "script", cwd=folder)
    assert (done.returncode, done.stderr) == (0, "b200: k, grid (1, 1, 1), cluster (1, 1, 1)\n")


def test_a_program_on_stdin(folder, fork_server):
    """Its arguments stand behind the -; its lines can be read by what compiles them."""
    script = (
        f"import inspect, sys\n{LAUNCH}def f(): pass\nprint(sys.argv[1:], inspect.getsource(f))\n"
    )
    (folder / "given").write_text(script)
    command = ("-m", "b200", "run", "-", "--n", "3")
    done = fork_server.run(*command, env=os.environ | PATH, cwd=folder, files={0: folder / "given"})
    assert (done.returncode, done.stdout) == (0, "['--n', '3'] def f(): pass\n\n"), done.stderr


def test_info_says_what_each_front_end_needs(monkeypatch, capsys):
    from b200 import machine_info

    assert main(["info"]) == 0
    out = capsys.readouterr().out
    assert "raw PTX (b200.run_ptx): runs\n" in out and "CuTe DSL: " in out
    monkeypatch.setattr(machine_info, "_is_there", lambda module: module != "triton")
    monkeypatch.setattr(machine_info.shutil, "which", lambda name: None)
    monkeypatch.setenv("CXX", "no-such-compiler")
    found = list(machine_info.lines())
    assert "Triton and Gluon: no: it needs the extra triton" in found
    (cuda,) = (line for line in found if line.startswith("CUDA programs"))
    assert "no: it needs" in cuda
