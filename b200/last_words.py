"""What `b200 run` says when a program has ended: front ends without a GPU, clocks that stood, files
that only define.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from b200.program.names import readable

if TYPE_CHECKING:
    from b200.chip.gpu import Gpu

NOTHING = "no kernel was launched on the software B200"
PAGE = "docs/front-ends.md"
_SOURCE = "its CUDA source runs as a FILE.cu with a main, or in load_inline of torch"
# Module -> (name, the way that works). What these ask is the driver of a GPU, in machine code.
FRONT_ENDS = {
    "numba.cuda": ("numba-cuda", "write the kernel in Triton, or in CUDA as a FILE.cu"),
    "cupy": ("CuPy", _SOURCE),
    "warp": ("Warp, which may go on on the CPU,", "write the kernel in Triton, or in CUDA"),
    "cuda.tile": ("cuTile, which makes no PTX,", "write the kernel in Triton or in CuTe DSL"),
    "tilelang": ("TileLang", _SOURCE),
    "tinygrad": ("tinygrad", _SOURCE),
}


def only_defines(script: Path) -> str:
    """A line on a Python file that defines functions and does nothing with them, "" for another
    one. Its statements are imports, definitions and values of names.
    """
    body = ast.parse(script.read_bytes()).body
    functions = [node.name for node in body if isinstance(node, ast.FunctionDef)]
    if not functions or not all(_is_passive(node, functions) for node in body):
        return ""
    return f"{script} defines {functions[-1]}, and calls no function of its own"


def _is_passive(node: ast.stmt, functions: list[str]) -> bool:
    """An import, a definition, a text, or a value that none of these functions computes."""
    if isinstance(node, (ast.Assign, ast.AnnAssign)):
        calls = (each.func for each in ast.walk(node) if isinstance(each, ast.Call))
        return not any(isinstance(called, ast.Name) and called.id in functions for called in calls)
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    return isinstance(node, (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef))


def front_end() -> str:
    """What is to be said of the front end that the program has imported and that is not run here,
    "" if there is none. One may stand on another: numba-cuda imports cuda.core.
    """
    for module, (name, way) in FRONT_ENDS.items():
        if _is_loaded(module):
            return f"{name} finds no GPU in the software B200: {way} ({PAGE})"
    return ""


def _is_loaded(module: str) -> bool:
    """Warp is known by more than its name, which others may have, too."""
    loaded = sys.modules.get(module)
    return loaded is not None and (module != "warp" or hasattr(loaded, "launch"))


def standing_clocks(gpu: Gpu) -> Iterator[str]:
    """A line for each kernel that has read a clock where no time is modelled."""
    from b200.program.module import CLOCKS, Special  # with it comes numpy; `b200 exec` needs none

    ran = {(x.kernel, x.ptx) for x in gpu.launches if x.time is None}
    for program in gpu.programs:
        for name, kernel in program.kernels.items():
            operands = (o for item in kernel.body for o in getattr(item, "operands", ()))
            clocks = {o.name for o in operands if isinstance(o, Special) and o.name in CLOCKS}
            if clocks and (name, program.text) in ran:
                listed = ", ".join(f"%{clock}" for clock in sorted(clocks))
                yield (
                    f"kernel {readable(name)} reads {listed}: where no time is modelled they stand;"
                    " `b200 run --time` has modelled cycles"
                )
