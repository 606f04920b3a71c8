"""Instructions that a warp issues for a k-tile, from SASS: `python -m harness sass [SHAPE ...]`.

A second opinion on the timing model, which counts PTX. For each benchmark shape the kernel is
compiled for sm_100a and disassembled. Counted is the text of the loop that does a role's work;
where ptxas unrolled it, the loads or MMAs in it say how many k-tiles that are. Exit status 1 where
a role's loop is not found, or an instruction that is asked for is in none.
"""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from collections import Counter

os.environ |= {"CUTE_DSL_KEEP": "ptx,cubin", "CUTE_DSL_KEEP_CUBIN": "1"}
os.environ["CUTE_DSL_DUMP_DIR"] = tempfile.mkdtemp()

import submission
from harness.studies.disassembly import count, disassemble, find_tool, role_loop
from harness.studies.tuning import benchmarks, told

# TMA loads; tcgen05.mma and commit.
ROLES = {"load": ("UTMALDG",), "MMA": ("UTCOMMA", "UTCBAR")}
SHOWN = ("UTMALDG", "UTCOMMA", "UTCCP", "UTCBAR")


def main() -> int:
    atexit.register(shutil.rmtree, os.environ["CUTE_DSL_DUMP_DIR"], ignore_errors=True)
    tool = find_tool()
    if not tool:
        print("nvdisasm: neither on the PATH nor in nvidia-cuda-nvdisasm", file=sys.stderr)
        return 2
    shapes, missing = benchmarks(), False
    if unknown := set(sys.argv[1:]) - set(shapes):
        print(f"unknown shapes {sorted(unknown)}; there are {sorted(shapes)}", file=sys.stderr)
        return 2
    found: Counter[str] = Counter()
    for name in sys.argv[1:] or shapes:
        config = submission.pick(shapes[name])
        cubin = submission.kernel_for(shapes[name], config)[0].__cubin__
        lines = disassemble(cubin if isinstance(cubin, bytes) else cubin.encode("latin-1"), tool)
        print(f"{name}: {told(config)}")
        for role, instructions in ROLES.items():
            inside = role_loop(lines, instructions)
            if not inside:
                print(f"  {role:5} no loop has {' and '.join(instructions)}", file=sys.stderr)
                missing = True
                continue
            counts = {kind: count(inside, kind) for kind in SHOWN}
            found.update(counts)
            shown = ", ".join(f"{n} {kind}" for kind, n in counts.items() if n)
            print(f"  {role:5} {len(inside):4} instructions: {shown}")
    if absent := [kind for kind in SHOWN if not found[kind]]:
        print(f"no loop has {', '.join(absent)}", file=sys.stderr)
    return 1 if missing or absent else 0


if __name__ == "__main__":
    sys.exit(main())
