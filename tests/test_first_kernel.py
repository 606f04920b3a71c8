"""docs/first-kernel.md: every command says what the page says that it says."""

from __future__ import annotations

import re
import shlex
import subprocess

import pytest

from tests import ROOT
from tests.b200.host.cuda.support import needs_nvcc

PAGE = ROOT / "docs" / "first-kernel.md"
BLOCK = re.compile(r"^```\n\$ (?P<command>[^\n]+)\n(?P<output>.*?)^```", re.DOTALL | re.MULTILINE)
CASES = [(found["command"], found["output"]) for found in BLOCK.finditer(PAGE.read_text())]
LEFT_OUT = "..."


def plain(text: str) -> list[str]:
    """Lines without what differs from run to run: times, addresses, versions, folders."""
    text = text.replace(f"{ROOT}/", "")
    text = re.sub(r"torch [\w.+]+, nvidia-cutlass-dsl [\w.]+", "VERSIONS", text)
    text = re.sub(r"0x[0-9a-f]+", "0x#", text)
    text = re.sub(r"in \d+ s ", "in # s ", text)
    return [" ".join(re.sub(r"\d+\.\d+", "#", line).split()) for line in text.splitlines()]


def pattern(shown: str) -> str:
    """What the output must match: a line `...` stands for any lines, at a line's end for the rest
    of the line.
    """
    lines = []
    for line in plain(shown):
        if line == LEFT_OUT:
            lines.append(r"(?:[^\n]*\n)*?")
        elif line.endswith(f" {LEFT_OUT}"):
            lines.append(re.escape(line.removesuffix(LEFT_OUT)) + r"[^\n]*\n")
        else:
            lines.append(re.escape(line) + r"\n")
    return "".join(lines)


@pytest.mark.parametrize(
    "command, shown",
    [
        pytest.param(command, shown, marks=needs_nvcc if ".cu" in command else (), id=command[:60])
        for command, shown in CASES
    ],
)
def test_the_output_is_what_the_page_shows(command, shown, fork_server):
    program, *arguments = shlex.split(command)
    if program == "python":
        done = fork_server.run(*arguments, limit=600)
    else:
        words = [program, *arguments]
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=600)
    said = "\n".join(plain(done.stdout + done.stderr)) + "\n"
    assert re.fullmatch(pattern(shown), said), f"{said}\nshould be\n{pattern(shown)}"


def test_the_page_shows_both_kinds_and_both_mends():
    commands = "".join(command for command, _ in CASES)
    for kind in ("py", "cu"):
        for name in (f"examples/gemm.{kind}", f"examples/gemm_mended.{kind}"):
            assert name in commands
    assert len(CASES) >= 7


def test_what_is_left_out_is_left_out_and_nothing_else():
    said = "a 1.5\nb\nc d\n"
    said = "\n".join(plain(said)) + "\n"
    assert re.fullmatch(pattern("a 7.25\n...\nc ...\n"), said)
    assert not re.fullmatch(pattern("a 7.25\n...\nd\n"), said)
