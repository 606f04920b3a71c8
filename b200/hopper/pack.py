"""A launch in a file: recorded where the DSL is, run where a Hopper GPU is.

A pack holds the PTX for sm_100a, the kernel parameters of every launch of one call, and where in
them the addresses of tensors are. The tensors are in it, or the case that its maker can make them
from again on any machine (`python -m harness.packs` does that with the leaderboards' cases).
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from b200.chip.copies.tensormap import ALIGN as MAP_ALIGN
from b200.chip.copies.tensormap import BYTES as MAP_BYTES
from b200.chip.gpu import Gpu
from b200.hopper.errors import HopperError

FORMAT = 2


@dataclass(frozen=True)
class Relocation:
    """The address at byte `at` of the parameters is `offset` bytes into tensor number `tensor`."""

    at: int
    tensor: int
    offset: int


@dataclass(frozen=True)
class PackedLaunch:
    """One launch. program: index of its PTX; params: as recorded; smem: dynamic, in bytes."""

    program: int
    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int]
    smem: int
    params: bytes
    relocations: tuple[Relocation, ...]

    def relocated(self, addresses: list[int]) -> bytes:
        """The parameters with tensors at these addresses."""
        params = bytearray(self.params)
        for r in self.relocations:
            struct.pack_into("<Q", params, r.at, addresses[r.tensor] + r.offset)
        return bytes(params)


@dataclass(frozen=True)
class Pack:
    """programs: PTX. case: what the tensors can be made from again, or None. tensors: their bytes,
    or None where there is a case.

    digests, sizes: SHA-256 and bytes of every tensor before the launches. read_bytes: what one call
    must read at least. expected: SHA-256 of every tensor after the launches, or None.
    """

    programs: tuple[str, ...]
    launches: tuple[PackedLaunch, ...]
    digests: tuple[str, ...]
    sizes: tuple[int, ...]
    read_bytes: int
    case: dict[str, Any] | None = None
    tensors: tuple[bytes, ...] | None = None
    expected: tuple[str, ...] | None = None
    made_with: dict[str, str] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        launches = [{**asdict(launch), "params": launch.params.hex()} for launch in self.launches]
        manifest = {
            "format": FORMAT,
            "programs": self.programs,
            "launches": launches,
            "digests": self.digests,
            "sizes": self.sizes,
            "read_bytes": self.read_bytes,
            "case": self.case,
            "expected": self.expected,
            "made_with": self.made_with,
        }
        arrays: dict[str, Any] = {
            "manifest": np.frombuffer(json.dumps(manifest).encode(), np.uint8)
        }
        for i, data in enumerate(self.tensors or ()):
            arrays[f"tensor{i}"] = np.frombuffer(data, np.uint8)
        np.savez_compressed(path, **arrays)


def load(path: Path) -> Pack:
    """Read a pack. Raises HopperError."""
    try:
        arrays = np.load(path)
        manifest = json.loads(arrays["manifest"].tobytes())
        if manifest["format"] != FORMAT:
            raise ValueError(f"format {manifest['format']}, this version reads {FORMAT}")
        tensors = (
            tuple(arrays[f"tensor{i}"].tobytes() for i in range(len(arrays.files) - 1)) or None
        )
        return Pack(
            tuple(manifest["programs"]),
            tuple(_launch(item) for item in manifest["launches"]),
            tuple(manifest["digests"]),
            tuple(manifest["sizes"]),
            manifest["read_bytes"],
            _case(manifest["case"]),
            tensors,
            tuple(manifest["expected"]) if manifest["expected"] else None,
            manifest["made_with"],
        )
    except (OSError, ValueError, KeyError) as error:
        raise HopperError("missing", f"{path} is not a pack: {error}") from None


def _launch(item: dict[str, Any]) -> PackedLaunch:
    shapes = {key: tuple(item[key]) for key in ("grid", "block", "cluster")}
    relocations = tuple(Relocation(**r) for r in item["relocations"])
    return PackedLaunch(
        **{**item, **shapes, "params": bytes.fromhex(item["params"]), "relocations": relocations}
    )


def _case(case: dict[str, Any] | None) -> dict[str, Any] | None:
    if case is None:
        return None
    return {key: tuple(value) if isinstance(value, list) else value for key, value in case.items()}


def storages(data: Any) -> list:
    """The tensors in nested tuples and lists, in order, each as the uint8 tensor of its storage."""
    import torch

    if isinstance(data, torch.Tensor):
        raw = torch.empty(0, dtype=torch.uint8, device=data.device)
        return [raw.set_(data.untyped_storage())]
    if isinstance(data, (tuple, list)):
        return [found for item in data for found in storages(item)]
    return []


def to_gpu(data: Any) -> Any:
    """Nested tuples and lists of tensors on the GPU, strides kept."""
    import torch

    if isinstance(data, torch.Tensor):
        if data.dtype == torch.float4_e2m1fn_x2:
            return data.view(torch.uint8).cuda().view(data.dtype)
        return data.cuda()
    if isinstance(data, (tuple, list)):
        return type(data)(to_gpu(item) for item in data)
    return data


def digest(storage) -> str:
    return hashlib.sha256(storage.cpu().numpy().tobytes()).hexdigest()


class Recorder(Gpu):
    """Records launches under the DSL's host code; with `emulate` the emulator runs them, too."""

    def __init__(self, emulate: bool = False):
        super().__init__()
        self.emulate = emulate
        self.recorded: list[tuple] = []

    def launch(self, program, name, grid, block, cluster, dynamic_smem, params):
        self.recorded.append((program, name, grid, block, cluster, dynamic_smem, params))
        if self.emulate:
            super().launch(program, name, grid, block, cluster, dynamic_smem, params)


def record(
    recorder: Recorder,
    kernel: Callable[[Any], Any],
    data: Any,
    case: dict[str, Any] | None = None,
    read_bytes: int | None = None,
) -> Pack:
    """Call `kernel(data)` once and pack its launches; b200.install(gpu=recorder) comes before.

    case: what `data` can be made from again; without, the tensors are packed. read_bytes: what the
    call must read at least; all tensors, if None.
    """
    tensors = storages(data)
    before = tuple(digest(t) for t in tensors)
    contents = None if case else tuple(t.numpy().tobytes() for t in tensors)
    recorder.recorded.clear()
    kernel(data)
    programs, launches = [], []
    for program, name, grid, block, cluster, smem, params in recorder.recorded:
        if program.text not in programs:
            programs.append(program.text)
        places = program.kernels[name].params
        found = relocations(params, places, [(t.data_ptr(), t.numel()) for t in tensors])
        number = programs.index(program.text)
        launches.append(
            PackedLaunch(
                number, name, tuple(grid), tuple(block), tuple(cluster), smem, params, found
            )
        )
    expected = tuple(digest(t) for t in tensors) if recorder.emulate else None
    sizes = tuple(t.numel() for t in tensors)
    read = sum(sizes) if read_bytes is None else read_bytes
    return Pack(
        tuple(programs), tuple(launches), before, sizes, read, case, contents, expected, versions()
    )


def relocations(
    params: bytes, places: list, ranges: list[tuple[int, int]]
) -> tuple[Relocation, ...]:
    """The 8-byte words of parameters that hold an address inside one of `ranges` (address, bytes).

    Of a tensormap only the first: its second half is whatever was in memory.
    """
    found = []
    for place in places:
        size = 8 if place.size == MAP_BYTES and place.align >= MAP_ALIGN else place.size
        for at in range(-(-place.offset // 8) * 8, place.offset + size - 7, 8):
            (value,) = struct.unpack_from("<Q", params, at)
            for i, (start, size) in enumerate(ranges):
                if start <= value < start + size:
                    found.append(Relocation(at, i, value - start))
                    break
    return tuple(found)


def versions() -> dict[str, str]:
    import importlib.metadata

    names = ("torch", "nvidia-cutlass-dsl", "numpy")
    return {name: importlib.metadata.version(name) for name in names if _installed(name)}


def _installed(name: str) -> bool:
    import importlib.metadata

    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True
