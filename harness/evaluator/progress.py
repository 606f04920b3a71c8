"""What is running, on stderr: on a terminal a region that changes, else a line now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

QUIET = 20.0  # seconds between lines where stderr is no terminal


class Progress:
    """Shows how far jobs with these names are."""

    def __init__(self, names: Sequence[str]):
        self._names = names
        self._console = Console(stderr=True)
        self._live: Live | None = None
        self._said = time.monotonic()

    def tick(self, done: int, running: dict[int, float]) -> None:
        """done: finished cases. running: index of a case -> seconds so far."""
        if self._console.is_terminal:
            if self._live is None:
                # No thread of its own: processes are forked here. No redirection: they print.
                self._live = Live(
                    console=self._console,
                    auto_refresh=False,
                    transient=True,
                    redirect_stdout=False,
                    redirect_stderr=False,
                )
                self._live.start()
            self._live.update(self._region(done, running), refresh=True)
        elif time.monotonic() - self._said >= QUIET:
            self._said = time.monotonic()
            ages = [f"{self._names[i]} ({age:.0f} s)" for i, age in sorted(running.items())]
            at_work = f" running: {', '.join(ages)}" if ages else ""
            print(f"[{done}/{len(self._names)} done]{at_work}", file=sys.stderr, flush=True)

    def _region(self, done: int, running: dict[int, float]) -> Group:
        bar = Table.grid(padding=(0, 1))
        total = len(self._names)
        bar.add_row(ProgressBar(total=total, completed=done, width=40), f"{done}/{total} done")
        lines = [Text(f"{age:5.0f} s  {self._names[i]}") for i, age in sorted(running.items())]
        return Group(bar, *lines)

    def clear(self) -> None:
        """Wipe the region, before something else is printed."""
        if self._live is not None:
            self._live.stop()
            self._live = None
