"""Packs every launch of a program, with its tensors and the results of the emulator.

    python -m hopper run --pack OUT.npz SCRIPT [its arguments]

Launches are numbered: OUT-0.npz, OUT-1.npz, ...
"""

from __future__ import annotations

import gc
from pathlib import Path

from b200.chip.gpu import Gpu
from b200.chip.launch import Launch, Shape
from b200.program.module import Kernel, Program
from hopper import pack
from hopper.pack import digest, relocations, storages

LARGEST = 1 << 28  # bytes of a storage that is packed


class ScriptRecorder(Gpu):
    """Packs each launch with the live tensors its parameters point to, and emulates it."""

    def __init__(self, out: Path):
        super().__init__()
        self.out, self.count = out, 0

    def execute(self, program: Program, kernel: Kernel, shape: Shape, params: bytes) -> Launch:
        tensors = live_storages()
        ranges = [(t.data_ptr(), t.numel()) for t in tensors]
        found = relocations(params, kernel.params, ranges)
        used = sorted({r.tensor for r in found})
        tensors = [tensors[i] for i in used]
        found = relocations(params, kernel.params, [ranges[i] for i in used])
        contents = tuple(t.numpy().tobytes() for t in tensors)
        before = tuple(digest(t) for t in tensors)
        report = super().execute(program, kernel, shape, params)
        launch = pack.PackedLaunch(0, kernel.name, *shape.sizes, params, found)
        after = tuple(digest(t) for t in tensors)
        nbytes = tuple(t.numel() for t in tensors)
        versions = pack.versions()
        packed = pack.Pack(
            (program.text,), (launch,), before, nbytes, sum(nbytes), None, contents, after, versions
        )
        path = self.out.with_name(f"{self.out.stem}-{self.count}.npz")
        packed.save(path)
        self.count += 1
        print(f"packed {path}: {len(found)} addresses in {len(tensors)} tensors")
        return report


def live_storages() -> list:
    """The storages of all live CPU tensors, each once, as uint8 tensors."""
    import torch

    found = {}
    for thing in gc.get_objects():
        if (
            issubclass(type(thing), torch.Tensor)
            and thing.device.type == "cpu"
            and thing.layout == torch.strided
        ):
            if 0 < thing.untyped_storage().nbytes() <= LARGEST:
                found.setdefault(thing.untyped_storage().data_ptr(), thing)
    return [storage for thing in found.values() for storage in storages(thing)]
