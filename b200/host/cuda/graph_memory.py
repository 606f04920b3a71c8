"""Memory of graphs: nodes that allocate and free, made by hand or captured.

Such memory has its address from the start. It can be used between the node that allocates it and
what frees it: a node of this graph or of another, or the program (CUDA programming guide, "Graph
Memory Nodes").
"""

from __future__ import annotations

from functools import partial

from b200.host.cuda.graph_nodes import ALLOCATES, FREES, HostWork
from b200.host.cuda.modules import Modules, Reserved
from b200.host.poke import poke
from b200.host.refusals import invalid

_HIGH = 1  # of a cudaGraphMemAttributeType: the most there has been


class GraphMemory:
    def __init__(self, modules: Modules):
        self._modules = modules
        self._planned: dict[int, Reserved] = {}  # by address
        self._most = 0  # bytes in use at a time
        self._kept = 0  # the same since the last trim: what is freed stays with the graphs

    def allocates(self, nbytes: int, out: int) -> HostWork:
        """Write the address of memory to `out`; what allocates it."""
        memory = self._modules.set_aside(nbytes)
        self._planned[memory.first] = memory
        poke(out, "<Q", memory.first)

        def act() -> None:
            self._modules.take(memory)
            self._kept = max(self._kept, self._in_use())
            self._most = max(self._most, self._kept)

        return HostWork(ALLOCATES, act, (memory.first, nbytes))

    def frees(self, address: int) -> HostWork:
        if address not in self._planned:
            raise invalid(f"{address:#x} is not memory of a graph")
        act = partial(self._modules.release, address, "cudaGraphAddMemFreeNode")
        return HostWork(FREES, act, (address,))

    def attribute(self, number: int, out: int) -> None:
        """number: a cudaGraphMemAttributeType. What graphs use and what is set aside for them are
        one here: what they have had in use, until it is trimmed.
        """
        poke(out, "<Q", self._most if number & _HIGH else self._kept)

    def trim(self) -> None:
        """What graphs do not use is given back."""
        self._kept = self._in_use()

    def reset(self, number: int) -> None:
        """The most there has been is what there is from now on."""
        if not number & _HIGH:
            raise invalid("only the most that was in use can be reset")
        self._most = self._kept

    def free_again(self, work: object) -> None:
        """What a node allocates is freed, where it is in use."""
        if isinstance(work, HostWork) and work.kind == ALLOCATES:
            address = work.words[0]
            if self._modules.reserved_at(address) is self._planned[address]:
                self._modules.release(address, "cudaGraphLaunch")

    def _in_use(self) -> int:
        planned = self._planned.items()
        live = (of for at, of in planned if self._modules.reserved_at(at) is of)
        return sum(memory.size for memory in live)
