"""A wrong output is explained by another layout in memory: of c, of an input, of the scale atom."""

from __future__ import annotations

import pytest
import torch

from harness.diagnosis.diff import explain
from reference import generate_input, ref_kernel
from tests.harness.diff_support import (
    GEMM,
    explained,
    gemm,
    small,
    with_bytes,
)
from utils import clone_data


def in_memory(output, place):
    """The values of `output` stored at place(m, n) of a row-major c that held 3 before."""
    rows, columns, _ = output.shape
    m, n = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    at = place(m, n).reshape(-1)
    memory = torch.full((rows * columns,), 3.0).half()
    inside = at < memory.numel()
    memory[at[inside]] = output.reshape(-1)[inside]
    return memory.reshape(rows, columns, 1)


def test_columns_first():
    data, output = small(128, 256)
    data[6].fill_(3)
    wrong = in_memory(output, lambda m, n: n * 128 + m)
    assert "c is stored column after column (leading dimension 128)" in explained(data, wrong)


@pytest.mark.parametrize("pitch", [256, 96])
def test_another_leading_dimension(pitch):
    data, output = small(96, 192)
    data[6].fill_(3)
    wrong = in_memory(output, lambda m, n: m * pitch + n)
    text = explained(data, wrong)
    assert f"c is stored with a leading dimension of {pitch}, not 192" in text


def test_rows_of_an_input_as_far_apart_as_elements_are():
    data = gemm()

    def read(raw):  # a row is K bytes after the one before, not K / 2
        flat = raw.permute(2, 0, 1).reshape(-1)
        l, m, k = torch.meshgrid(*(torch.arange(s) for s in (2, 128, 256)), indexing="ij")
        at = (l * 128 * 256 + m * 512 + k).clamp(max=flat.numel() - 1)
        return flat[at].permute(1, 2, 0)

    text = explained(data, with_bytes(data, 0, read))
    assert "rows of a are read 512 bytes apart, not 256 (K / 2)" in text


@pytest.mark.parametrize("inputs", ["official", "quantized"])
@pytest.mark.parametrize(
    "change, words",
    [
        # [l, row atom, k atom, 32, 4, 4]: the bytes of an atom, taken for other rows and K blocks.
        (lambda x: x.reshape(-1, 128, 4).unflatten(1, (4, 32)), "[row][K block]"),
        (lambda x: x.reshape(-1, 4, 4, 32).permute(0, 2, 3, 1), "[K block][row]"),
        (lambda x: x.reshape(-1, 4, 32, 4).permute(0, 3, 2, 1), "[K block][row % 32][row / 32]"),
    ],
)
def test_other_orders_of_the_scale_atom(change, words, inputs):
    """change: atoms of 512 bytes -> scales as [atom][row / 32][row % 32][K block]."""
    data = generate_input("nvfp4_gemm", **GEMM, inputs=inputs)
    rows, columns, batches = data[3].shape
    memory = data[5].view(torch.uint8).permute(5, 2, 4, 0, 1, 3).contiguous()
    read = change(memory).reshape(batches, rows // 128, columns // 4, 4, 32, 4)
    other = list(clone_data(data))
    scales = read.permute(1, 3, 4, 2, 5, 0).reshape(rows, columns, batches)
    other[3].view(torch.uint8).copy_(scales)
    right, report = explain(data, ref_kernel(tuple(other)), inputs=inputs)
    assert not right
    assert f"scale factors of b are read as if an atom's bytes lay as {words};" in report


def test_permuted_scales_read_as_if_they_were_not():
    data = gemm()
    other = list(clone_data(data))
    memory = data[4].view(torch.uint8).permute(5, 2, 4, 0, 1, 3).reshape(2, 128, 32)
    other[2].view(torch.uint8).copy_(memory.permute(1, 2, 0))
    text = explained(data, ref_kernel(tuple(other)))
    assert "scale factors of a are read out of the permuted tensor as if it were not" in text
