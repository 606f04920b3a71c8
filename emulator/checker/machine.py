"""A machine that watches itself: `Checked` is mixed into a Machine and sees every access, arrive, wait and exit.

It changes no result: generated code calls the same units, with an observer around them (instrument.py), and
`issue` tells it of asynchronous operations. What it finds is in `launch.findings`.
"""

from __future__ import annotations

from ..machine import Machine
from ..translate import _Writer
from .instrument import CheckedWriter
from .observer import Observer

assert issubclass(CheckedWriter, _Writer)


class Checked:
    """Mixed into a Machine in front of it: `class CheckedMachine(Checked, Machine)`."""

    writer_type = CheckedWriter

    def launch(self, code, grid, block, cluster, dynamic_smem: int, params: bytes):
        self.observer = Observer(self)
        launch = super().launch(code, grid, block, cluster, dynamic_smem, params)
        self.observer.finish()
        launch.findings = self.observer.findings
        return launch

    def issue(self, unit: str, warp, apply, **facts):
        super().issue(unit, warp, self.observer.issued(unit, warp, apply, facts), **facts)

    def lanes_exited(self, state, lanes: int):
        super().lanes_exited(state, lanes)
        if state.live == 0:
            self.observer.warp_exited(state)


class CheckedMachine(Checked, Machine):
    """The plain machine with the checker."""
