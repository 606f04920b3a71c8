"""Where in the program a call comes from."""

from __future__ import annotations

import sys
from pathlib import Path

_OURS = str(Path(__file__).resolve().parent.parent)
_LIBRARIES = ("cuda", "cutlass", "torch", "triton")  # also where they are not in site-packages


def caller() -> str:
    """file:line of the innermost function of the program that is being executed."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        package = frame.f_globals.get("__name__", "").partition(".")[0]
        of_library = "site-packages" in name or package in _LIBRARIES
        if not name.startswith((_OURS, "<")) and not of_library:
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back
    return "(no line information)"
