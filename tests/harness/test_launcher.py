"""The probe that takes a kernel's place (harness/qualify/launcher.py), with the emulator as its GPU."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess

import numpy as np
import pytest
import torch

from b200.chip.copies.tensormap import TensorMap
from b200.chip.gpu import Gpu
from b200.program.parse import parse
from harness.qualify.launcher import misplaced
from harness.qualify.probe import BARRIER, VARIABLE, Probe, loadable, maps_of

HEAD = ".version 8.8\n.target sm_100a\n.address_size 64\n"
KERNEL = parse(
    f"{HEAD}.visible .entry k(.param .align 4 .b8 flags[12], .param .u64 c,"
    " .param .align 64 .b8 maps[256], .param .u32 m, .param .align 1 .b8 odd[3]) { ret; }"
).kernels["k"]
U16, B4X16 = 1, 11


def params(*maps: TensorMap) -> bytes:
    """Parameters of KERNEL at the offsets of the C ABI."""
    first = bytes(range(12)) + bytes(4) + struct.pack("<Q", 0x1234_5678_9ABC)
    packed = first.ljust(64, b"\0") + b"".join(m.encode() for m in maps)
    return packed + struct.pack("<I", 77) + b"xyz"


def run(probe: Probe, given: bytes, **shape) -> tuple[dict[str, int], bytes, list[bytes]]:
    gpu = Gpu()
    program = gpu.load(probe.text)
    gpu.launch(program, None, smem=BARRIER + 64, args=given, **shape)
    at = gpu.variables(program)[VARIABLE]
    region = gpu.memory.region(at, probe.size)
    return probe.read(bytes(region.mem[at - region.base : at - region.base + probe.size]))


def tensor_maps() -> tuple[torch.Tensor, torch.Tensor, list[TensorMap]]:
    """Scales as 16-bit numbers, codes of 4 bits, and their tensormaps as the kernel has them."""
    scales = torch.arange(4 * 4 * 256, dtype=torch.int16)
    codes = torch.from_numpy(np.arange(128 * 256, dtype=np.uint8) * 7)
    scale_map = TensorMap(scales.data_ptr(), U16, (256, 4, 4), (512, 2048), (256, 4, 1))
    strides = (256, 256 * 128)
    code_map = TensorMap(codes.data_ptr(), B4X16, (512, 128, 1), strides, (256, 64, 1), swizzle=3)
    return scales, codes, [scale_map, code_map]


def test_a_probe_tells_its_launch_and_every_byte_of_its_parameters():
    _, _, maps = tensor_maps()
    given = params(*maps)
    assert len(given) == KERNEL.param_bytes
    counters, got, boxes = run(
        Probe(KERNEL), given, grid=(6, 1, 1), block=(96, 1, 1), cluster=(2, 1, 1)
    )
    assert counters == {
        "CTAs": 6,
        "CTAs a cluster": 2,
        "threads a CTA": 96,
        "bytes of dynamic shared memory": BARRIER + 64,
    }
    # What lies between parameters is nobody's.
    for p in KERNEL.params:
        assert got[p.offset : p.offset + p.size] == given[p.offset : p.offset + p.size], p.name
    assert boxes == []


@pytest.mark.parametrize("capability, expected", [(9, 1), (10, 2)])
def test_a_probe_loads_through_the_tensormaps_that_its_gpu_takes(capability, expected):
    scales, codes, maps = tensor_maps()
    given = params(*maps)
    probe = Probe(KERNEL, loadable(maps_of(KERNEL, given), capability))
    _, _, boxes = run(probe, given, grid=(1, 1, 1), block=(32, 1, 1))
    firsts = [scales.numpy().tobytes()[:8], codes.numpy().tobytes()[:8]]
    assert boxes == firsts[:expected]


def test_a_box_without_room_is_refused():
    found = TensorMap(1 << 20, U16, (256, 256, 1), (512, 1 << 17), (64, 256, 2), swizzle=3)
    with pytest.raises(ValueError, match="expected a box of at most 32768 bytes"):
        _ = Probe(KERNEL, [(64, found)]).text


@pytest.mark.skipif(not shutil.which("ptxas"), reason="needs ptxas of a CUDA toolkit")
def test_ptxas_takes_a_probe_with_the_largest_parameters_of_a_kernel(tmp_path):
    words = 32764 // 4  # PTX ISA, Kernel Function Parameters
    large = parse(f"{HEAD}.visible .entry k(.param .align 4 .b8 all[{4 * words}]) {{ ret; }}")
    file = tmp_path / "probe.ptx"
    file.write_text(Probe(large.kernels["k"]).text)
    # Without optimization: to refuse it takes as much.
    command = ["ptxas", "-O0", "-arch=sm_90", str(file), "-o", str(tmp_path / "probe.cubin")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


class Tensor:
    """What `misplaced` asks of a tensor on the GPU."""

    def __init__(self, address: int, nbytes: int):
        self.address, self.nbytes = address, nbytes

    def data_ptr(self) -> int:
        return self.address

    def numel(self) -> int:
        return self.nbytes

    def element_size(self) -> int:
        return 1


def test_parameters_that_are_not_those_of_the_call_are_found():
    scales, codes, maps = tensor_maps()
    a = Tensor(codes.data_ptr(), codes.numel())
    sfa = Tensor(scales.data_ptr(), 2 * scales.numel())
    c, other = Tensor(0x1234_5678_9ABC, 2), Tensor(0x5000, 2)
    probe, given = Probe(KERNEL), params(*maps)

    def data(a, sfa, c):  # one operand a group, as far as `misplaced` sees
        return ([(a, sfa, c)], [], [], [])

    assert misplaced(probe, given, data(a, sfa, c)) == []
    assert "results of the groups [0]" in misplaced(probe, given, data(a, sfa, other))[0]
    assert "not of the 2 operands" in misplaced(probe, given, data(other, sfa, c))[0]
    short = Tensor(codes.data_ptr(), 100)
    assert "describes 32768 bytes of 100" in misplaced(probe, given, data(short, sfa, c))[0]


# The DSL with the emulator's runtime functions but for the one that the takeover replaces.
TAKEOVER = """
import ctypes
from pathlib import Path
import b200
from b200.host.runtime import Runtime

functions = Runtime.runtime_functions
Runtime.runtime_functions = lambda self: {
    name: f for name, f in functions(self).items() if name != "_cudaLibraryLoadData"
}
gpu = b200.install(check=False)

from harness.evaluator.case import loading
from harness.evaluator.case.gpu_data import on_gpu
from harness.qualify.submission import Submission
from harness.qualify import launcher, probe
from reference import generate_input

runtime = b200._runtime

def load(out, image, *rest):
    runtime.loading = ctypes.string_at(image).decode()
    runtime.library_load_data(out, image)
    return 0

takeover = launcher.Takeover(load)
submission = Submission.of(on_gpu(loading.load_kernel(Path("submission.py").resolve())))
for again in range(2):  # compiled and loaded anew
    submission.forget_choices(compiled=True)
    data = generate_input("nvfp4_group_gemm", m=(40, 56), n=(256, 128), k=(256, 256), g=2, seed=1)
    submission.kernel(data)
    found, library = takeover.loaded[again]
    program = runtime._programs[library]
    at = gpu.variables(program)[probe.VARIABLE]
    region = gpu.memory.region(at, found.size)
    seen = bytes(region.mem[at - region.base : at - region.base + found.size])
    counters, params, _ = found.read(seen)
    # The emulator keeps a module, and so its variable, that is loaded again.
    assert counters["CTAs"] == sum(launch.grid[0] for launch in gpu.launches), counters
    assert launcher.misplaced(found, params, data) == [], launcher.misplaced(found, params, data)
assert len(takeover.loaded) == 2 and takeover.error is None
print("right")
"""


def test_the_takeover_replaces_the_image_and_nothing_else(fork_server):
    done = fork_server.run("-c", TAKEOVER)
    assert done.stdout == "right\n", done.stderr[-2000:]


def test_without_a_gpu_it_says_so(fork_server):
    command = ["-m", "harness.qualify.launcher", "--submission", "submission.py"]
    done = fork_server.run(*command, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "launcher: needs a CUDA GPU, and torch finds none here\n"
