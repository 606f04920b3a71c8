"""Calls of device functions (`.func`), written out in the kernel's text before it is parsed.

A compiler writes a call as a sequence in braces (PTX ISA 7.1):

    { // callseq 0, 0
    .param .b32 param0;   st.param.b32 [param0], %r1;   .param .b32 retval0;
    call.uni (retval0), square, (param0);
    ld.param.b32 %r2, [retval0];
    } // callseq 0

The function's body takes the place of the `call`. Parameters and results become variables in local
memory, which both sides name alike. Recursion and calls through a pointer stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count

MARK = ".inlined;"  # begins the scope of a body: its lines count
_SEQUENCE = re.compile(r"\{ // callseq (\d+), \d+(.*?)\} // callseq \1\b", re.S)
_CALL = re.compile(
    r"\bcall(?:\.uni)?\s+(?:\(\s*([\w$]+)\s*\)\s*,\s*)?([\w$]+)\s*,\s*\(([^)]*)\)\s*;"
)
_FUNCTION = re.compile(r"\.func\s*(?:\(([^)]*)\))?\s*([\w$]+)\s*\(([^)]*)\)[^{};]*\{", re.S)
_PARAMETER = re.compile(
    r"\.param\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+([\w$]+)\s*(?:\[\s*(\d+)\s*\])?\s*;"
)
_BITS = re.compile(r"\d+$")
_DEEPEST = 16


@dataclass(frozen=True)
class _Function:
    results: tuple[str, ...]
    parameters: tuple[str, ...]
    body: str


def inlined(text: str) -> str:
    """The text with all calls of its own functions written out; the same text if it has none."""
    if ".func" not in text or "callseq" not in text:
        return text
    functions = {
        match.group(2): _Function(
            _names(match.group(1)), _names(match.group(3)), _body(text, match.end())
        )
        for match in _FUNCTION.finditer(text)
    }
    return _written_out(text, functions, count(1), 0) if functions else text


def _names(declared: str | None) -> tuple[str, ...]:
    """The names of a list of parameters."""
    parts = filter(None, map(str.strip, (declared or "").split(",")))
    return tuple(re.sub(r"\[.*", "", part).split()[-1] for part in parts)


def _body(text: str, at: int) -> str:
    """From behind a brace to the one that closes it."""
    depth, start = 1, at
    for brace in re.compile(r"[{}]").finditer(text, at):
        depth += 1 if brace.group(0) == "{" else -1
        if depth == 0:
            return text[start : brace.start()]
    return text[start:]


def _written_out(text: str, functions: dict[str, _Function], numbers, depth: int) -> str:
    def expand(sequence: re.Match) -> str:
        inside = sequence.group(2)
        call = _CALL.search(inside)
        function = functions.get(call.group(2)) if call else None
        if call is None or function is None or depth >= _DEEPEST:
            return sequence.group(0)
        number = next(numbers)
        body = _written_out(function.body, functions, numbers, depth + 1)
        given = ([call.group(1)] if call.group(1) else []) + _list(call.group(3))
        names = dict(zip((*function.results, *function.parameters), given))
        before, after = inside[: call.start()], inside[call.end() :]
        return (
            f"{{ {_local(before, given, number)}\n"
            f"{{ {MARK} {_callee(body, names, number)}\n"
            f"$inlined_return{number}: }}\n{_local(after, given, number)} }}"
        )

    return _SEQUENCE.sub(expand, text)


def _list(arguments: str) -> list[str]:
    return [name.strip() for name in arguments.split(",") if name.strip()]


def _local(text: str, given: list[str], number: int) -> str:
    """The caller's side of a sequence, its `.param` variables in local memory."""

    def declare(match: re.Match) -> str:
        align, kind, name, length = match.groups()
        bits = _BITS.search(kind)
        size = int(bits.group(0)) // 8 if bits else 1
        return f".local .align {align or size} .b8 {name}[{size * int(length or 1)}];"

    text = _named_in_local_memory(_PARAMETER.sub(declare, text), given)
    for name in given:
        text = re.sub(rf"(?<![\w$%]){re.escape(name)}(?![\w$])", f"{name}$in{number}", text)
    return text


def _callee(body: str, names: dict[str, str], number: int) -> str:
    """A function's body in the place of a call. names: of its parameters -> the caller's."""
    body = re.sub(r"(?<![\w$.%])ret(?:\.uni)?\s*;", f"bra $inlined_return{number};", body)
    body = re.sub(r"(?<![\w$])(\w*__local_depot\d+)(?![\w$])", rf"\1$in{number}", body)
    body = _named_in_local_memory(body, names)
    for name, callers in names.items():
        body = re.sub(rf"(?<![\w$%]){re.escape(name)}(?![\w$])", f"{callers}$in{number}", body)
    return body


def _named_in_local_memory(text: str, names: Iterable[str]) -> str:
    """Accesses of these parameters, as of local memory. A kernel's own stay what they are."""
    pattern = "|".join(map(re.escape, names))
    if not pattern:
        return text
    access = re.compile(rf"\b(ld|st)\.param\b([^;\[]*\[\s*(?:{pattern})(?![\w$]))")
    return access.sub(r"\1.local\2", text)
