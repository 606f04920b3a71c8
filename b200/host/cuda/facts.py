"""What the CUDA driver says of kernels and of memory: calls of shim/queries.cpp."""

from __future__ import annotations

from collections.abc import Callable

from b200.hardware import COMPUTE_CAPABILITY
from b200.host.cuda import modules
from b200.host.cuda.launching import Function
from b200.host.cuda.modules import Modules
from b200.host.poke import poke
from b200.host.refusals import invalid

_VERSION = 10 * COMPUTE_CAPABILITY[0] + COMPUTE_CAPABILITY[1]  # of a B200's PTX and machine code
_NOTHING, _OF_DEVICE, _OF_HOST, _MANAGED = range(4)  # kinds of memory, as queries.cpp has them


def _cluster(function: Function) -> tuple[int, ...]:
    """CTAs of a cluster in each direction that the kernel's PTX asks for, 0 for none."""
    size = function.kernel.directives.get("reqnctapercluster", ())
    return (*size, 1, 1)[:3] if size else (0, 0, 0)


# CUfunction_attribute -> its value
ATTRIBUTES: dict[int, Callable[[Function], int]] = {
    0: lambda function: function.most_threads,
    1: lambda function: function.static_smem,
    2: lambda function: function.constant_bytes,
    3: lambda function: function.local_bytes,
    4: lambda function: function.registers,
    5: lambda _: _VERSION,
    6: lambda _: _VERSION,
    7: lambda _: 0,  # loads of global memory by L1: ptxas' choice
    modules.MAX_DYNAMIC_SMEM: lambda function: function.dynamic_smem_limit,
    9: lambda _: -1,  # shared memory's part of L1: the driver's choice
    10: lambda function: int(any(_cluster(function))),
    11: lambda function: _cluster(function)[0],
    12: lambda function: _cluster(function)[1],
    13: lambda function: _cluster(function)[2],
    modules.NON_PORTABLE_CLUSTER: lambda function: int(function.non_portable_cluster),
    15: lambda _: 0,  # the order of clusters: the driver's choice
}


class Facts:
    """The answers, from `modules`. Results are written through addresses."""

    def __init__(self, modules: Modules):
        self.modules = modules

    def pointer(self, address: int, out: int) -> None:
        """Kind of memory, first byte and size of the allocation that holds an address, a number of
        its own.
        """
        found = self.modules.reserved_at(address)
        if found is not None:
            kind = _OF_DEVICE if found.by in modules.OF_THE_GPU else _OF_HOST
            kind = _MANAGED if found.by == modules.MANAGED else kind
            return poke(out, "<4Q", kind, found.first, found.size, found.first)
        region = self.modules.region_at(address)
        if region is not None:
            return poke(out, "<4Q", _OF_HOST, region[0], region[1], region[0])
        memory = self.modules.gpu.memory.find(address, 1)
        if memory is not None:
            return poke(out, "<4Q", _OF_DEVICE, memory.base, memory.size, memory.base)
        poke(out, "<4Q", _NOTHING, 0, 0, 0)

    def attribute(self, handle: int, number: int, out: int) -> None:
        """number: a CUfunction_attribute."""
        function = self.modules.function(handle)
        if number not in ATTRIBUTES:
            raise invalid(f"there is no function attribute {number}")
        poke(out, "<i", ATTRIBUTES[number](function))

    def parameter(self, handle: int, index: int, offset: int, size: int) -> None:
        """Where a parameter lies among all, and its bytes. size: 0 for no answer."""
        parameters = self.modules.function(handle).kernel.params
        if index >= len(parameters):
            raise invalid(f"a kernel of {len(parameters)} parameters has none of index {index}")
        poke(offset, "<Q", parameters[index].offset)
        if size:
            poke(size, "<Q", parameters[index].size)

    def module_of(self, handle: int, out: int) -> None:
        poke(out, "<Q", self.modules.handle_of(self.modules.function(handle).module))

    def kernel_count(self, module: int, out: int) -> None:
        poke(out, "<I", len(self.modules.module(module).program.kernels))

    def kernels(self, module: int, out: int, most: int) -> None:
        found = self.modules.kernels(module, most)
        poke(out, f"<{len(found)}Q", *found)
