"""What a ptxas says of statements: thousands at once, each in a kernel of its own."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from functools import cached_property

HEAD = """.version {version}
.target sm_100a
.address_size 64
.func ff() {{ ret; }}
"""
KERNEL = """.visible .entry k{number}(.param .u64 pp) .reqntid 32, 1, 1 {{
.reg .pred %p<10>; .reg .b8 %b<10>; .reg .b16 %rs<40>; .reg .b32 %r<300>; .reg .b64 %rd<300>;
.reg .b128 %rq<20>;
{statement};
DONE: ret; }}
"""
BATCH = 150
CRASH = "ptxas crashes"
_ERROR = re.compile(r"line (\d+); (?:error|fatal)\s*: (.*)")
_RELEASE = re.compile(r"release (\d+)\.(\d+)")


def module(statements: Sequence[str], version: str) -> str:
    """PTX of a kernel for each statement: k0, k1, ..."""
    kernels = (KERNEL.format(number=i, statement=s) for i, s in enumerate(statements))
    return HEAD.format(version=version) + "".join(kernels)


class Ptxas:
    """An assembler. path: of the program."""

    def __init__(self, path: str):
        self.path = path

    @cached_property
    def release(self) -> tuple[int, int]:
        """Its CUDA release: (13, 0)."""
        said = subprocess.run([self.path, "--version"], capture_output=True, text=True, check=True)
        found = _RELEASE.search(said.stdout)
        if found is None:
            raise ValueError(f"{self.path} --version names no release: {said.stdout.strip()}")
        return int(found[1]), int(found[2])

    @property
    def isa(self) -> str:
        """The newest PTX ISA that it takes: 9.0 of CUDA 13.0."""
        major, minor = self.release
        return f"{major - 4}.{minor}"

    def judge(self, statements: Sequence[str], doubted: Iterable[str] = ()) -> dict[str, str]:
        """Each statement -> why it is refused; "" for one that is taken. doubted: those that are
        asked of by themselves if they are refused among others, as ptxas may name a wrong line.
        """
        found = self._together(statements)
        for statement in doubted:
            if found[statement] not in ("", CRASH):
                status, wrong = self._run([statement])
                found[statement] = "" if status == 0 else wrong.get(0, CRASH)
        return found

    def _together(self, statements: Sequence[str]) -> dict[str, str]:
        found: dict[str, str] = {}
        waiting = [list(statements[i : i + BATCH]) for i in range(0, len(statements), BATCH)]
        while waiting:
            part = waiting.pop()
            status, wrong = self._run(part)
            if status == 0:
                found |= dict.fromkeys(part, "")
            elif wrong:  # the others are judged anew: an error may hide another
                found |= {part[i]: why for i, why in wrong.items()}
                rest = [s for i, s in enumerate(part) if i not in wrong]
                waiting += [rest] if rest else []
            elif len(part) == 1:
                found[part[0]] = CRASH
            else:
                waiting += [part[: len(part) // 2], part[len(part) // 2 :]]
        return found

    def _run(self, statements: Sequence[str]) -> tuple[int, dict[int, str]]:
        """(exit status, number of a statement -> what is wrong with it)."""
        text = module(statements, self.isa)
        before, each = HEAD.count("\n"), KERNEL.count("\n")
        with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
            file.write(text)
            file.flush()
            command = [self.path, "-arch=sm_100a", "-O0", "-o", "/dev/null", file.name]
            done = subprocess.run(command, capture_output=True, text=True)
        wrong: dict[int, str] = {}
        for line, why in _ERROR.findall(done.stderr + done.stdout):
            number = (int(line) - before - 1) // each
            if 0 <= number < len(statements):
                wrong.setdefault(number, why)
        return done.returncode, wrong
