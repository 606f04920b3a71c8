"""Where in the program a call comes from."""

from __future__ import annotations

import sys
from pathlib import Path

_OURS = str(Path(__file__).resolve().parent.parent)


def caller() -> str:
    """file:line of the innermost function of the program that is being executed."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith((_OURS, "<")) and "site-packages" not in name:
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back
    return "(no line information)"
