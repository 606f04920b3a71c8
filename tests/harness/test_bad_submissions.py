"""What a submission may do: each ends with the right status and first line, the others go on, and
nothing is left behind: no process, no file.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from tests.b200.test_run import RACE

TIMEOUT = 3.0  # seconds a case
ENDLESS = 1.5  # of one that never ends, most of them busy all the time
LOOP = (
    "LOOP = '''.version 8.8\\n.target sm_100a\\n.address_size 64\\n.visible .entry k() {\\n"
    ".reg .b32 %r;\\nmov.u32 %r, 0;\\n.loc 1 7 0\\nL: add.u32 %r, %r, 1;\\nbra L;\\nret;\\n}\\n"
    ".file 1 \"kernel.py\"\\n'''\n"
)
DEADLOCK = (
    "DEAD = HEAD + '''.visible .entry k() { .reg .pred %p; .reg .b32 %r; mov.u32 %r, %tid.x;"
    " setp.lt.u32 %p, %r, 32; @%p bar.sync 1, 64; ret; }'''\n"
)
WILD = (
    "WILD = HEAD + '''.visible .entry k() { .reg .b64 %rd; mov.b64 %rd, 64;"
    " st.global.b32 [%rd], 0; ret; }'''\n"
)
RIGHT = "launch(); return ref_kernel(data)"
# Right only where a load that is not waited for lands late.
HASTY = (
    f"RACE = {RACE!r}\n"
    "x, out = torch.arange(64, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)\n"
    "b200._runtime.gpu.launch(RACE, None, (1, 1, 1), (32, 1, 1), args=[x, out])\n"
    "r = ref_kernel(data)\n"
)
# Name, body of custom_kernel(data), status, what the first line of the message says.
CALLS = [
    ("right", RIGHT, "pass", ""),
    ("hasty", HASTY + "r *= out.item() == 1; return r", "fail", "of 320 elements differ"),
    ("hasty_hang",
     HASTY + DEADLOCK + "if out.item() != 1: launch(DEAD, block=(64, 1, 1))\nreturn r",
     "error", "deadlock"),
    ("nothing_launched", "return ref_kernel(data)", "fail", "custom_kernel launched nothing"),
    ("second_launches_nothing", "if calls < 2: launch()\nreturn ref_kernel(data)", "fail",
     "second call, on other inputs at other addresses (seed 14): custom_kernel launched nothing"),
    ("second_raises", "launch()\nif calls > 1: raise ValueError('stale')\nreturn ref_kernel(data)",
     "error", "second call, on other inputs at other addresses (seed 14): ValueError: stale"),
    ("second_wrong", "launch(); r = ref_kernel(data); r += calls - 1; return r", "fail",
     "second call, on other inputs at other addresses (seed 14): 320 of 320 elements differ"),
    ("first_result_again",
     "global r\nlaunch()\nif calls == 1: r = ref_kernel(data)\nreturn r", "fail",
     "second call, on other inputs"),
    ("first_tensors_again", "global d\nlaunch()\nif calls == 1: d = data\nreturn ref_kernel(d)",
     "fail", "second call, on other inputs"),
    ("one_output_for_all",
     "global r\nlaunch()\nif calls == 1: r = c\nr.copy_(ref_kernel(data)); return r", "fail",
     "the second call changed what the first had returned"),
    ("inputs_changed", "launch(); r = ref_kernel(data); sfb.zero_(); return r", "pass",
     "note: custom_kernel changed its inputs (sfb)"),
    ("scales_changed", "launch(); r = ref_kernel(data); sfa_permuted.zero_(); a.view(torch.uint8)"
     ".zero_(); return r", "pass", "note: custom_kernel changed its inputs (a, sfa_permuted)"),
    ("zeros", "launch(); c[:] = 0; return c", "fail", "of 320 elements differ"),
    ("nan", "launch(); c[:] = float('nan'); return c", "fail", "320 of 320 elements differ"),
    ("one_wrong", "launch(); r = ref_kernel(data); r[3, 5] += 9; return r", "fail",
     "1 of 320 elements differ"),
    ("none", "launch(); return None", "fail", "must return a tensor; got NoneType"),
    ("a_list", "launch(); return [c]", "fail", "must return a tensor; got list"),
    ("shape", "launch(); return c[:4]", "fail", "c must have shape (8, 40, 1); got (4, 40, 1)"),
    ("dtype", "launch(); return ref_kernel(data).float()", "pass",
     "right; the board's harness takes it, task.py's type is float16: c is float32"),
    ("dtype_wrong", "launch(); return c.int()", "fail", "c must have dtype torch.float16"),
    ("meta", "launch(); return c.to('meta')", "fail", "c must have device cpu; got meta"),
    ("raises", "raise ValueError('a must be x')", "error", "ValueError: a must be x (raises.py:"),
    ("long_text", "raise ValueError('x' * 10**7)", "error", "ValueError: xxx"),
    ("bad_text", "class E(Exception):\n    def __str__(self): 1 / 0\nraise E", "error",
     "E: (its text cannot be had)"),
    ("base_exception", "raise BaseException('odd')", "error", "BaseException: odd"),
    ("exit", "raise SystemExit(3)", "error", "SystemExit: 3"),
    ("interrupt", "raise KeyboardInterrupt", "error", "KeyboardInterrupt"),
    ("recursion", "def f(): f()\nf()", "error", "RecursionError: maximum recursion"),
    ("os_exit", "os._exit(7)", "error", "ended with exit status 7 and gave no result"),
    ("os_exit_0", "os._exit(0)", "error", "ended with exit status 0 and gave no result"),
    ("abort", "os.abort()", "error", "killed by SIGABRT (Aborted); it was at abort.py:"),
    ("segfault", "ctypes.string_at(0)", "error", "killed by SIGSEGV"),
    ("kills_itself", "os.kill(os.getpid(), signal.SIGKILL)", "error", "killed by SIGKILL"),
    ("loop", "launch()\nwhile True: pass", "timeout", "no result after 1.5 s; it was at loop.py:"),
    ("loop_in_c", "ctypes.PyDLL(None).sleep(100)", "timeout",
     "no result after 1.5 s; it was at loop_in_c.py:"),
    ("swallows", "while True:\n    try: time.sleep(1)\n    except BaseException: pass", "timeout",
     "no result after 1.5 s; it was at swallows.py:"),
    ("prints", "while True: print('x' * 99999); time.sleep(0.001)", "timeout", "no result after 1.5 s"),
    ("prints_in_c", "while True: os.write(2, b'y' * 65536)", "timeout", "no result after 1.5 s"),
    ("kernel_loop", LOOP + "launch(LOOP)", "timeout",
     "no result after 1.5 s; it was at the kernel's kernel.py:7"),
    ("kernel_stands", LOOP.replace("add.u32", "and.b32") + "launch(LOOP)", "error",
     "deadlock: no warp can proceed in k"),
    ("kernel_deadlock", DEADLOCK + "launch(DEAD, block=(64, 1, 1))", "error", "deadlock: "),
    ("kernel_fault", WILD + "launch(WILD); return ref_kernel(data)", "error", "fault: "),
    ("kernel_too_large", "launch(block=(2048, 1, 1))", "error", "limit: launch of k refused: 2048"),
    ("kernel_unknown", "launch(HEAD + '.visible .entry k() { frob.b32 %r1; ret; }')", "error",
     "unsupported: "),
    ("pip", "subprocess.run([sys.executable, '-m', 'pip', 'install', 'x'])", "error",
     "-m pip install x` (pip.py:"),
    ("pip_swallowed", "try: os.system('pip install x')\nexcept BaseException: pass\n" + RIGHT,
     "error", "the submission started a program, `pip install x` (pip_swallowed.py:"),
    ("shell", "subprocess.run('id; id', shell=True)", "error", "--allow sh lets this one"),
    ("popen", "os.popen('id').read()", "error", "`/bin/sh -c id`"),
    ("exec", "os.execv('/bin/true', ['true'])", "error", "`/bin/true` (exec.py:"),
    ("spawn", "os.posix_spawn('/bin/true', ['true'], {})", "error", "`/bin/true` (spawn.py:"),
    ("compiler", "subprocess.run(['gcc', '--version'], stdout=2)\n" + RIGHT, "pass", ""),
    ("leaves_a_child", "if os.fork() == 0: time.sleep(1000)\n" + RIGHT, "pass", ""),
    ("leaves_a_thread", "threading.Thread(target=time.sleep, args=(1000,)).start()\n" + RIGHT,
     "pass", ""),
    ("leaves_files", "import tempfile\nfor _ in range(9): tempfile.mkstemp()\n" + RIGHT, "pass", ""),
    ("closes_output", "if calls == 1: os.closerange(1, 3)\n" + RIGHT, "pass", ""),
    ("closes_twice", "os.close(1); os.close(2)\n" + RIGHT, "error", "second call, on other inputs at"
     " other addresses (seed 14): OSError: [Errno 9] Bad file descriptor (closes_twice.py:"),
]  # fmt: skip
# Name, the whole file.
FILES = [
    ("empty", "", "error", "empty.py defines no function custom_kernel(data)"),
    ("not_callable", "custom_kernel = 3", "error", "defines no function custom_kernel(data)"),
    ("syntax", "def custom_kernel(data:\n", "error", "syntax.py cannot be imported: SyntaxError"),
    ("import_error", "import nosuchmodule", "error", "No module named 'nosuchmodule'"),
    ("import_raises", "1 / 0", "error", "ZeroDivisionError: division by zero (import_raises.py:1"),
    ("import_exits", "import sys; sys.exit(0)", "error", "SystemExit: 0"),
    ("import_hangs", "while True: __import__('time').sleep(0.01)", "timeout", "it was at import_hangs.py:1 in <module>"),
    ("import_pip", "import os; os.system('pip install x')", "error", "`pip install x` (import_pip"),
    ("zero_bytes", "x = 1\0", "error", "zero_bytes.py cannot be imported"),
    ("wrong_arguments", "def custom_kernel(): pass", "error", "takes 0 positional arguments"),
]  # fmt: skip
EXPECTED = [(name, status, words) for name, _, status, words in CALLS + FILES]


def processes_in(folder: Path) -> list[str]:
    """Command lines of the processes that work in this folder."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and (process / "cwd").readlink() == folder:
                found.append((process / "cmdline").read_text().replace("\0", " "))
        except OSError:
            pass
    return found


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory, fork_server):
    """The outcome of each submission, by name; and that nothing is left."""
    folder, scratch = tmp_path_factory.mktemp("submissions"), tmp_path_factory.mktemp("scratch")
    submissions = [
        (name, body, whole, ENDLESS if status == "timeout" else TIMEOUT)
        for rows, whole in ((CALLS, False), (FILES, True))
        for name, body, status, _ in rows
    ]
    asked = folder / "specification.json"
    asked.write_text(json.dumps({"folder": str(folder), "submissions": submissions}))
    done = fork_server.run(
        *("-m", "tests.harness.jobs"),
        cwd=folder,
        env={**os.environ, "TMPDIR": str(scratch)},
        files={0: asked},
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert processes_in(Path.cwd())  # this one, at least
    assert len(found) == len(EXPECTED)
    time.sleep(0.2)
    return {
        **dict(zip((name for name, _, _ in EXPECTED), found)),
        "files left": list(scratch.iterdir()),
        "processes left": processes_in(folder),
        "said": done.stderr,
    }


@pytest.mark.parametrize("name, status, words", EXPECTED, ids=[row[0] for row in EXPECTED])
def test_bad_submission(outcomes, name, status, words):
    outcome = outcomes[name]
    message = outcome["message"].split("\n")[0]
    assert outcome["status"] == status and words in message, outcome["message"]
    assert len(message) < 2_500 and len(outcome["output"]) < 50_000


def test_nothing_is_left_behind(outcomes):
    assert outcomes["files left"] == [] and outcomes["processes left"] == []
    assert outcomes["said"] == ""


def test_right_by_timing(outcomes):
    for name, how in (("hasty", "a wrong result"), ("hasty_hang", "deadlock: ")):
        told = outcomes[name]["message"].partition("right by timing: the usual order ends with ")[2]
        assert told.startswith(how) and "--schedule late" in told, outcomes[name]["message"]
    for name in ("zeros", "second_wrong"):
        assert "right by timing" not in outcomes[name]["message"]


def test_what_is_kept_of_an_endless_output(outcomes):
    output = outcomes["prints"]["output"]
    assert output.startswith("xxx") and "bytes left out" in output
