"""Installs without one name of another package at a time, each in a fork: what the feature that
needs it says; and without all that a feature needs: whether raw PTX runs. Prints a JSON object an
install; run by test_takeover.py.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import os
import runpy
import sys
import traceback
from collections.abc import Callable

import numpy as np
import torch

import b200
from b200.chip import tensors
from b200.chip.gpu import Gpu
from b200.host import takeover
from b200.host.features import FEATURES
from b200.isa import grammar
from tests import ROOT
from tests.fork_server import import_all, of_features

PTX = """.version 8.8
.target sm_100a
.address_size 64
.visible .entry k(.param .u64 out) {
    .reg .b64 %rd<3>; .reg .b32 %r<2>;
    ld.param.u64 %rd1, [out];
    mov.u32 %r1, %tid.x;
    mad.wide.u32 %rd2, %r1, 4, %rd1;
    st.global.u32 [%rd2], %r1;
    ret;
}"""


def _function():
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return 2 * x

        @staticmethod
        def backward(ctx, *gradients):
            return 2 * gradients[0]

    Twice.apply(torch.ones(2, device="cuda", requires_grad=True)).sum().backward()


def _operator():
    library = torch.library.Library("b200_without_names", "DEF")
    library.define("f(Tensor x) -> Tensor")
    library.impl("f", lambda x: 2 * x, "CUDA")


def _scaled_mm():
    a = torch.zeros(128, 32, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    scales = torch.zeros(512, dtype=torch.float8_e4m3fn)
    torch._scaled_mm(a, a.t(), scales, scales, out_dtype=torch.float16)


def _graph():
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        torch.zeros(4, device="cuda")


def _dsl():
    runpy.run_path(str(ROOT / ".ci" / "doubled.py"))  # a kernel that asserts its result


def _from_dlpack():
    from cutlass.cute.runtime import from_dlpack

    from_dlpack(torch.ones(4))


def _tvm_ffi():
    import cutlass.cute as cute

    @cute.jit
    def nothing(n: int):
        pass

    cute.compile(nothing, 1, options="--enable-tvm-ffi")


def _hardware():
    from cutlass.utils import HardwareInfo

    HardwareInfo().get_l2_cache_size_in_bytes()


def _driver():
    from cuda.bindings import driver

    driver.cuInit(0)


def _nvrtc():
    from cuda.bindings import nvrtc

    nvrtc.nvrtcVersion()


USES: dict[str, Callable[[], object]] = {
    "torch on cuda": lambda: torch.zeros(4, device="cuda"),
    "autograd.Function on cuda": _function,
    "hooks of tensors on cuda": lambda: torch.ones(
        2, device="cuda", requires_grad=True
    ).register_hook(print),
    "torch.library kernels on cuda": _operator,
    "torch.profiler on cuda": lambda: torch.profiler.profile(),
    "NVFP4 in torch._scaled_mm": _scaled_mm,
    "CUDA graphs of torch": _graph,
    "CuTe DSL": _dsl,
    "the DSL's alignment of CPU tensors": _from_dlpack,
    "CPU tensors as global memory of the DSL": _from_dlpack,
    "--enable-tvm-ffi": _tvm_ffi,
    "HardwareInfo": _hardware,
    "cuda-python": _driver,
    "NVRTC": _nvrtc,
}


def remove(name: str) -> None:
    """Take "module:Name.attribute" away; of a class in C, let it not be found."""
    module, _, path = name.partition(":")
    *parts, last = path.split(".")
    try:
        delattr(functools.reduce(getattr, parts, importlib.import_module(module)), last)
    except (AttributeError, TypeError):  # a base class has it; a class in C
        known = takeover.is_there
        takeover.is_there = lambda asked: asked != name and known(asked)


def raw_ptx() -> None:
    """A kernel in PTX runs right, on numpy's memory."""
    gpu = b200.install()
    assert type(gpu) is Gpu
    out = np.zeros(32, np.uint32)
    gpu.memory.also_search(
        lambda memory, _: memory.register(out.ctypes.data, out.nbytes, "an array of numpy")
    )
    gpu.launch(PTX, "k", grid=(1, 1, 1), block=(32, 1, 1), args=[out.ctypes.data])
    assert (out == np.arange(32)).all(), out


def tried(names: list[str], use: Callable[[], object]) -> dict[str, object]:
    """What comes of an install without these names, and of a use behind it."""
    for name in names:
        remove(name)
    record: dict[str, object] = {"names": names, "gone": not any(map(takeover.is_there, names))}
    try:
        b200.install()
        use()
        record["said"] = ""
    except BaseException as error:  # noqa: BLE001  told to the test
        record["said"], record["kind"] = str(error), type(error).__name__
        record["traceback"] = traceback.format_exc()
    return record


def main() -> None:
    modules = ("cutlass.cute.runtime", "cutlass.utils", "torch.profiler", "torch.library")
    import_all((*modules, "b200.checker.checked", "b200.chip.gpu", *sorted(of_features())))
    grammar.table()
    tensors.set_apart()  # or each fork copies what it collects
    for feature in FEATURES:
        use = USES.get(feature.what, lambda: None)
        alike = [
            [name for name in each.split("|") if takeover.is_there(name)] for each in feature.names
        ]
        print_tried(feature.what, "use", [], use)
        for names in alike:
            print_tried(feature.what, "use", names, use)
        print_tried(feature.what, "raw_ptx", [name for names in alike for name in names], raw_ptx)


def print_tried(feature: str, way: str, names: list[str], use: Callable[[], object]) -> None:
    """The record of an install in a fork."""
    sys.stdout.flush()
    pid = os.fork()
    if not pid:
        with contextlib.redirect_stdout(sys.stderr):
            record = tried(names, use)
        print(json.dumps({"feature": feature, "way": way, **record}), flush=True)
        os._exit(0)
    os.waitpid(pid, 0)


if __name__ == "__main__":
    main()
