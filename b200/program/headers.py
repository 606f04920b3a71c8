"""Which lines are the program's own: those that stand in no header of a compiler or a library."""

from __future__ import annotations

import re

from b200.program.module import Loc

_LIBRARY = re.compile(
    r"^/usr/|/site-packages/|/cuda-[\d.]+/|/cccl/|/libcudacxx/"
    r"|/include/(cub|thrust|cuda|cute|cutlass|nv|crt|cooperative_groups)/"
)


def own(loc: Loc) -> Loc:
    """The innermost line of a chain that is the program's; the line itself where none is. Python
    files count for their own: what is inlined from them is a front end's business.
    """
    return next((frame for frame in loc.chain() if not _is_library(frame.file)), loc)


def _is_library(file: str) -> bool:
    return not file.endswith(".py") and _LIBRARY.search(file) is not None
