"""Packs, and launches through a driver that only notes what it is given."""

from __future__ import annotations

import ctypes
import struct
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode

from b200.chip.copies.tensormap import ELEMENT_TYPES, TensorMap
from b200.chip.launch import Shape
from b200.program.parse import parse
from hopper import HopperError, pack, run, run_pack, toolchain
from tests.b200.ptx_support import kernel

driver = pytest.importorskip("cuda.bindings.driver")
FOUR_BIT = next(i for i, e in enumerate(ELEMENT_TYPES) if e.name == "b4x16")
PARAMETERS = [".u64 out", ".u32 n", ".align 64 .b8 map[128]", ".u64 source"]
TEXT = kernel("tcgen05.wait::ld.sync.aligned;", PARAMETERS)


def recorded(tensors: list[torch.Tensor]) -> pack.Pack:
    """A pack of one launch with the addresses of two tensors, one of them in a tensormap."""
    out, source = tensors
    t = TensorMap(source.data_ptr() + 64, FOUR_BIT, (128, 8), (64,), (128, 8), (1, 1), swizzle=2)
    params = bytearray(struct.pack("<QI", out.data_ptr() + 16, 7).ljust(64, b"\0") + t.encode())
    params[128:] = bytes(64)
    struct.pack_into("<Q", params, 64 + 80, out.data_ptr())  # leftovers after the tensormap
    params += struct.pack("<Q", source.data_ptr())
    ranges = [(x.data_ptr(), x.numel()) for x in tensors]
    found = pack.relocations(bytes(params), parse(TEXT).kernels["k"].params, ranges)
    shape = ((4, 2, 1), (32, 1, 1), (2, 1, 1), 1024)
    launch = pack.PackedLaunch(0, "k", *shape, bytes(params), found)
    digests = tuple(pack.digest(x) for x in tensors)
    contents = tuple(x.numpy().tobytes() for x in tensors)
    return pack.Pack(
        (TEXT,),
        (launch,),
        digests,
        tuple(x.numel() for x in tensors),
        80,
        None,
        contents,
        digests,
        {"torch": "x"},
    )


@pytest.fixture
def tensors() -> list[torch.Tensor]:
    return [torch.arange(n, dtype=torch.int64).to(torch.uint8) for n in (256, 1024)]


def test_addresses_are_found_and_replaced(tensors):
    (launch,) = recorded(tensors).launches
    assert launch.relocations == (
        pack.Relocation(0, 0, 16),
        pack.Relocation(64, 1, 64),
        pack.Relocation(192, 1, 0),
    )
    moved = launch.relocated([0x10000, 0x20000])
    assert struct.unpack_from("<QI", moved) == (0x10010, 7)
    assert struct.unpack_from("<Q", moved, 64)[0] == 0x20040
    assert struct.unpack_from("<Q", moved, 192)[0] == 0x20000


def test_a_pack_reads_back(tensors, tmp_path):
    original = recorded(tensors)
    original.save(tmp_path / "launch.npz")
    assert pack.load(tmp_path / "launch.npz") == original
    case = replace(original, tensors=None, expected=None, case={"problem": "p", "m": (1, 2)})
    case.save(tmp_path / "case.npz")
    assert pack.load(tmp_path / "case.npz") == case


def test_what_is_not_a_pack(tmp_path):
    np.savez(tmp_path / "other.npz", x=np.zeros(1))
    (tmp_path / "text.npz").write_text("no")
    for name in ("other.npz", "text.npz", "missing.npz"):
        with pytest.raises(HopperError, match=f"{name} is not a pack"):
            pack.load(tmp_path / name)


def test_storages_are_in_order_and_whole():
    a, b = torch.zeros(4, 6, dtype=torch.float16).permute(1, 0), torch.ones(3)
    assert [s.numel() for s in pack.storages(([a, (b,)], "text", 3))] == [48, 12]


class OnCpu(TorchFunctionMode):
    """Tensors that are asked for on the GPU are made on the CPU."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if kwargs.get("device") == "cuda":
            kwargs["device"] = "cpu"
        return func(*args, **kwargs)


class Queue:
    cuda_stream = 0


class Driver:
    """Notes launches: (configuration, parameters)."""

    def __init__(self, monkeypatch, write=None):
        self.launches, self.globals, self.limits, self.write = [], {}, [], write
        ok = driver.CUresult.CUDA_SUCCESS
        stand_in = {
            "cuModuleLoadData": lambda image: (ok, 1),
            "cuModuleGetFunction": lambda module, name: (ok, name),
            "cuFuncSetAttribute": lambda f, a, v: (self.limits.append((a.name, v)), (ok,))[1],
            "cuModuleGetGlobal": lambda module, name: (ok, name, 8),
            "cuMemcpyHtoD": lambda to, source, n: (self.note_global(to, source), (ok,))[1],
            "cuLaunchKernelEx": lambda config, f, params, extra: self.launch(config, params),
            "cuCtxSynchronize": lambda: (ok,),
        }
        for name, function in stand_in.items():
            monkeypatch.setattr(driver, name, function)
        monkeypatch.setattr(toolchain, "device_functions", lambda: DEVICE)
        monkeypatch.setattr(toolchain, "assemble", str.encode)
        monkeypatch.setattr(torch.Tensor, "cuda", torch.Tensor.clone)
        monkeypatch.setattr(torch.cuda, "current_stream", Queue)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (1 << 30, 1 << 30))

    def note_global(self, name, source):
        self.globals[name] = ctypes.c_uint64.from_address(source).value

    def launch(self, config, pointers):
        places = [(0, 8), (8, 4), (64, 128), (192, 8)]
        starts = (ctypes.c_void_p * len(places)).from_address(pointers)
        values = [ctypes.string_at(s, size) for s, (_, size) in zip(starts, places)]
        self.launches.append((config, values))
        if self.write:
            self.write(int.from_bytes(values[0], "little"))
        return (driver.CUresult.CUDA_SUCCESS,)


DEVICE = ".version 9.0\n.target sm_90a\n.address_size 64\n"


def test_a_launch(tensors, monkeypatch):
    noted = Driver(monkeypatch)
    (launch,) = recorded(tensors).launches
    with OnCpu():
        text = TEXT.replace("tcgen05.wait::ld", "setmaxnreg.dec").replace(
            "aligned;", "aligned.u32 64;\ntcgen05.dealloc.cta_group::1.sync.aligned.b32 %r1, 32;"
        )
        kernel_ = run.HopperKernel(text, "k")
        shape = Shape(launch.grid, launch.block, launch.cluster, launch.smem)
        kernel_.launch(shape, launch.relocated([0x10000, 0x20000]))
    ((config, (out, n, map_, source)),) = noted.launches
    assert (config.gridDimX, config.gridDimY, config.blockDimX) == (4, 2, 32)
    assert config.sharedMemBytes == 1024 and config.numAttrs == 1
    cluster = config.attrs[0].value.clusterDim
    assert (cluster.x, cluster.y, cluster.z) == (2, 1, 1)
    assert [int.from_bytes(v, "little") for v in (out, n, source)] == [0x10010, 7, 0x20000]
    words = np.frombuffer(map_, np.uint64)
    assert words[0] == 0x20040 and words[4] & 0xFFFFFFFF == 63  # 64 bytes
    assert set(noted.globals) == {b"hopper_slots", b"hopper_bitmaps"} and all(
        noted.globals.values()
    )


def test_too_much_is_asked_for(tensors, monkeypatch):
    Driver(monkeypatch)
    (launch,) = recorded(tensors).launches
    shape = Shape((1, 1, 1), (32, 1, 1), (1, 1, 1), 232_449)
    with OnCpu():
        text = TEXT.replace(
            "wait::ld.sync.aligned", "dealloc.cta_group::1.sync.aligned.b32 %r1, 32"
        )
        kernel_ = run.HopperKernel(text, "k")
        with pytest.raises(HopperError, match="232449 bytes of shared memory"):
            kernel_.launch(shape, launch.params)
        with pytest.raises(HopperError, match="for tensor memory"):
            kernel_.launch(replace(shape, grid=(1 << 16, 1, 1), smem=0), launch.params)


def test_running_a_pack_holds_it_against_what_was_recorded(tensors, monkeypatch):
    """A kernel that writes 5 at its first parameter; the emulator's result is that, or something else."""

    def write(address):
        ctypes.c_uint8.from_address(address).value = 5

    after = [t.clone() for t in tensors]
    after[0][16] = 5
    Driver(monkeypatch, write)
    original = recorded(tensors)
    expected = tuple(pack.digest(t) for t in after)
    with OnCpu():
        right = run_pack.run(replace(original, expected=expected), "right", 3)
        wrong = run_pack.run(original, "wrong", 1)
    assert (right.status, right.same_inputs, right.same_repeats, right.as_expected) == (
        "pass",
        True,
        True,
        True,
    )
    assert list(right.outputs) == [0] and len(right.seconds) == 3
    assert (wrong.status, wrong.as_expected, wrong.same_repeats) == ("fail", False, None)


def test_without_a_gpu_it_says_so(run_eval, tmp_path):
    done = run_eval("test", "gemm", "--device", "hopper", env={"CUDA_VISIBLE_DEVICES": ""})
    assert done.status == 2
    assert (
        done.stderr.strip()
        == "eval.py: --device hopper: no Hopper GPU: torch finds no CUDA GPU here"
    )


def test_another_gpu_is_not_taken(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA A100")
    with pytest.raises(HopperError, match="A100 has compute capability 8.0, 9.0 is needed"):
        run.require_gpu()


def test_missing_compilers_are_named(monkeypatch):
    def missing(text):
        raise HopperError("missing", "not here")

    toolchain.device_functions.cache_clear()
    monkeypatch.setattr(toolchain, "with_nvrtc", missing)
    monkeypatch.setattr(toolchain, "with_nvcc", missing)
    with pytest.raises(
        HopperError, match="no compiler for the device functions: not here; not here"
    ):
        toolchain.device_functions()
