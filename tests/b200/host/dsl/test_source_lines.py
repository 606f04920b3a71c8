"""The chain of user functions that leads to an operation, numbered while the DSL traces."""

from __future__ import annotations

import inspect
import sys

import pytest

from b200.host.dsl.source_lines import _number
from b200.program import calls

pytest.importorskip("cutlass")


def locate(file: str, line: int) -> int:
    """Stands for what the DSL asks for the location of an operation."""
    return _number(file, line)


def operation() -> tuple:
    """The chain of the line that calls it."""
    line = sys._getframe(1).f_lineno
    return calls.chain(__file__, line, locate(__file__, line))


def kernel_wrapper(kernel):
    """Has the name of the DSL's function that calls a kernel's."""
    return kernel()


def helper() -> tuple:
    return operation()


def kernel() -> list[tuple]:
    def then_block_0():  # as the DSL rewrites the body of an `if`
        return helper()

    return [helper(), helper(), then_block_0(), *(helper() for _ in range(2))]


def line_of(function, offset: int) -> int:
    return inspect.getsourcelines(function)[1] + offset


def test_a_chain_has_the_line_of_each_call_and_a_block_is_no_function():
    inner = calls.CallSite(__file__, line_of(helper, 1), "helper")
    last = calls.CallSite(__file__, line_of(kernel, 4), "kernel")
    block = calls.CallSite(__file__, line_of(kernel, 2), "kernel")
    each = calls.CallSite(__file__, line_of(kernel, 4), "<genexpr>")
    expected = [(inner, last), (inner, last), (inner, block), *[(inner, each, last)] * 2]
    for _ in range(2):  # looked up, then known
        assert kernel_wrapper(kernel) == expected


def test_outside_of_a_kernel_there_is_no_chain():
    assert helper() == ()


def test_functions_of_one_text_are_told_apart():
    """As when a file is loaded again: code objects that are equal, and then gone."""
    text = "def f():\n    return locate('text.py', line)\n"
    for first in range(20):
        line = first + 2
        scope = {"locate": locate, "line": line}
        exec(compile("\n" * first + text, "text.py", "exec"), scope)
        found = kernel_wrapper(scope["f"])
        assert calls.chain("text.py", line, found) == (calls.CallSite("text.py", line, "f"),)


def test_a_generator_goes_on_at_the_line_that_asks_it():
    def each():
        while True:
            line = sys._getframe().f_lineno + 1
            yield calls.chain(__file__, line, locate(__file__, line))

    def body():
        found = each()
        first = next(found)
        second = next(found)
        return first, second

    first, second = kernel_wrapper(body)
    assert [call.function for call in first] == ["each", "body"]
    assert (first[0], first[1].line + 1) == (second[0], second[1].line)
