"""What can go wrong when a B200 kernel is run on a Hopper GPU."""

from __future__ import annotations


class HopperError(RuntimeError):
    """A launch cannot be prepared, compiled or run; str() says what was expected and what came.

    kind: a word for reports ("unsupported": the kernel uses something that is not carried over;
    "missing": a compiler or GPU; "compile": the assembler refused the program; "launch": the driver
    did).
    """

    def __init__(self, kind: str, message: str):
        super().__init__(message)
        self.kind = kind
