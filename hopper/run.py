"""Loads and launches a retargeted kernel on a Hopper GPU, through cuda-python and torch."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any

from b200.chip.gpu import Dim3
from b200.chip.launch import Shape
from b200.program.parse import parse
from hopper import toolchain
from hopper.byte_tensormaps import BYTES as MAP_BYTES
from hopper.byte_tensormaps import LaunchFacts, is_four_bit, maps_in, to_hopper
from hopper.errors import HopperError
from hopper.rewrite import Retargeted, retarget

CAPABILITY = 9  # major compute capability of Hopper
SLOT_BYTES = 128 * 512 * 4  # of tensor memory
MAX_SMEM = 232_448  # what a CTA may ask for, on Hopper as on Blackwell
PORTABLE_CLUSTER = 8


def require_gpu() -> str:
    """The Hopper GPU's name. Raises HopperError if it, torch or cuda-python is missing."""
    try:
        import torch
    except ImportError:
        raise HopperError("missing", "--device hopper needs torch") from None
    if not torch.cuda.is_available():
        raise HopperError("missing", "no Hopper GPU: torch finds no CUDA GPU here")
    major, minor = torch.cuda.get_device_capability()
    if major != CAPABILITY:
        name = torch.cuda.get_device_name()
        raise HopperError(
            "missing",
            f"no Hopper GPU: {name} has compute capability {major}.{minor}, 9.0 is needed",
        )
    try:
        import cuda.bindings.driver  # noqa: F401
    except ImportError:
        raise HopperError(
            "missing", "the Hopper runner needs cuda-python (pip install cuda-python)"
        ) from None
    return torch.cuda.get_device_name()


def checked(result: tuple) -> Any:
    """The value of a driver call. Raises HopperError with the driver's words."""
    from cuda.bindings import driver  # pyright: ignore[reportAttributeAccessIssue]

    error, *values = result
    if error != driver.CUresult.CUDA_SUCCESS:
        _, text = driver.cuGetErrorString(error)
        raise HopperError(
            "launch", f"CUDA error: {error.name}: {text.decode() if text else 'no description'}"
        )
    return values[0] if len(values) == 1 else tuple(values)


def facts_of(text: str, name: str, cluster: Dim3, params: bytes) -> LaunchFacts | None:
    """The facts of a launch that are known before it runs; None if no parameter is a tensormap."""
    parameters = parse(text).kernels[name].params
    places = [(p.offset, p.size, p.align) for p in parameters]
    if not maps_in(params, places):
        return None
    return LaunchFacts.of(parameters[0].name, prod(cluster), params, places)


def places_of(text: str, name: str) -> list[tuple[int, int, int]]:
    """(offset, size, alignment) of the parameters of a kernel, in bytes."""
    return [(p.offset, p.size, p.align) for p in parse(text).kernels[name].params]


class Image:
    """A loaded kernel of a PTX module for sm_90a. places: as `places_of` gives them."""

    def __init__(self, text: str, name: str, places: list[tuple[int, int, int]]):
        import torch
        from cuda.bindings import driver  # pyright: ignore[reportAttributeAccessIssue]

        self.name, self.places = name, places
        code = toolchain.assemble(text)
        torch.zeros(1, device="cuda")  # makes torch's context current
        self.module = checked(driver.cuModuleLoadData(code))
        self.function = checked(driver.cuModuleGetFunction(self.module, name.encode()))

    def prepare(self, shape: Shape) -> None:
        """Allow launches of this shape. Raises HopperError."""
        from cuda.bindings import driver  # pyright: ignore[reportAttributeAccessIssue]

        if shape.smem > MAX_SMEM:
            raise HopperError(
                "launch",
                f"{self.name} needs {shape.smem} bytes of shared memory a CTA, {MAX_SMEM} at most",
            )
        attributes = driver.CUfunction_attribute
        limit = attributes.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        checked(driver.cuFuncSetAttribute(self.function, limit, shape.smem))
        if shape.cluster[0] * shape.cluster[1] * shape.cluster[2] > PORTABLE_CLUSTER:
            large = attributes.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
            checked(driver.cuFuncSetAttribute(self.function, large, 1))

    def enqueue(self, shape: Shape, params: bytes) -> None:
        """Launch it on torch's current queue. Raises HopperError."""
        from cuda.bindings import driver  # pyright: ignore[reportAttributeAccessIssue]

        buffer = ctypes.create_string_buffer(params, max(len(params), 1))
        start = ctypes.addressof(buffer)
        pointers = (ctypes.c_void_p * max(len(self.places), 1))(
            *(start + offset for offset, _, _ in self.places)
        )
        checked(
            driver.cuLaunchKernelEx(config_of(shape), self.function, ctypes.addressof(pointers), 0)
        )

    def launch(self, shape: Shape, params: bytes) -> None:
        """Run it once and wait. Raises HopperError."""
        from cuda.bindings import driver  # pyright: ignore[reportAttributeAccessIssue]

        self.prepare(shape)
        self.enqueue(shape, params)
        checked(driver.cuCtxSynchronize())


class HopperKernel:
    """A kernel of a PTX module for sm_100a, on this GPU. rewrite: a function like `retarget`, with
    the module and the device functions as its arguments; or its result, for a module that needs no
    device functions.
    """

    def __init__(
        self,
        text: str,
        name: str,
        rewrite: Callable[[str, str], Retargeted] | Retargeted = retarget,
    ):
        if isinstance(rewrite, Retargeted):
            self.program = rewrite
        else:
            self.program = rewrite(text, toolchain.device_functions())
        self.image = Image(self.program.text, name, places_of(text, name))

    def launch(self, shape: Shape, params: bytes) -> None:
        """Run it once and wait. params: as packed for a B200, but with addresses of this GPU.
        Raises HopperError.
        """
        shape = self._with_private_bytes(shape)
        workspace = self._tensor_memory(shape) if self.program.tmem else None
        self.image.launch(shape, self.carried_over(params))
        del workspace

    def prepared(self, shape: Shape) -> Callable[[bytes], None]:
        """A function that takes parameters, launches and does not wait. All its launches share one
        tensor memory.
        """
        shape = self._with_private_bytes(shape)
        workspace = self._tensor_memory(shape) if self.program.tmem else None
        self.image.prepare(shape)

        def run(params: bytes, keep=workspace) -> None:
            self.image.enqueue(shape, self.carried_over(params))

        return run

    def _with_private_bytes(self, shape: Shape) -> Shape:
        return replace(shape, smem=self.program.smem(shape.smem))

    def carried_over(self, params: bytes) -> bytes:
        """The parameters, with their tensormaps converted for Hopper. Raises HopperError."""
        return carried_over(params, self.image.places, self.program)

    def _tensor_memory(self, shape: Shape):
        """Tensor memory for every CTA of the grid, all ones (NaN); its allocation bitmaps, zero."""
        import torch
        from cuda.bindings import driver  # pyright: ignore[reportAttributeAccessIssue]

        needed, (free, _) = shape.ctas * (SLOT_BYTES + 4), torch.cuda.mem_get_info()
        if needed > free:
            raise HopperError(
                "launch",
                f"{shape.ctas} CTAs need {needed} bytes for tensor memory, {free} are free",
            )
        slots = torch.full((shape.ctas * SLOT_BYTES,), 0xFF, dtype=torch.uint8, device="cuda")
        bitmaps = torch.zeros(shape.ctas, dtype=torch.int32, device="cuda")
        for symbol, tensor in (("hopper_slots", slots), ("hopper_bitmaps", bitmaps)):
            pointer, size = checked(driver.cuModuleGetGlobal(self.image.module, symbol.encode()))
            value = ctypes.c_uint64(tensor.data_ptr())
            checked(driver.cuMemcpyHtoD(pointer, ctypes.addressof(value), size))
        torch.cuda.synchronize()
        return slots, bitmaps


def carried_over(params: bytes, places: list[tuple[int, int, int]], program: Retargeted) -> bytes:
    """Parameters packed for a B200, with tensormaps converted for Hopper. Raises HopperError."""
    converted = bytearray(params)
    for at in maps_in(params, places):
        found = params[at : at + MAP_BYTES]
        if program.edits_maps and is_four_bit(found):
            raise HopperError(
                "unsupported", "a tensormap of 4-bit elements whose size is changed on the device"
            )
        converted[at : at + MAP_BYTES] = to_hopper(found)
    return bytes(converted)


def config_of(shape: Shape) -> Any:
    """The driver's launch configuration of a shape, on torch's current queue."""
    import torch
    from cuda.bindings import driver  # pyright: ignore[reportAttributeAccessIssue]

    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = shape.grid
    config.blockDimX, config.blockDimY, config.blockDimZ = shape.block
    config.sharedMemBytes = shape.smem
    config.hStream = driver.CUstream(torch.cuda.current_stream().cuda_stream)
    attributes, ids = [], driver.CUlaunchAttributeID
    if shape.cluster != (1, 1, 1):
        attribute = driver.CUlaunchAttribute()
        attribute.id = ids.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        dimensions = attribute.value.clusterDim
        dimensions.x, dimensions.y, dimensions.z = shape.cluster
        attribute.value.clusterDim = dimensions
        attributes.append(attribute)
    if shape.dependent:
        attribute, value = driver.CUlaunchAttribute(), driver.CUlaunchAttributeValue()
        attribute.id = ids.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        value.programmaticStreamSerializationAllowed = 1
        attribute.value = value
        attributes.append(attribute)
    if attributes:
        config.attrs, config.numAttrs = attributes, len(attributes)
    return config
