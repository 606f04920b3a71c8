"""A Hopper GPU is asked for where there is none."""

from __future__ import annotations


def test_run_says_so_in_one_line(tmp_path, fork_server, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    script = tmp_path / "script.py"
    script.write_text("print('started')\n")
    done = fork_server.run("-m", "hopper", "run", str(script))
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr == "b200 run: no Hopper GPU: torch finds no CUDA GPU here\n"
