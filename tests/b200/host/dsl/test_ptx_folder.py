"""What a compilation of the DSL leaves in the temporary directory: nothing, however a process ends."""

from __future__ import annotations

import os
import time

import pytest

from tests import ROOT

pytestmark = pytest.mark.dsl

COMPILES = """
import os, sys, torch
import cutlass.cute as cute
from cutlass.cute.runtime import from_dlpack

@cute.kernel
def scaled(x: cute.Tensor, factor: cute.Int32):
    thread, _, _ = cute.arch.thread_idx()
    x[thread] = x[thread] * factor

@cute.jit
def launch(x: cute.Tensor, factor: cute.Int32):
    scaled(x, factor).launch(grid=(1, 1, 1), block=(32, 1, 1))

def child(factor):
    x = torch.ones(32, dtype=torch.int32)
    launch(from_dlpack(x), factor)
    assert x.eq(factor).all(), x
"""
FORKS = """
import multiprocessing, signal, tempfile
fork = multiprocessing.get_context("fork")

def killed(factor):
    child(factor)
    os.kill(os.getpid(), signal.SIGKILL)

def ended_at_once(factor):
    child(factor)
    os._exit(0)

targets = [killed, ended_at_once, child, child]
processes = [fork.Process(target=target, args=(7,)) for target in targets]
for process in processes:
    process.start()
for process in processes:
    process.join()
print([process.exitcode for process in processes], os.listdir(tempfile.gettempdir()))
"""
# `b200 run`, where the DSL has read that it shall keep the PTX: from CUTE_DSL_KEEP_PTX until 4.4,
# from CUTE_DSL_KEEP since, when it is imported.
KEEPING = """
import runpy, sys
from b200.host.dsl.engine import frontends

_, folder, path = sys.argv
for frontend in frontends():
    frontend.envar.keep_ptx, frontend.envar.dump_dir = True, folder
sys.argv = ["b200", "run", path]
runpy.run_module("b200", run_name="__main__")
"""


@pytest.fixture
def run(tmp_path, fork_server):
    temporary = tmp_path / "temporary"
    temporary.mkdir()

    def call(script: str, *command: str):
        path = tmp_path / "script.py"
        path.write_text(COMPILES + script)
        command = *(command or ("-m", "b200", "run")), str(path)
        environment = {**os.environ, "TMPDIR": str(temporary)}
        done = fork_server.run(*command, cwd=ROOT, env=environment)
        assert done.returncode == 0, done.stderr
        return done.stdout, temporary

    return call


def test_forks_leave_nothing(run):
    said, temporary = run(FORKS)
    assert said == f"{[-9, 0, 0, 0]} []\n"
    assert not list(temporary.iterdir())


def test_what_killed_processes_left_goes_later(run, tmp_path):
    old, young = tmp_path / "temporary/b200-ptx-old", tmp_path / "temporary/b200-ptx-young"
    for folder in (old, young):
        folder.mkdir()
        (folder / "k.sm_100a.ptx").touch()
    hours_ago = time.time() - 2 * 3600
    os.utime(old, (hours_ago, hours_ago))
    run("child(7)")
    assert not old.exists() and young.exists()


def test_a_program_that_keeps_its_ptx_gets_it(run, tmp_path):
    run("child(7)", "-c", KEEPING, str(tmp_path))
    texts = [path.read_text() for path in tmp_path.glob("*.ptx")]
    assert len(texts) == 1 and ".target sm_100a" in texts[0]
