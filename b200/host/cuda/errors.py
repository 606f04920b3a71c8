"""A CUDA program that cannot be built."""

from __future__ import annotations


class BuildError(RuntimeError):
    """A CUDA program that does not compile, link or load. `str()` is one line; log: everything the
    compilers said.
    """

    def __init__(self, message: str, log: str = ""):
        super().__init__(message)
        self.log = log

    def __reduce__(self):
        return (BuildError, (str(self), self.log))
