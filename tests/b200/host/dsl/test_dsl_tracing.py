"""What the DSL is told where its own questions are stood in for."""

from __future__ import annotations

import inspect
import sys

import pytest

import b200
from b200.host.dsl.source_lines import LOCATING_MODULES
from b200.host.dsl.tracing import _frame_info, _isa

pytest.importorskip("cutlass")


def here():
    return inspect.getframeinfo(sys._getframe(1)), _frame_info(sys._getframe(1))


def test_a_frame_is_what_inspect_says_at_each_of_its_lines():
    for _ in range(2):
        pairs = [here(), here()]
        pairs.append(here())
        assert all(mine == told for told, mine in pairs)
        for told, mine in pairs:  # from Python 3.11 on, besides the fields of the tuple
            assert getattr(mine, "positions", 0) == getattr(told, "positions", 0)
        lines = [mine.lineno for _, mine in pairs]
        assert lines == [lines[0], lines[0], lines[0] + 1]


def test_the_dsl_looks_at_a_frame_once():
    """Whatever its version calls: what it asks of a frame is ours."""
    b200.install()
    module = next(m for name in LOCATING_MODULES if (m := sys.modules.get(name)) is not None)
    look = getattr(module, "_fast_frameinfo", module.inspect.getframeinfo)
    assert look is _frame_info
    for name in ("_is_framework_frame", "_is_framework_module"):
        if hasattr(module, name):
            assert hasattr(getattr(module, name), "cache_info"), name


def test_functions_of_one_text_are_told_apart():
    """As when a file is loaded again: code objects that are equal, and then gone."""
    text = "def f():\n    return here()\n"
    for first in range(50):
        scope = {"here": here}
        exec(compile("\n" * first + text, "text.py", "exec"), scope)
        told, mine = scope["f"]()
        assert mine == told and mine.lineno == first + 2


def test_an_mlir_type_is_of_the_classes_that_take_it():
    arith = pytest.importorskip("cutlass._mlir.dialects.arith")
    from cutlass._mlir import ir

    if not hasattr(arith, "_isa"):
        pytest.skip("this version of the DSL asks another way")
    classes = ir.BF16Type, ir.F16Type, ir.F32Type, ir.F64Type, ir.IntegerType, ir.IndexType
    with ir.Context():
        for type_ in (ir.F32Type.get(), ir.IntegerType.get_signless(32), ir.IndexType.get()):
            for cls in classes:
                try:
                    cls(type_)
                    is_one = True
                except ValueError:
                    is_one = False
                assert _isa(type_, cls) == is_one
