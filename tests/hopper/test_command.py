"""`python -m hopper`: wrong arguments are told in a line."""

from __future__ import annotations

import pytest

from hopper.__main__ import main

BAD = [
    ("", "hopper: a command is missing: the commands are run, pack, pipeline"),
    (
        "rnu",
        "hopper: no command is called rnu: did you mean run? the commands are run, pack, pipeline",
    ),
    ("script.py", "hopper: no command is called script.py: to run it, hopper run script.py"),
    ("pipeline", "hopper pipeline: the following arguments are required: PACK.npz|FOLDER"),
    ("pack script.py", "hopper pack: the following arguments are required: --out"),
    ("pack --out a.npz", "hopper pack: a script is missing"),
    ("pack --out a.npz no.py", "hopper pack: no.py is not a file"),
    ("run --pack no/x.npz script.py", "--pack: there is no folder"),
    ("run", "hopper run: a program is missing"),
    ("run --time script.py", "hopper run: unrecognized arguments: --time"),
    ("run -- --time script.py", "--time is not a file"),  # no option of the emulator's
]


@pytest.mark.parametrize("line, said", BAD)
def test_wrong_arguments_are_told_in_a_line(tmp_path, monkeypatch, capsys, line, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.py").write_text("")
    try:
        status = main(line.split())
    except SystemExit as error:
        status = error.code
    told = capsys.readouterr().err
    assert status == 2 and said in told and told.count("\n") == 1, told
