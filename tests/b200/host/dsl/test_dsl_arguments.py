"""Compiled functions of the CuTe DSL that are called with what they were not compiled for."""

import pytest

pytest.importorskip("cutlass")

import cutlass.cute as cute  # noqa: E402
import torch  # noqa: E402
from cutlass.cute.runtime import from_dlpack  # noqa: E402

import b200  # noqa: E402
from b200.host.dsl.arguments import DynamicShape, compare  # noqa: E402
from b200.host.features import DSL  # noqa: E402
from tests.versions import needs_feature  # noqa: E402

compared = needs_feature(next(f for f in DSL if f.patch == "dsl.arguments:patch"))


@cute.kernel
def _add_one(x: cute.Tensor, y: cute.Tensor):
    t, _, _ = cute.arch.thread_idx()
    if t < cute.size(x):
        y[t] = x[t] + 1.0


@cute.jit
def _run(x: cute.Tensor, y: cute.Tensor):
    _add_one(x, y).launch(grid=(1, 1, 1), block=(128, 1, 1))


def _fixed(tensor: torch.Tensor):
    return from_dlpack(tensor, assumed_align=16)


def _marked(tensor: torch.Tensor):
    return _fixed(tensor).mark_layout_dynamic().mark_compact_shape_dynamic(mode=0)


def _findings(compiled_for, called_with, size: int) -> tuple[list, torch.Tensor]:
    """What is said of a call with `size` elements, compiled with 64, and the call's result."""
    gpu = b200.install(check=True)
    function = cute.compile(_run, compiled_for(torch.zeros(64)), compiled_for(torch.zeros(64)))
    x, y = torch.arange(float(size)), torch.zeros(size)
    function(called_with(x), called_with(y))
    return list(gpu.launches[-1].findings or []), y


@compared
def test_an_unmarked_tensor_for_a_dynamic_one_is_an_error():
    found, _ = _findings(_marked, _fixed, 100)
    errors = [f for f in found if f.kind == "arguments"]
    assert [f.severity for f in errors] == ["error", "error"]
    assert [f.diagnosis.split()[1] for f in errors] == ["x", "y"]
    assert "is not marked as it was when the function was compiled" in errors[0].diagnosis
    assert "of shape (100,)" in str(errors[0]) and errors[0].loc.startswith(__file__)


def test_marked_alike_nothing_is_said():
    found, y = _findings(_marked, _marked, 100)
    assert found == [] and torch.equal(y, torch.arange(100.0) + 1)


@cute.kernel
def _add_columns(x: cute.Tensor, y: cute.Tensor):
    row, _, _ = cute.arch.thread_idx()
    column, _, _ = cute.arch.block_idx()
    y[row, column] = x[row, column] + 1


@cute.jit
def _run_columns(x: cute.Tensor, y: cute.Tensor):
    _add_columns(x, y).launch(grid=(x.shape[1], 1, 1), block=(x.shape[0], 1, 1))


def test_strides_that_become_dynamic_with_a_size():
    """mark_compact_shape_dynamic of one mode makes strides dynamic, too, at the first use of the
    tensor only.
    """
    gpu = b200.install()

    def marked(tensor: torch.Tensor):
        order = tensor.dim_order()
        return from_dlpack(tensor).mark_compact_shape_dynamic(mode=1, stride_order=order)

    compiled = cute.compile(_run_columns, *(marked(torch.zeros(8, 4)) for _ in "xy"))
    x, y = torch.rand(8, 6), torch.zeros(8, 6)
    compiled(marked(x), marked(y))
    assert gpu.launches[-1].findings == [] and torch.equal(y, x + 1)


def test_the_same_fixed_shape_is_right():
    found, y = _findings(_fixed, _fixed, 64)
    assert found == [] and torch.equal(y, torch.arange(64.0) + 1)


@compared
def test_another_fixed_shape_is_a_note():
    found, y = _findings(_fixed, _fixed, 100)
    assert [f.severity for f in found] == ["note", "note"]
    assert "has shape (100,), and the function is compiled for (64,)" in found[0].diagnosis
    assert torch.equal(y[:64], torch.arange(64.0) + 1) and not y[64:].any()


def test_fewer_dynamic_strides_than_compiled():
    compiled = DynamicShape((1, 1), (1, 0), (8, 8), (8, 1))
    given = DynamicShape((1, 1), (0, 0), (8, 8), (8, 1))
    found = compare("a", compiled, given)
    assert found is not None and found.severity == "error"
    assert compare("a", compiled, compiled) is None
