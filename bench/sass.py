"""Instructions that a warp issues for a k-tile, from SASS: `python bench/sass.py [SHAPE ...]`.

A second opinion on the timing model, which counts PTX. For each benchmark shape the kernel is
compiled for sm_100a and disassembled. Counted is the text of the smallest loop that does a role's
work; where ptxas unrolled it, the loads or MMAs in it say how many k-tiles that are.

Needs nvdisasm (CUDA toolkit) on the PATH, or its path in NVDISASM.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]
os.environ |= {"CUTE_DSL_KEEP": "ptx,cubin", "CUTE_DSL_KEEP_CUBIN": "1"}
os.environ["CUTE_DSL_DUMP_DIR"] = tempfile.mkdtemp()

from tuning import benchmarks, told  # noqa: E402

import submission  # noqa: E402

# TMA and bulk loads; tcgen05.mma and commit.
ROLES = {"load": ("UTMALDG", "UBLKCP"), "MMA": ("UTCOMMA", "UTCBAR")}
SHOWN = ("UTMALDG", "UBLKCP", "UTCOMMA", "UTCCP", "UTCBAR")


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


def role_loop(lines: list[str], instructions: tuple[str, ...]) -> list[str]:
    """Opcodes of the smallest loop with all of a role's instructions, or none."""
    bodies = [opcodes(lines[first : last + 1]) for first, last in loops(lines)]
    having = [
        body for body in bodies if all(any(op.startswith(i) for op in body) for i in instructions)
    ]
    return min(having, key=len, default=[])


def main() -> int:
    tool = os.environ.get("NVDISASM") or shutil.which("nvdisasm")
    if not tool:
        print("nvdisasm is not on the PATH; it is part of the CUDA toolkit", file=sys.stderr)
        return 2
    shapes = benchmarks()
    for name in sys.argv[1:] or shapes:
        config = submission.pick(shapes[name])
        cubin = submission.Launcher(shapes[name], config).function.__cubin__
        lines = disassemble(cubin if isinstance(cubin, bytes) else cubin.encode("latin-1"), tool)
        print(f"{name}: {told(config)}")
        for role, instructions in ROLES.items():
            inside = role_loop(lines, instructions)
            counts = {kind: sum(op.startswith(kind) for op in inside) for kind in SHOWN}
            shown = ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)
            print(f"  {role:5} {len(inside):4} instructions: {shown}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
