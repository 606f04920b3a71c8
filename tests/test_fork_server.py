"""A command that the fork server starts ends as one that Python starts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

SCRIPT = """
import atexit, os, signal, sys
atexit.register(lambda: print("at the end"))
print(sys.argv[1:], os.getcwd(), os.environ["SAID"], sys.path[0], __name__, repr(sys.stdin.read()))
print("wrong", file=sys.stderr)
"""
ENDS = {
    "by itself": "",
    "a status": "sys.exit(3)",
    "a text": "sys.exit('no')",
    "an exception": "raise ValueError('bad')",
    "without cleaning up": "sys.stdout.flush(); os._exit(4)",
    "a signal": "sys.stdout.flush(); os.kill(os.getpid(), signal.SIGTERM)",
}


@pytest.mark.parametrize("anew", (False, True), ids=("forked", "anew"))
@pytest.mark.parametrize("last", ENDS.values(), ids=ENDS)
def test_it_ends_as_it_would_by_itself(fork_server, tmp_path, last, anew):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT + last + "\n")
    how = {"cwd": tmp_path, "env": {**os.environ, "SAID": "hello"}}
    command = [sys.executable, str(script), "-x", "1"]
    usual = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, **how)
    forked = fork_server.run(*command[1:], anew=anew, **how)
    assert (forked.returncode, forked.stdout) == (usual.returncode, usual.stdout)
    assert forked.stderr.splitlines()[0] == usual.stderr.splitlines()[0] == "wrong"
    assert forked.stderr.splitlines()[-1] == usual.stderr.splitlines()[-1]


def test_code_runs_as_main(fork_server, tmp_path):
    code = "import sys\nprint(__name__, sys.argv)\ndef f(): return sys.path[0]\nprint(f())"
    done = fork_server.run("-c", code, cwd=tmp_path)
    assert done.stdout == f"__main__ ['-c']\n{tmp_path}\n", done.stderr


def test_a_signal_comes_once_it_has_printed(fork_server):
    code = "import time\nprint('up', flush=True)\ntime.sleep(100)"
    done = fork_server.run("-c", code, signal_at=(signal.SIGINT, "up"))
    assert done.stderr.splitlines()[-1] == "KeyboardInterrupt" and done.returncode == 1


def test_one_that_takes_too_long_is_killed(fork_server, tmp_path):
    (tmp_path / "script.py").write_text("import time\ntime.sleep(100)\n")
    assert fork_server.run(str(tmp_path / "script.py"), limit=0.5).returncode == -9
