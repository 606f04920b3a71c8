"""A launch in a file: recorded on a machine with the DSL, run on a machine with a Hopper GPU.

A pack holds the PTX for sm_100a, the kernel parameters of every launch of one call, and the places
of tensor addresses in the parameters. It holds the tensors, too, or a case: a description from
which its maker makes the tensors again on any machine (`python -m lab packs` does that with the
leaderboards' cases).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import struct
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from b200.chip.copies.tensormap import BYTES as MAP_BYTES
from b200.chip.gpu import Gpu
from b200.chip.launch import Launch, Shape
from b200.program.module import Kernel, Program
from hopper.byte_tensormaps import maps_in
from hopper.errors import HopperError

FORMAT = 3  # 2 is read, too: it has no buffers
SMALL = 1 << 16  # bytes of a buffer whose contents are packed: lists of sizes and pointers


@dataclass(frozen=True)
class Relocation:
    """The address at byte `at` of the parameters is `offset` bytes into tensor number `tensor`."""

    at: int
    tensor: int
    offset: int


@dataclass(frozen=True)
class Buffer:
    """Memory that a launch uses besides the tensors of the pack. contents: its bytes, None if any
    bytes will do. relocations: the addresses in the contents.
    """

    size: int
    contents: bytes | None = None
    relocations: tuple[Relocation, ...] = ()


@dataclass(frozen=True)
class PackedLaunch:
    """One launch. program: index of its PTX. params: as recorded. smem: dynamic shared memory of a
    CTA in bytes.
    """

    program: int
    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int]
    smem: int
    params: bytes
    relocations: tuple[Relocation, ...]

    @property
    def shape(self) -> Shape:
        return Shape(self.grid, self.block, self.cluster, self.smem)

    def relocated(self, addresses: list[int]) -> bytes:
        """The parameters for tensors, and after them buffers, at these addresses."""
        return relocated(self.params, self.relocations, addresses)


@dataclass(frozen=True)
class Pack:
    """The launches of one call. programs: PTX. case: what the tensors can be made from again, or
    None. tensors: their bytes, or None if there is a case.

    digests, sizes: SHA-256 and bytes of every tensor before the launches. read_bytes: the bytes
    that one call must read at least. expected: SHA-256 of every tensor after the launches, or None.
    buffers: other memory of the launches; a relocation numbers buffers after the tensors.
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
    buffers: tuple[Buffer, ...] = ()

    def buffer_contents(self, addresses: list[int]) -> list[bytes | None]:
        """The contents of each buffer, for tensors, and after them buffers, at these addresses."""
        return [
            None if b.contents is None else relocated(b.contents, b.relocations, addresses)
            for b in self.buffers
        ]

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
            "buffers": [
                {"size": b.size, "relocations": [asdict(r) for r in b.relocations]}
                for b in self.buffers
            ],
        }
        arrays: dict[str, Any] = {
            "manifest": np.frombuffer(json.dumps(manifest).encode(), np.uint8)
        }
        for i, data in enumerate(self.tensors or ()):
            arrays[f"tensor{i}"] = np.frombuffer(data, np.uint8)
        for i, buffer in enumerate(self.buffers):
            if buffer.contents is not None:
                arrays[f"buffer{i}"] = np.frombuffer(buffer.contents, np.uint8)
        np.savez_compressed(path, **arrays)


def load(path: Path) -> Pack:
    """Read a pack. Raises HopperError."""
    try:
        arrays = np.load(path)
        manifest = json.loads(arrays["manifest"].tobytes())
        if manifest["format"] not in (2, FORMAT):
            raise ValueError(f"format {manifest['format']}, this version reads 2 and {FORMAT}")
        count = sum(name.startswith("tensor") for name in arrays.files)
        tensors = tuple(arrays[f"tensor{i}"].tobytes() for i in range(count)) or None
        buffers = tuple(
            Buffer(
                item["size"],
                arrays[f"buffer{i}"].tobytes() if f"buffer{i}" in arrays.files else None,
                tuple(Relocation(**r) for r in item["relocations"]),
            )
            for i, item in enumerate(manifest.get("buffers", ()))
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
            buffers,
        )
    except (OSError, ValueError, KeyError) as error:
        raise HopperError("missing", f"{path} is not a pack: {error}") from None


def relocated(data: bytes, relocations: tuple[Relocation, ...], addresses: list[int]) -> bytes:
    """A copy of `data` with its relocated words set for tensors that lie at `addresses`."""
    moved = bytearray(data)
    for r in relocations:
        struct.pack_into("<Q", moved, r.at, addresses[r.tensor] + r.offset)
    return bytes(moved)


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
    """Records the launches of a program's host code; with `emulate` the emulator also runs them.
    memory_seen: (address, bytes) of memory that a launch's parameters could point to, and its
    contents at that time if it is small.
    """

    def __init__(self, emulate: bool = False):
        super().__init__()
        self.emulate = emulate
        self.recorded: list[tuple] = []
        self.memory_seen: dict[tuple[int, int], bytes | None] = {}

    def execute(self, program: Program, kernel: Kernel, shape: Shape, params: bytes) -> Launch:
        self.recorded.append((program, kernel, *shape.sizes, params))
        self.tensors.refresh(self.memory)
        self.variables(program)
        for region in self.memory.allocations():
            key = (region.base, region.size)
            if key not in self.memory_seen:
                small = region.size <= SMALL
                self.memory_seen[key] = region.u8.tobytes() if small else None
        if self.emulate:
            return super().execute(program, kernel, shape, params)
        return Launch(kernel.name, *shape.sizes)


def record(
    recorder: Recorder,
    kernel: Callable[[Any], Any],
    data: Any,
    case: dict[str, Any] | None = None,
    read_bytes: int | None = None,
) -> Pack:
    """Call `kernel(data)` once and pack its launches. Call b200.install(gpu=recorder) before.

    case: what `data` can be made from again; without a case the tensors are packed. read_bytes: the
    bytes that the call must read at least; None for those of all tensors.
    """
    tensors = storages(data)
    before = tuple(digest(t) for t in tensors)
    contents = None if case else tuple(t.numpy().tobytes() for t in tensors)
    recorder.recorded.clear()
    recorder.memory_seen.clear()
    kernel(data)
    ranges = [(t.data_ptr(), t.numel()) for t in tensors]
    programs, launches, buffers = _packed(recorder, recorder.recorded, ranges)
    expected = tuple(digest(t) for t in tensors) if recorder.emulate else None
    sizes = tuple(t.numel() for t in tensors)
    read = sum(sizes) if read_bytes is None else read_bytes
    return Pack(
        programs, launches, before, sizes, read, case, contents, expected, versions(), buffers
    )


def packed_launches(recorder: Recorder, chosen: list[int] | None = None) -> Pack:
    """The recorded launches as one call, to be timed. chosen: numbers of the launches, None for
    all. Of memory with more than SMALL bytes only the size is packed. Raises HopperError.
    """
    count = len(recorder.recorded)
    chosen = list(range(count)) if chosen is None else chosen
    if not chosen or not all(0 <= i < count for i in chosen):
        asked = f", {', '.join(map(str, chosen))} were asked for" if chosen else ""
        raise HopperError("missing", f"the program made {count} launches, from 0{asked}")
    programs, launches, buffers = _packed(recorder, [recorder.recorded[i] for i in chosen], [])
    read = sum(b.size for b in buffers)
    return Pack(programs, launches, (), (), read, made_with=versions(), buffers=buffers)


def _packed(
    recorder: Recorder, recorded: list[tuple], ranges: list[tuple[int, int]]
) -> tuple[tuple[str, ...], tuple[PackedLaunch, ...], tuple[Buffer, ...]]:
    """Programs, launches, and the memory that they are handed besides `ranges` (address, bytes)."""
    known = list(ranges)
    others = [r for r in recorder.memory_seen if not _overlaps(r, ranges)]
    programs: list[str] = []
    launches, used = [], []
    for program, kernel, grid, block, cluster, smem, params in recorded:
        if program.text not in programs:
            programs.append(program.text)
        found = relocations(params, kernel.params, known + others)
        used.append((programs.index(program.text), kernel, grid, block, cluster, smem, params))
        _take(known, others, {r.tensor for r in found})
    at, buffers = len(ranges), []
    while at < len(known):  # grows: contents name more memory
        contents = recorder.memory_seen[known[at]] or b""
        found = words(contents, 0, len(contents), known + others)
        _take(known, others, {r.tensor for r in found})
        at += 1
    for key in known[len(ranges) :]:
        contents = recorder.memory_seen[key]
        found = () if contents is None else tuple(words(contents, 0, len(contents), known))
        buffers.append(Buffer(key[1], contents, found))
    for number, kernel, grid, block, cluster, smem, params in used:
        found = relocations(params, kernel.params, known)
        shapes = (tuple(grid), tuple(block), tuple(cluster))
        launches.append(PackedLaunch(number, kernel.name, *shapes, smem, params, found))
    return tuple(programs), tuple(launches), tuple(buffers)


def _overlaps(one: tuple[int, int], ranges: list[tuple[int, int]]) -> bool:
    return any(a < one[0] + one[1] and one[0] < a + n for a, n in ranges)


def _take(known: list, others: list, numbers: set[int]) -> None:
    """Move what is named of known + others to `known`."""
    for i in sorted(n - len(known) for n in numbers if n >= len(known)):
        known.append(others[i])
    others[:] = [r for r in others if r not in known]


def relocations(
    params: bytes, places: list, ranges: list[tuple[int, int]]
) -> tuple[Relocation, ...]:
    """The 8-byte words of parameters that hold an address inside one of `ranges` (address, bytes).

    In a tensormap only the first word counts: its second half is whatever was in memory.
    """
    maps = maps_in(params, [(p.offset, p.size, p.align) for p in places])
    found = []
    for place in places:
        for one in words(params, place.offset, place.offset + place.size, ranges):
            if not any(at < one.at < at + MAP_BYTES for at in maps):
                found.append(one)
    return tuple(found)


def words(data: bytes, start: int, end: int, ranges: list[tuple[int, int]]) -> Iterator[Relocation]:
    """The aligned 8-byte words of data that hold an address inside one of `ranges`."""
    for at in range(-(-start // 8) * 8, end - 7, 8):
        (value,) = struct.unpack_from("<Q", data, at)
        for i, (first, size) in enumerate(ranges):
            if first <= value < first + size:
                yield Relocation(at, i, value - first)
                break


def versions() -> dict[str, str]:
    import importlib.metadata

    found = {}
    for name in ("torch", "nvidia-cutlass-dsl", "numpy"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found
