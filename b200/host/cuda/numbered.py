"""Calls of the CUDA driver whose callers take numbers alone: nothing may be thrown through them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from b200.errors import EmulatorError
from b200.host import refusals
from b200.host.cuda.driver import Driver
from b200.host.cuda.modules import Modules
from b200.host.refusals import NOT_SUPPORTED, Refused

_ENDED = 4  # CUDA_ERROR_DEINITIALIZED: "the driver is in the process of shutting down"


class NumberedDriver(Driver):
    """Each error is a number that CUDA has. What is not modelled is told at once, by `tell`, and is
    CUDA_ERROR_NOT_SUPPORTED.
    """

    def __init__(self, modules: Modules, tell: Callable[[BaseException], None]):
        super().__init__(modules)
        self.tell = tell
        make_legal, memory = modules.make_legal, modules.gpu.memory
        memory.search_first(lambda _, at: make_legal(modules.reserved_region_at(at)))
        memory.also_search(lambda _, at: make_legal(modules.region_at(at)))
        self._is_of_launch = False  # the last error, at which nobody has looked

    def answer(
        self,
        name: bytes,
        words: Any,
        count: int,
        is_ending: Callable[[], bool] = sys.is_finalizing,
        ended: int = _ENDED,
    ) -> int:
        """As Driver.answer. Where Python ends, objects of the program are let go, and the names of
        modules are gone: what is needed then are defaults.
        """
        if is_ending():
            return ended
        with self.lock:
            code = super().answer(name, words, count)
            error, self.error = self.error, None
            if code < 0 and error is not None:
                code = self._number_of(error, is_launch=name == b"launch")
            if code or name == b"take_last_error":
                self._is_of_launch = name == b"launch"
            return code

    def unasked(self) -> EmulatorError | None:
        """Of a launch, since `<<<>>>` returns nothing. What other calls return the program has; a
        fault is a finding.
        """
        unasked = super().unasked()
        return unasked if self._is_of_launch and self.modules.failed is None else None

    def _number_of(self, error: BaseException, is_launch: bool) -> int:
        first = str(error).partition("\n")[0]
        code = refusals.lasting_code(error) if isinstance(error, EmulatorError) else None
        if code is None:
            code = NOT_SUPPORTED
            self.tell(error)
            if is_launch and self.modules.failed is None:
                self.modules.failed = Refused(code, first)
        self.refused[code] = first
        return code
