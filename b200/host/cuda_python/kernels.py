"""Modules, kernels, tensormaps and launches of cuda.bindings (cuda-python), from PTX.

A function here gives a tuple of results, without the status; functions.py puts it in place.
Arguments stand in the order of cuda.bindings. A queue is taken and has nothing to order: work is
done when it is launched.
"""

from __future__ import annotations

import ctypes
import enum
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from b200.host.cuda.facts import ATTRIBUTES
from b200.host.cuda.launching import LaunchWords
from b200.host.cuda.modules import Modules, check_image, refuse_launch_attribute, text_of
from b200.host.cuda_python.host_memory import address_of
from b200.host.refusals import NOT_FOUND, Refused, invalid, unsupported
from b200.host.tensor_map import encode_tiled
from b200.program.module import Kernel
from b200.program.names import readable

# CUlaunchAttributeID, cudaLaunchAttributeID
_COOPERATIVE, _CLUSTER, _DEPENDENT = 2, 4, 6
_WITHOUT_EFFECT = (0, 1, 3, 5, 8, 9, 10, 11, 14)


class Kernels:
    """The functions over `modules`. driver: the module cuda.bindings.driver, for its handles."""

    def __init__(self, driver: Any, modules: Modules):
        self.driver, self.modules = driver, modules

    def driver_functions(self) -> dict[str, Callable[..., tuple]]:
        d = self.driver
        nothing = ("cuFuncSetCacheConfig", "cuKernelSetCacheConfig", "cuFuncLoad")
        return {
            **dict.fromkeys(nothing, lambda *_: ()),
            "cuModuleLoad": self._loads_file(d.CUmodule),
            "cuModuleLoadData": self._loads(d.CUmodule),
            "cuModuleLoadDataEx": self._loads(d.CUmodule),
            "cuModuleUnload": self.unload,
            "cuModuleGetFunction": self._finds(d.CUfunction),
            "cuModuleGetFunctionCount": self.count,
            "cuModuleEnumerateFunctions": self._lists(d.CUfunction),
            "cuModuleGetGlobal": self.variable,
            **self._in_both("cu", d.CUlibrary, d.CUkernel),
            "cuLibraryGetModule": lambda library: (d.CUmodule(int(library)),),
            "cuKernelGetFunction": lambda kernel: (d.CUfunction(int(kernel)),),
            "cuKernelGetName": self.name,
            "cuFuncGetName": self.name,
            "cuKernelGetAttribute": lambda number, kernel, _device: self.attribute(number, kernel),
            "cuFuncGetAttribute": self.attribute,
            "cuKernelSetAttribute": lambda number, value, kernel, _device: self.set_attribute(
                kernel, number, value
            ),
            "cuFuncSetAttribute": self.set_attribute,
            "cuOccupancyMaxActiveClusters": self.resident_clusters,
            "cuOccupancyMaxPotentialClusterSize": lambda kernel, _config: (
                self.modules.largest_cluster(int(kernel)),
            ),
            "cuTensorMapEncodeTiled": self.tensor_map,
            "cuLaunchKernel": self.launch,
            "cuLaunchCooperativeKernel": self.launch_cooperative,
            "cuLaunchKernelEx": self.launch_with_attributes,
        }

    def runtime_functions(self, cudart: Any) -> dict[str, Callable[..., tuple]]:
        """The functions of cuda.bindings.runtime, by name. cuda-python has no launch there."""
        return {
            "cudaFuncSetCacheConfig": lambda *_: (),
            **self._in_both("cuda", cudart.cudaLibrary_t, cudart.cudaKernel_t),
            "cudaFuncSetAttribute": self.set_attribute,
            "cudaKernelSetAttributeForDevice": lambda kernel, number, value, _device: (
                self.set_attribute(kernel, number, value)
            ),
        }

    def _in_both(self, prefix: str, library: Any, kernel: Any) -> dict[str, Callable]:
        """What both modules have by one name. library, kernel: their types of handles."""
        names = {
            "LibraryLoadData": self._loads(library),
            "LibraryLoadFromFile": self._loads_file(library),
            "LibraryUnload": self.unload,
            "LibraryGetKernel": self._finds(kernel),
            "LibraryGetKernelCount": self.count,
            "LibraryEnumerateKernels": self._lists(kernel),
            "LibraryGetGlobal": self.variable,
            "OccupancyMaxActiveBlocksPerMultiprocessor": self.resident,
            "OccupancyMaxActiveBlocksPerMultiprocessorWithFlags": self.resident,
        }
        return {prefix + name: action for name, action in names.items()}

    # --- modules
    def _loads(self, handle: Callable[[int], Any]) -> Callable[..., tuple]:
        """A function of an image: PTX as text, ended by a zero or by the object that holds it."""
        return lambda image, *_options: (handle(self.modules.load(_text(image))),)

    def _loads_file(self, handle: Callable[[int], Any]) -> Callable[..., tuple]:
        def load(name: bytes, *_options: Any) -> tuple:
            file = Path(name.decode())
            if not file.is_file():
                raise Refused(NOT_FOUND, f"the module's file {str(file)!r} does not exist")
            return (handle(self.modules.load(_text(file.read_bytes()))),)

        return load

    def _finds(self, handle: Callable[[int], Any]) -> Callable[..., tuple]:
        return lambda module, name: (handle(self.modules.kernel(int(module), name.decode())),)

    def _lists(self, handle: Callable[[int], Any]) -> Callable[..., tuple]:
        return lambda most, module: ([*map(handle, self.modules.kernels(int(module), most))],)

    def count(self, module: Any) -> tuple:
        return (len(self.modules.module(int(module)).program.kernels),)

    def unload(self, module: Any) -> tuple:
        self.modules.unload(int(module))
        return ()

    def variable(self, module: Any, name: bytes) -> tuple:
        address, nbytes = self.modules.variable(int(module), name.decode())
        return self.driver.CUdeviceptr(address), nbytes

    # --- kernels
    def name(self, kernel: Any) -> tuple:
        return (self.modules.function(int(kernel)).kernel.name.encode(),)

    def attribute(self, number: Any, kernel: Any) -> tuple:
        if int(number) not in ATTRIBUTES:
            raise unsupported(f"function attribute {int(number)} is not known")
        return (ATTRIBUTES[int(number)](self.modules.function(int(kernel))),)

    def set_attribute(self, kernel: Any, number: Any, value: int) -> tuple:
        self.modules.set_attribute(int(kernel), int(number), int(value))
        return ()

    def resident(self, kernel: Any, threads: int, dynamic_smem: int, *_flags: Any) -> tuple:
        return (self.modules.resident(int(kernel), threads, dynamic_smem),)

    def resident_clusters(self, kernel: Any, config: Any) -> tuple:
        return (self.modules.resident_clusters(int(kernel), _words(config)),)

    def tensor_map(
        self,
        data_type: Any,
        rank: int,
        address: Any,
        dims: Sequence[Any],
        strides: Sequence[Any] | None,
        box: Sequence[Any],
        steps: Sequence[Any],
        interleave: Any,
        swizzle: Any,
        _l2_promotion: Any,
        fill: Any,
    ) -> tuple:
        found = self.driver.CUtensorMap()
        shape = (_numbers(dims, rank), _numbers(strides or (), rank - 1))
        shape += (_numbers(box, rank), _numbers(steps, rank))
        modes = (int(interleave), int(swizzle), int(fill))
        raw = encode_tiled(int(data_type), int(address), *shape, *modes)
        ctypes.memmove(found.getPtr(), raw, len(raw))
        return (found,)

    # --- launches
    def launch(self, kernel: Any, *words: Any) -> tuple:
        """words: grid (3), block (3), bytes of dynamic shared memory, queue, arguments, extra."""
        grid, block, (smem, *rest) = words[:3], words[3:6], words[6:]
        return self._launch(kernel, LaunchWords.of(grid, block, smem), *rest)

    def launch_cooperative(self, kernel: Any, *words: Any) -> tuple:
        grid, block, (smem, queue, arguments) = words[:3], words[3:6], words[6:]
        launch = LaunchWords.of(grid, block, smem)
        launch.cooperative = 1
        return self._launch(kernel, launch, queue, arguments)

    def launch_with_attributes(self, config: Any, kernel: Any, *arguments: Any) -> tuple:
        return self._launch(kernel, _words(config), config.hStream, *arguments)

    def _launch(
        self, kernel: Any, words: LaunchWords, queue: Any, arguments: Any, extra: Any = 0
    ) -> tuple:
        found = self.modules.function(int(kernel)).kernel
        words.queue = int(queue)
        words.arguments, kept = _pointers(found, arguments)
        words.packed = address_of(extra)
        self.modules.launch(int(kernel), words)
        del kept  # the arguments' memory, read by then
        return ()


def _text(image: Any) -> str:
    """The PTX of a module's image: an object with its bytes, or their address."""
    try:
        held = bytes(memoryview(image))
    except TypeError:
        if not int(image):
            raise invalid("the image of a module is null") from None
        held = ctypes.string_at(int(image))
    check_image(held)
    return text_of(held.split(b"\0", 1)[0])


def _numbers(values: Sequence[Any], count: int) -> list[int]:
    """The first `count` of cuuint32_t or cuuint64_t objects."""
    if len(values) < count:
        said = f"cuTensorMapEncodeTiled: {count} numbers of a list are read, got {len(values)}"
        raise invalid(said)
    return [int(value) for value in values][:count]


def _words(config: Any) -> LaunchWords:
    grid = (config.gridDimX, config.gridDimY, config.gridDimZ)
    block = (config.blockDimX, config.blockDimY, config.blockDimZ)
    words = LaunchWords.of(grid, block, config.sharedMemBytes)
    for attribute in list(config.attrs)[: config.numAttrs]:
        number = int(attribute.id)
        if number == _CLUSTER:
            dim = attribute.value.clusterDim
            words.cluster[:] = (dim.x, dim.y, dim.z)
        elif number == _COOPERATIVE:
            words.cooperative = attribute.value.cooperative
        elif number == _DEPENDENT:
            words.dependent = bool(attribute.value.programmaticStreamSerializationAllowed)
        elif number not in _WITHOUT_EFFECT:
            refuse_launch_attribute(number)
    return words


# --- arguments: cuda.bindings.driver.cuLaunchKernel, `kernelParams`


def _pointers(kernel: Kernel, given: Any) -> tuple[int, Any]:
    """Address of the array of pointers to the arguments, and what has to live until they are read.

    given: None, an address, an object with the array in it, or (values, ctypes types).
    """
    if not isinstance(given, tuple):
        return address_of(given), given
    values, kinds = given
    if not len(values) == len(kinds) == len(kernel.params):
        came = f"{len(values)} values and {len(kinds)} types of arguments"
        raise _refused(kernel, f"{came}, it has {len(kernel.params)} parameters")
    if not kernel.params:
        return 0, None
    cells = [_cell(kernel, i, *pair) for i, pair in enumerate(zip(values, kinds, strict=True))]
    array = (ctypes.c_void_p * len(cells))(*(address for address, _ in cells))
    return ctypes.addressof(array), (array, cells)


def _cell(kernel: Kernel, index: int, value: Any, kind: Any) -> tuple[int, Any]:
    """Where an argument lies, and the object that holds it."""
    if kind is None and callable(getattr(value, "getPtr", None)):
        return value.getPtr(), value
    if kind is None and (isinstance(value, enum.Enum) or _is_fast_enum(value)):
        kind = ctypes.c_int
    if kind is None and not isinstance(value, (ctypes.Structure, ctypes.Union, ctypes.Array)):
        raise _refused(
            kernel,
            f"argument {index} is a {type(value).__name__} with the type None, which takes"
            " a ctypes.Structure, an enumeration or an object with getPtr()",
        )
    cell: Any = value if kind is None or isinstance(value, kind) else _number(value, kind)
    size, parameter = ctypes.sizeof(cell), kernel.params[index]
    if size < parameter.size:
        raise _refused(
            kernel,
            f"argument {index} is a {type(cell).__name__} of {size} bytes, its parameter"
            f" takes {parameter.size}",
        )
    return ctypes.addressof(cell), cell


def _is_fast_enum(value: Any) -> bool:
    """Whether it is of an enumeration of cuda.bindings 13.2 or later: an int with a name."""
    return isinstance(value, int) and hasattr(type(value), "__members__")


def _number(value: Any, kind: Any) -> Any:
    """A number, handle, ctypes object or numpy scalar as a ctypes object of this kind;
    OverflowError for a whole number that it cannot hold, as of cuda-python 13.4.
    """
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, ctypes._SimpleCData):
        value = value.value
    if kind == ctypes.c_void_p and callable(getattr(value, "getPtr", None)):
        value = value.getPtr()  # a pointer to an object of cuda.bindings
    whole = not isinstance(value, (bool, int, float, bytes, str))
    made = kind(int(value) if whole else value)
    if isinstance(value, int) and isinstance(made.value, int) and made.value != value:
        raise OverflowError(f"{value} does not fit a {kind.__name__}")
    return made


def _refused(kernel: Kernel, reason: str) -> Refused:
    return invalid(f"launch of {readable(kernel.name)} refused: {reason}")
