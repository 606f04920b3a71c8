"""Slips in the commands of `python -m lab`, each of which is tried: one line on stderr with the name
of the command, and status 2, before anything runs.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from lab.commands import COMMANDS
from tests import ROOT

# Command line (_ after a colon is a blank), what is said.
SLIPS = [
    ("figurs", "no command is called 'figurs': did you mean figures? there are calibrate, conformance, corpus"),
    ("figures", "one of the arguments --write --check --commands is required"),
    ("calibrate", "calibrate: the following arguments are required: name"),
    ("calibrate all", "argument name: invalid choice: 'all'"),
    ("calibrate umma --data no", "calibrate umma: argument --data: there is no folder no"),
    ("calibrate umma --data docs", "calibrate umma: docs/sa_umma_lat_full.csv cannot be read:"),
    ("calibrate umma --data docs --set x", "argument --set: a constant is given as NAME=VALUE, not"),
    ("survey gem", "unknown problem 'gem'"),
    ("survey gemm --case m:_1", "n, k, l missing in 'seed: 1111; m: 1'"),
    ("conformance --ptxas no", "conformance: argument --ptxas: there is no ptxas no"),
    ("corpus", "the following arguments are required: folder"),
    ("corpus no", "there is no folder no"),
    ("kinds ad", "unknown kernel 'ad'"),
    ("emulation_speed gem", "unknown problem 'gem'"),
    ("evidence nosuch", "unrecognized arguments: nosuch"),
    ("packs", "a command is missing: the commands are make, families, levers, run, calls, pipeline"),
    ("packs mkae", "no command is called mkae: did you mean make? the commands are make"),
    ("packs make gem", "unknown problem 'gem'"),
    ("packs make gemm --submission no.py", "no submission at no.py"),
    ("h200_model", "the following arguments are required: PACK.npz"),
    ("mutations nosuch", "unrecognized arguments: nosuch"),
    ("packs families --nosuch", "unrecognized arguments: --nosuch"),
    ("packs levers --nosuch", "unrecognized arguments: --nosuch"),
    ("picture nosuch", "unrecognized arguments: nosuch"),
    ("prose no.md", "no.md is not a file"),
    ("tuning nosuch", "argument what: invalid choice: 'nosuch'"),
    ("tuning floors nosuch", "unknown shapes ['nosuch']; there are"),
    ("verify nosuch", "expected names of"),
    ("h200 nosuch", "no rig is called nosuch: there are chain, clusters, dependent"),
]  # fmt: skip


def slip(fork_server, name: str, *words: str) -> str:
    """What is said of it, in one line that begins with `name`."""
    done = fork_server.run("-m", "lab", *words)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert done.stderr.startswith(name)
    assert done.stderr.count("\n") == 1 and len(done.stderr) < 600
    return done.stderr


@pytest.mark.parametrize("line, said", SLIPS, ids=[row[0] for row in SLIPS])
def test_a_slip_is_a_line(fork_server, line, said):
    words = [word.replace(":_", ": ") for word in line.split()]
    assert said in slip(fork_server, "python -m lab", *words)


@pytest.mark.parametrize("name", COMMANDS)
def test_no_command_takes_an_unknown_option(fork_server, name):
    slip(fork_server, f"python -m lab {name}: ", name, "--nosuch")


def test_a_program_finds_a_lab_of_its_own(tmp_path):
    """The checkout on the path does not hide it: lab/ has no __init__.py."""
    (tmp_path / "lab.py").write_text("NAME = 'its own'\n")
    path = os.pathsep.join((str(ROOT), str(tmp_path)))
    command = [sys.executable, "-c", "import lab; print(lab.NAME)"]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True
    )
    assert done.stdout == "its own\n", done.stderr
