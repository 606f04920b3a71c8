"""SASS of a cubin, and the loops in it.

Needs nvdisasm: the package nvidia-cuda-nvdisasm, or a CUDA toolkit on the PATH.
"""

from __future__ import annotations

import importlib.metadata
import re
import shutil
import subprocess
import tempfile
from typing import NamedTuple


def find_tool() -> str | None:
    """nvdisasm of the CUDA toolkit or of the package nvidia-cuda-nvdisasm."""
    try:
        files = importlib.metadata.files("nvidia-cuda-nvdisasm") or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    return next((str(f.locate()) for f in files if f.name == "nvdisasm"), shutil.which("nvdisasm"))


def disassemble(cubin: bytes, tool: str) -> list[str]:
    """Lines of SASS: labels `.L_x_1:` and instructions without address, predicate or operands."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [tool, "-c", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    lines = []
    for line in text.splitlines():
        if label := re.match(r"(\.L_x_\d+):", line):
            lines.append(label[0])
        elif code := re.match(r"\s*/\*[0-9a-f]+\*/\s+(.*?)\s*;", line):
            lines.append(code[1])
    return lines


def loops(lines: list[str]) -> list[tuple[int, int]]:
    """(first, last) line of each loop: from a label to a branch back to it."""
    place = {line[:-1]: i for i, line in enumerate(lines) if line.endswith(":")}
    found = []
    for i, line in enumerate(lines):
        target = re.search(r"\bBRA\S*.*\((\.L_x_\d+)\)", line)
        if target and place.get(target[1], i) < i:
            found.append((place[target[1]], i))
    return found


def opcodes(lines: list[str]) -> list[str]:
    code = [line for line in lines if not line.endswith(":")]
    return [re.sub(r"^@!?U?P\w+\s+", "", line).split()[0] for line in code]


def count(body: list[str], instruction: str) -> int:
    """How many opcodes begin like that."""
    return sum(op.startswith(instruction) for op in body)


def role_loop(lines: list[str], instructions: tuple[str, ...]) -> list[str]:
    """Opcodes of a role's loop over k-tiles: the smallest with all of its instructions, and of
    these one with most MMAs (the last k-tiles of a dual have loops of their own). A loop over tiles
    has more than a commit for the four MMAs of a product's k-tile.
    """
    bodies = [opcodes(lines[first : last + 1]) for first, last in loops(lines)]
    having = [
        body
        for body in bodies
        if all(count(body, instruction) for instruction in instructions)
        and 4 * count(body, "UTCBAR") <= max(4, count(body, "UTCOMMA"))
    ]
    return max(
        having,
        key=lambda body: (count(body, "UTCOMMA"), -len(body)),
        default=[],
    )


class MmaLoop(NamedTuple):
    """SASS of the MMA warp's loop over k-tiles, and of the way to the first load."""

    instructions: int
    mmas: int
    copies: int  # of scale factors
    to_uniform: int  # R2UR: what ptxas cannot prove uniform and moves for an operand
    before_load: int  # instructions in the text before the first TMA load
    behind_wait: int  # of these, behind the wait for the launch before


def mma_loop(lines: list[str]) -> MmaLoop:
    body = role_loop(lines, ("UTCOMMA", "UTCBAR"))
    code = opcodes(lines)
    first = next((i for i, op in enumerate(code) if op.startswith("UTMALDG")), len(code))
    waits = next((i for i, op in enumerate(code[:first]) if op.startswith("ACQBULK")), first)
    mmas, copies, to_uniform = (count(body, kind) for kind in ("UTCOMMA", "UTCCP", "R2UR"))
    return MmaLoop(len(body), mmas, copies, to_uniform, first, first - waits)
