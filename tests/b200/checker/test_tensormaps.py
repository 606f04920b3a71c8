"""Tensormaps that the host writes between launches."""

import ctypes

import torch

import b200
from b200.chip.gpu import Gpu
from b200.program.parse import parse
from tests.planted_bugs import tensormaps
from tests.planted_bugs.grid import SOURCE, tensormap


def _checked() -> Gpu:
    gpu = Gpu()
    gpu.machine = b200.machine(gpu.memory)
    return gpu


def _launches(contents: list[bytes], bug: bool) -> list[list]:
    """The findings of launches between which the host copies a tensormap into the same place."""
    gpu, source = _checked(), tensormaps.of_the_host(bug)
    program = parse(source.text("k"))
    raw = torch.zeros(256, dtype=torch.uint8)
    at = -raw.data_ptr() % 128
    slot, out = raw[at : at + 128], torch.zeros(64, dtype=torch.int32)
    found = []
    for content in contents:
        slot.copy_(torch.frombuffer(bytearray(content), dtype=torch.uint8))
        args = [content, slot, out]
        launch = gpu.launch(program, "k", (1, 1, 1), (64, 1, 1), (1, 1, 1), source.smem, args)
        found.append(launch.findings)
        assert torch.equal(out, SOURCE[6:8, 32:64].reshape(-1))
    return found


def test_bytes_that_have_changed_since_their_last_use_are_an_error():
    same = tensormap()
    other = tensormap(box=(32, 2), dims=(64, 15))
    first, again, changed = _launches([same, same, other], bug=True)
    assert [f.severity for f in (*first, *again)] == ["portability"] * 2
    assert [f.severity for f in changed] == ["error"]
    assert "its bytes have changed since it was used last" in changed[0].message


def test_a_fence_in_every_launch_makes_them_right():
    assert _launches([tensormap(), tensormap(dims=(64, 15))], bug=False) == [[], []]


def test_a_tensormap_in_constant_memory_needs_no_fence():
    gpu, source = _checked(), tensormaps.of_the_host(True)
    text = source.text("k").replace(
        ".extern .shared", ".const .align 128 .b8 kept[128];\n.extern .shared", 1
    )
    text = text.replace(
        "ld.param.u64 %rd1, [slot];", "mov.u64 %rd1, kept;\ncvta.const.u64 %rd1, %rd1;"
    )
    program = gpu.load(text)
    ctypes.memmove(gpu.variables(program)["kept"], tensormap(), 128)
    out = torch.zeros(64, dtype=torch.int32)
    args = [tensormap(), 0, out]
    launch = gpu.launch(program, "k", (1, 1, 1), (64, 1, 1), (1, 1, 1), source.smem, args)
    assert launch.findings == []
    assert torch.equal(out, SOURCE[6:8, 32:64].reshape(-1))
