"""Fat binaries as nvcc writes them: several entries, each way of compression, registers."""

from __future__ import annotations

import ctypes
import re

import pytest

from b200.errors import EmulatorError
from b200.host.cuda import fatbin
from tests.b200.host.cuda.support import made_by_nvcc, needs_nvcc

pytestmark = needs_nvcc
SOURCE = """
__global__ void small(float* x) { x[threadIdx.x] *= 2; }
__global__ void large(float* x) {
  float v[24];
  for (int i = 0; i < 24; ++i) v[i] = x[i * 7 + threadIdx.x];
  __syncthreads();
  for (int i = 0; i < 24; ++i) x[i + 24 * threadIdx.x] = v[23 - i] * v[i] + v[(5 * i) % 24];
}
"""


def compiled(*flags: str) -> tuple[ctypes.Array, str]:
    """A fat binary in memory, and what ptxas has said."""
    folder = made_by_nvcc({"x.cu": SOURCE}, "-fatbin", "-Xptxas", "-v", *flags, "x.cu")
    data = (folder / "x.fatbin").read_bytes()
    return ctypes.create_string_buffer(data, len(data)), (folder / "said.txt").read_text()


def image_of(held: ctypes.Array) -> fatbin.Image:
    return fatbin.image_of(ctypes.addressof(held))


def gencode(*pairs: str) -> list[str]:
    return [f"-gencode=arch=compute_{pair.split()[0]},code={pair.split()[1]}" for pair in pairs]


@pytest.mark.parametrize(
    "mode",
    ["none", "size", *(pytest.param(m, marks=pytest.mark.slow) for m in ("speed", "balance"))],
)
def test_the_best_of_several_in_each_compression(mode):
    several = gencode("90 sm_90", "100 compute_100", "120 compute_120")
    both = gencode("100a [compute_100a,sm_100a]")
    held, said = compiled(*several, *both, f"--compress-mode={mode}")
    image = image_of(held)
    (text,) = image.texts
    assert re.search(r"^\.target sm_100a$", text, re.M)
    assert set(re.findall(r"\.entry (\w+)", text)) == {"_Z5largePf", "_Z5smallPf"}
    told = re.findall(r"function '(\w+)' for 'sm_100a'.*?Used (\d+) registers", said, re.S)
    assert image.registers == {name: int(count) for name, count in told}
    assert len(image.registers) == 2


@pytest.mark.parametrize(
    "pairs, target",
    [
        (["80 compute_80", "90 compute_90", "120 compute_120"], "sm_90"),
        (["100 compute_100", "100f compute_100f", "90a compute_90a"], "sm_100f"),
    ],
)
def test_what_the_driver_would_compile(pairs, target):
    held, _ = compiled(*gencode(*pairs))
    (text,) = image_of(held).texts
    assert re.search(rf"^\.target {target}$", text, re.M)


@pytest.mark.parametrize(
    "pair, kind, said",
    [
        ("100a sm_100a", "unsupported", "only machine code for sm_100"),
        ("90a compute_90a", "limit", "no kernel image for this device"),
        ("103a compute_103a", "limit", "the program has PTX for sm_103"),
    ],
)
def test_nothing_for_a_b200(pair, kind, said):
    held, _ = compiled(*gencode(pair))
    with pytest.raises(EmulatorError, match=said) as caught:
        image_of(held)
    assert caught.value.kind == kind
    assert "-gencode arch=compute_100a,code=[compute_100a,sm_100a]" in str(caught.value)
