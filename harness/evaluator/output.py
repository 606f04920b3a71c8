"""What a case prints, of which the beginning and the end are kept."""

from __future__ import annotations

import os
import threading
from multiprocessing.connection import Connection

HEAD, TAIL = 4_000, 16_000  # bytes kept


class Output:
    """Reads a pipe in a thread until its last writer is gone, so that no case fills disk or
    memory.
    """

    def __init__(self, reader: Connection):
        self._reader = reader
        self._head, self._tail, self._total = b"", b"", 0
        self._thread = threading.Thread(target=self._drain, daemon=True)
        self._thread.start()

    def _drain(self) -> None:
        while True:
            try:
                chunk = os.read(self._reader.fileno(), 1 << 16)
            except OSError:
                return
            if not chunk:
                return
            self._total += len(chunk)
            room = HEAD - len(self._head)
            self._head += chunk[:room]
            self._tail = (self._tail + chunk[room:])[-TAIL:]

    def text(self, patience: float) -> str:
        """What was kept, after waiting at most `patience` seconds for the pipe's end."""
        self._thread.join(patience)
        left_out = self._total - len(self._head) - len(self._tail)
        gap = f"\n... {left_out:,} bytes left out ...\n" if left_out > 0 else ""
        return self._head.decode(errors="replace") + gap + self._tail.decode(errors="replace")

    def close(self) -> None:
        if not self._thread.is_alive():
            self._reader.close()
