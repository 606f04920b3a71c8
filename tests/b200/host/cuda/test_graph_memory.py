"""What CUDA says of the memory of graphs (cuda.h, CUgraphMem_attribute)."""

import ctypes
from types import SimpleNamespace
from typing import Any

from b200.host.cuda.graph_memory import GraphMemory

CURRENT, MOST = 0, 1


class Modules:
    """Memory at numbers that count up, in use between `take` and `release`."""

    def __init__(self) -> None:
        self.used: dict[int, Any] = {}
        self.next = 0x1000

    def set_aside(self, nbytes: int) -> Any:
        self.next += nbytes
        return SimpleNamespace(first=self.next - nbytes, size=nbytes)

    def take(self, memory: Any) -> None:
        self.used[memory.first] = memory

    def release(self, address: int, by: str) -> None:
        del self.used[address]

    def reserved_at(self, address: int) -> Any:
        return self.used.get(address)


def test_the_most_is_never_less_than_what_there_is():
    """What graphs have freed is theirs until it is trimmed; the most counts from its reset on."""
    graphs = GraphMemory(Modules())  # type: ignore[arg-type]
    word = ctypes.c_uint64()
    out = ctypes.addressof(word)

    def said() -> list[int]:
        found = []
        for number in (CURRENT, MOST):
            graphs.attribute(number, out)
            found.append(word.value)
        return found

    first, second = graphs.allocates(64, out), graphs.allocates(256, out)
    first(), second()
    assert said() == [320, 320]
    graphs.frees(second.words[0])()
    assert said() == [320, 320]
    graphs.reset(MOST)
    assert said() == [320, 320]
    graphs.trim()
    assert said() == [64, 320]
    graphs.reset(MOST)
    assert said() == [64, 64]
