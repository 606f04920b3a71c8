"""Kernels and variables that a library registers when it comes into the process: calls of
shim/registration.cpp. Its code is looked at when the program first needs it.
"""

from __future__ import annotations

from dataclasses import dataclass

from b200.host import refusals
from b200.host.cuda import fatbin
from b200.host.cuda.modules import Modules
from b200.host.cuda.sources import Origin, relocate
from b200.host.poke import poke, text_at
from b200.host.refusals import Refused
from b200.program.linking import linked


@dataclass
class Loading:
    """The library that is being loaded. error: the first thing that went wrong in it."""

    origins: dict[str, Origin]
    error: BaseException | None = None


class Registration:
    """What is registered, in `modules` from its first use on. loading: the library that is being
    loaded, whose code is looked at at once; None between two.
    """

    def __init__(self, modules: Modules):
        self.loading: Loading | None = None
        self._modules = modules
        self._wrappers: dict[int, int] = {}  # by module, as the host code calls it
        self._loaded: dict[int, int] = {}
        self._kernels: dict[int, tuple[int, str]] = {}  # by host address, until they are used
        self._symbols: dict[int, tuple[int, str]] = {}
        modules.late.append(self._late)

    def module(self, wrapper: int, module: int) -> None:
        """module: what the host code calls it. While an extension is being loaded its code is
        looked at now.
        """
        self._wrappers[module] = wrapper
        if self.loading is not None:
            self._handle(module)

    def kernel(self, module: int, host: int, name: int) -> None:
        """host: the address by which the host code knows it."""
        self._kernels[host] = (module, text_at(name))
        self._modules.forget_kernel(host)  # of a library that was here before

    def variable(self, module: int, host: int, name: int, _size: int) -> None:
        self._symbols[host] = (module, text_at(name))

    def managed(self, module: int, host: int, name: int, size: int) -> None:
        self.variable(module, host, name, size)
        address, _ = self._modules.variable(self._handle(module), text_at(name))
        poke(host, "<Q", address)

    def symbol(self, host: int) -> tuple[int, str]:
        """The module and the name of a variable; Refused where there is none."""
        if host not in self._symbols:
            said = f"no __device__ or __constant__ variable at {host:#x}"
            raise Refused(refusals.INVALID_SYMBOL, said)
        module, name = self._symbols[host]
        return self._handle(module), name

    def _handle(self, module: int) -> int:
        """The handle of a registered module; 0 of one without code."""
        if module not in self._loaded:
            image, loading = fatbin.image_of(self._wrappers[module]), self.loading
            texts = image.texts
            if loading is not None:
                texts = [relocate(ptx, loading.origins) for ptx in texts]
            handle = self._modules.load(linked(texts), image.registers) if texts else 0
            self._loaded[module] = handle
        return self._loaded[module]

    def _late(self, host: int) -> None:
        """A kernel is used for the first time."""
        if host in self._kernels:
            module, name = self._kernels.pop(host)
            self._modules.kernel(self._handle(module), name, host)
