"""Pack every launch of any CuTe DSL program, with its tensors and what the emulator makes of them.

    python -m b200.hopper.record OUT.npz SCRIPT [its arguments]

The script sees a B200 in software (b200.install). Launches are numbered: OUT-0.npz, OUT-1.npz.
"""

from __future__ import annotations

import gc
import runpy
import sys
from pathlib import Path

from b200.chip.gpu import Gpu
from b200.hopper.pack import Launch, Pack, digest, relocations, storages, versions

LARGEST = 1 << 28  # bytes of a storage that is packed


class ScriptRecorder(Gpu):
    """Packs each launch with the live tensors its parameters point to, and emulates it."""

    def __init__(self, out: Path):
        super().__init__()
        self.out, self.count = out, 0

    def launch(self, program, name, grid, block, cluster, dynamic_smem, params):
        tensors = live_storages()
        ranges = [(t.data_ptr(), t.numel()) for t in tensors]
        found = relocations(params, program.kernels[name].params, ranges)
        used = sorted({r.tensor for r in found})
        tensors = [tensors[i] for i in used]
        found = relocations(params, program.kernels[name].params, [ranges[i] for i in used])
        contents = tuple(t.numpy().tobytes() for t in tensors)
        before = tuple(digest(t) for t in tensors)
        report = super().launch(program, name, grid, block, cluster, dynamic_smem, params)
        launch = Launch(
            0, name, tuple(grid), tuple(block), tuple(cluster), dynamic_smem, params, found
        )
        after = tuple(digest(t) for t in tensors)
        sizes = tuple(t.numel() for t in tensors)
        pack = Pack(
            (program.text,), (launch,), before, sizes, sum(sizes), None, contents, after, versions()
        )
        path = self.out.with_name(f"{self.out.stem}-{self.count}.npz")
        pack.save(path)
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


def main(argv: list[str]) -> None:
    import b200

    out, script, *rest = argv
    b200.install(check=False, gpu=ScriptRecorder(Path(out)))
    sys.argv = [script, *rest]
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
