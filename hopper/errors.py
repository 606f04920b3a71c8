"""The error of running a B200 kernel on a Hopper GPU."""

from __future__ import annotations

from b200.errors import SetupError


class HopperError(SetupError):
    """A launch cannot be prepared, compiled or run; str() says what was expected and what came.

    kind: a word for reports. "unsupported": the kernel uses something that Hopper cannot run;
    "missing": a compiler or GPU is missing; "compile": the assembler refused the program; "launch":
    the driver refused the launch.
    """

    def __init__(self, kind: str, message: str):
        super().__init__(message)
        self.kind = kind
