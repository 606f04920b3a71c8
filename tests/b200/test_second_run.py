"""What is said of a program that fails and is run again (b200/second_run.py)."""

from __future__ import annotations

import subprocess

import pytest

from b200 import second_run
from b200.run_arguments import parse
from tests.b200.test_run import LAUNCH, RACE, launching

# Lane 0 asks once whether its copy has landed, which is no race. In the usual order it has.
ASKED = RACE.replace("mov.u32 %r4, 77; st.shared.u32 [%r2+4], %r4;", "{ask}").replace(
    "ld.shared.u32 %r5, [%r2+4];", ""
)
ASK = "mbarrier.test_wait.parity.shared::cta.b64 %p2, [%r3], 0;"
ANSWERS = ASKED.replace("{ask}", f"{ASK} selp.u32 %r5, 1, 0, %p2;")
HANGS = ASKED.replace("{ask}", f"mov.u32 %r5, 0; {ASK} @%p2 bar.sync 1, 64;")
BROKEN = """
from b200.checker.observer import Observer
from b200.errors import Fault
agent = Observer.agent
def broken(self, warp):
    if self.machine.order.plain:
        raise FAULT("of the checker")
    return agent(self, warp)
Observer.agent = broken
"""
PROGRAMS = {  # script, whether its launch came to no end, what is said of it
    "right": (
        launching(ANSWERS, "assert out.item() == 0"),
        False,
        "right by timing: the usual order ends with FAILURE; with --schedule late",
    ),
    "right where it hung": (launching(HANGS), True, "right by timing: "),
    "it has a race": (
        launching(RACE, "assert out.item() == 1"),
        False,
        "the program ends with status 0, and the checker finds in it:\n  hazard: kernel.py:1: race",
    ),
    "another output": (
        f"{LAUNCH}\nlaunch({ANSWERS!r})\nprint('got', out.item(), flush=True)\nlaunch({HANGS!r})",
        True,
        "its output differs before that: 'got 1' and 'got 0'",
    ),
    "the checker's own": (
        BROKEN.replace("FAULT", "Fault") + launching(ANSWERS),
        True,
        "FAILURE: without the checker the program ends with status 0",
    ),
    "the checker's own, of another kind": (
        BROKEN.replace("FAULT", "KeyError") + launching(ANSWERS),
        False,
        "FAILURE: without the checker the program ends with status 0",
    ),
    "wrong in both": (launching(ANSWERS, "sys.exit(3)"), False, ""),
    "wrong in both, and a cause is known": (
        launching(RACE, "sys.exit(3)"),
        False,
        "FAILURE; with --schedule late the program ends with exit status 3, and the checker finds"
        " in it:\n  hazard: kernel.py:1: race",
    ),
}


@pytest.fixture
def forked(monkeypatch, fork_server):
    """The runs are forks of a Python that has imported torch."""
    commands = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        return fork_server.run(*command[1:])

    monkeypatch.setattr(second_run.subprocess, "run", run)
    return commands


@pytest.mark.parametrize("script, stopped, said", PROGRAMS.values(), ids=PROGRAMS)
def test_what_is_said(tmp_path, forked, capsys, script, stopped, said):
    file = tmp_path / "script.py"
    file.write_text(script)
    second_run.tell(parse([str(file), "an argument"]), "FAILURE", stopped, [])
    told = capsys.readouterr().err
    assert said in told and bool(said) == bool(told), told
    assert ("right by timing" in told) == said.startswith("right")
    assert all(command[-3:] == [str(file), "--", "an argument"] for command in forked)


def test_what_the_first_run_has_found_is_not_said_again(tmp_path, forked, capsys):
    file = tmp_path / "script.py"
    file.write_text(launching(RACE, "sys.exit(3)"))
    late = second_run._run(parse([str(file)]), "--schedule", "late")
    found = late.findings if late is not None else ()
    rows = [dict(zip(("loc", "kind", "diagnosis"), line.split(": ", 2))) for line in found]
    second_run.tell(parse([str(file)]), "FAILURE", False, [r | {"severity": "error"} for r in rows])
    assert found and not capsys.readouterr().err


def test_further_sources_are_passed_on(tmp_path, monkeypatch):
    commands = []

    def run(command: list[str], **_: object):
        commands.append(command)
        raise subprocess.TimeoutExpired(command, 1)

    monkeypatch.setattr(second_run.subprocess, "run", run)
    second_run.tell(parse(["--with", "b.cu", "--with", "c.cu", "a.cu"]), "exit status 1", False, [])
    (command,) = commands
    at = command.index("--with")
    assert command[at:] == ["--with", "b.cu", "--with", "c.cu", "a.cu", "--"]
