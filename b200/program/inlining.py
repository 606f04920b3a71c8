"""Calls of device functions (`.func`), written out in the kernel's text before it is parsed.

A compiler writes a call as a sequence in braces (PTX ISA 7.1):

    {
    .param .b32 param0;   st.param.b32 [param0], %r1;   .param .b32 retval0;
    call.uni (retval0), square, (param0);
    ld.param.b32 %r2, [retval0];
    }

The function's body takes the place of the `call`. Parameters and results become variables in local
memory, which both sides name alike. A call through a pointer becomes a test of the pointer against
each function that it may be: those of its prototype whose address the module takes. A function that
calls itself is written out as deep as the copies do not become too many; a call that is left is
refused where it is executed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count

MARK = ".inlined;"  # begins the scope of a body: its lines count
_NAME = r"[A-Za-z_$%][\w$]*"
_CALL = re.compile(
    rf"(?:@(!?)\s*({_NAME})\s+)?\bcall(?:\.uni)?\s+(?:\(\s*({_NAME})\s*\)\s*,\s*)?({_NAME})"
    rf"\s*(?:,\s*\(([^)]*)\)\s*)?(?:,\s*({_NAME})\s*)?;"
)
_HEAD = r"\.func\s*(?:\(([^)]*)\))?\s*([A-Za-z_$%][\w$]*)\s*(?:\(([^)]*)\))?[^{};]*"
_FUNCTION = re.compile(_HEAD + r"\{")
_HEADS = re.compile(_HEAD + r"[{;]")
_ENTRY = re.compile(r"\.entry\b[^{;]*\{")
_PROTOTYPE = re.compile(
    rf"({_NAME})\s*:\s*\.callprototype\s*(?:\(([^)]*)\))?\s*_\s*(?:\(([^)]*)\))?"
)
_PARAMETER = re.compile(
    r"\.param\s*(?:\.align\s+(\d+)\s*)?\.(\w+)\s+([\w$]+)\s*(?:\[\s*(\d+)\s*\])?\s*;"
)
_LOCAL = re.compile(r"(?<!\w)\.local\b[^;\[]*?([A-Za-z_$%][\w$]*)\s*(?:\[[^;]*)?;")
_BRACE = re.compile(r"[{}]")
_BITS = re.compile(r"\d+$")
_WORD = re.compile(_NAME)
_DEEPEST = 16
_COPIES = 200  # of functions that a kernel may come to, where one calls itself


@dataclass(frozen=True)
class _Function:
    """A function's parameters, results first; its type: theirs without the names."""

    parameters: tuple[str, ...]
    type: tuple[str, ...]
    body: str


def defined(text: str) -> tuple[str, ...]:
    """The names of the functions that a module has or declares."""
    return tuple(dict.fromkeys(match.group(2) for match in _HEADS.finditer(text)))


def inlined(text: str) -> str:
    """The text, without comments, with all calls of its own functions in kernels written out; the
    same text if it has none.
    """
    if ".func" not in text or "call" not in text:
        return text
    functions = {
        match.group(2): _Function(
            (*_names(match.group(1)), *_names(match.group(3))),
            _type(match.group(1), match.group(3)),
            text[match.end() : _closing(text, match.end())],
        )
        for match in _FUNCTION.finditer(text)
    }
    return _Module(text, functions).written_out() if functions else text


class _Module:
    """A module's text and its functions. pointed: those whose address the module takes. calls: the
    functions that each comes to.
    """

    def __init__(self, text: str, functions: dict[str, _Function]):
        self.text, self.functions = text, functions
        elsewhere = _WORD.findall(_CALL.sub(" ", _HEADS.sub(" ", text)))
        self.pointed = tuple(dict.fromkeys(word for word in elsewhere if word in functions))
        self.numbers = count(1)
        self.deepest = _DEEPEST
        self.calls = {name: self._called(f.body) for name, f in functions.items()}

    def written_out(self) -> str:
        found: list[str] = []
        at = 0
        for entry in _ENTRY.finditer(self.text):
            end = _closing(self.text, entry.end())
            body = self.text[entry.end() : end]
            self.deepest = self._depth(body)
            found += [self.text[at : entry.end()], self._body(body, ())]
            at = end
        return "".join((*found, self.text[at:]))

    def _depth(self, body: str) -> int:
        """How deep a function may be within itself, so that the copies are not too many."""
        for deepest in range(_DEEPEST, 0, -1):
            left = _COPIES
            work: list[tuple[str, tuple[str, ...]]] = [(name, ()) for name in self._called(body)]
            while work and left:
                name, stack = work.pop()
                if stack.count(name) < deepest:
                    left -= name in stack
                    work += [(inner, (*stack, name)) for inner in self.calls[name]]
            if left:
                return deepest
        return 1

    def _called(self, body: str) -> list[str]:
        return [name for call in _CALL.finditer(body) for name in self._targets(body, call)]

    def _targets(self, body: str, call: re.Match[str]) -> tuple[str, ...]:
        """The functions that a call may come to."""
        if call.group(4) in self.functions:
            return (call.group(4),)
        for prototype in _PROTOTYPE.finditer(body) if call.group(6) else ():
            if prototype.group(1) == call.group(6):
                wanted = _type(prototype.group(2), prototype.group(3))
                return tuple(n for n in self.pointed if self.functions[n].type == wanted)
        return ()

    def _body(self, body: str, stack: tuple[str, ...]) -> str:
        """A body with its calls written out. stack: the functions in which it stands."""
        at = 0
        while call := _CALL.search(body, at):
            targets = self._targets(body, call)
            targets = tuple(name for name in targets if stack.count(name) < self.deepest)
            start, end = _around(body, call.start(), call.end())
            if not targets or not _in_memory(call, body[start:end]):
                at = call.end()
                continue
            before, after = body[start : call.start()], body[call.end() : end]
            number = next(self.numbers)
            names = ([call.group(3)] if call.group(3) else []) + _list(call.group(5))
            head, given = f"{_local(before, names, number)}\n", [f"{n}$in{number}" for n in names]
            tail = f"\n{_local(after, names, number)}"
            if call.group(6):
                inside = self._through_pointer(call, targets, given, number, stack)
            else:
                inside = self._copy(targets[0], given, number, stack)
            skip = f"@{'' if call.group(1) else '!'}{call.group(2)} bra" if call.group(2) else ""
            done = f"$call_done{number}"
            if skip or call.group(6):
                inside = f"{{ {f'{skip} {done};' if skip else ''} {inside} {done}: }}"
            body = body[:start] + head + inside + tail + body[end:]
            at = start + len(head) + len(inside)
        return body

    def _copy(self, name: str, given: list[str], number: int, stack: tuple[str, ...]) -> str:
        """A function's body in the place of a call."""
        function = self.functions[name]
        written = self._body(function.body, (*stack, name))
        body = _callee(written, function.parameters, given, number)
        return f"{{ {MARK} {body}\n$inlined_return{number}: }}"

    def _through_pointer(
        self,
        call: re.Match[str],
        targets: Iterable[str],
        given: list[str],
        number: int,
        stack: tuple[str, ...],
    ) -> str:
        """The bodies of all that a pointer may lead to, each behind a test of the pointer. With
        another value the call itself is met, which is refused.
        """
        text = f".reg .pred $other{number};"
        for i, name in enumerate(targets):
            skip = f"$call_next{number}_{i}"
            text += (
                f" setp.ne.u64 $other{number}, {call.group(4)}, {name};"
                f" @$other{number} bra {skip};"
                f" {self._copy(name, given, next(self.numbers), stack)}"
                f" bra $call_done{number}; {skip}:"
            )
        return f"{text} call.uni {call.group(4)};"


def _names(declared: str | None) -> tuple[str, ...]:
    """The names of a list of parameters."""
    return tuple(re.sub(r"\[.*", "", part).split()[-1] for part in _list(declared))


def _type(results: str | None, parameters: str | None) -> tuple[str, ...]:
    """The types of results and parameters, as ".b32" or ".b8[16]"."""

    def kind(declared: str) -> str:
        found = re.findall(r"\.[bsuf]\d+|\.pred", declared)
        size = re.search(r"\[\s*(\d*)\s*\]", declared)
        bits = found[-1].lstrip(".bsufpred") if found else ""
        return f".b{bits}" + (f"[{size.group(1)}]" if size else "")

    return (*map(kind, _list(results)), "->", *map(kind, _list(parameters)))


def _closing(text: str, at: int) -> int:
    """Where the brace stands that closes the one before `at`."""
    depth = 1
    for brace in _BRACE.finditer(text, at):
        depth += 1 if brace.group(0) == "{" else -1
        if depth == 0:
            return brace.start()
    return len(text)


def _around(text: str, first: int, last: int) -> tuple[int, int]:
    """From behind the brace that opens around a statement to the one that closes."""
    depth, start = 0, 0
    for at in range(first - 1, -1, -1):
        if text[at] == "}":
            depth += 1
        elif text[at] == "{":
            if depth == 0:
                start = at + 1
                break
            depth -= 1
    return start, _closing(text, last)


def _in_memory(call: re.Match[str], scope: str) -> bool:
    """Whether a call's arguments and result are `.param` variables of its scope, not registers."""
    names = (*_list(call.group(3)), *_list(call.group(5)))
    found = (rf"(?<!\w)\.(?:param|local)\b[^;]*?(?<![\w$%]){re.escape(n)}(?![\w$])" for n in names)
    return all(re.search(pattern, scope) for pattern in found)


def _list(arguments: str | None) -> list[str]:
    return [name.strip() for name in (arguments or "").split(",") if name.strip()]


def _renamed(text: str, name: str, new: str) -> str:
    return re.sub(rf"(?<![\w$%]){re.escape(name)}(?![\w$])", lambda _: new, text)


def _local(text: str, given: list[str], number: int) -> str:
    """The caller's side of a sequence, its `.param` variables in local memory."""

    def declare(match: re.Match[str]) -> str:
        align, kind, name, length = match.groups()
        bits = _BITS.search(kind)
        size = int(bits.group(0)) // 8 if bits else 1
        return f".local .align {align or size} .b8 {name}[{size * int(length or 1)}];"

    text = _named_in_local_memory(_PARAMETER.sub(declare, text), given)
    for name in given:
        text = _renamed(text, name, f"{name}$in{number}")
    return text


def _callee(body: str, parameters: Iterable[str], given: Iterable[str], number: int) -> str:
    """A function's body in the place of a call. given: the caller's names of its parameters."""
    body = re.sub(r"(?<![\w$.%])ret(?:\.uni)?\s*;", f"bra $inlined_return{number};", body)
    for own in dict.fromkeys(match.group(1) for match in _LOCAL.finditer(body)):
        body = _renamed(body, own, f"{own}$in{number}")
    body = _named_in_local_memory(body, parameters)
    for name, callers in zip(parameters, given):
        body = _renamed(body, name, callers)
    return body


def _named_in_local_memory(text: str, names: Iterable[str]) -> str:
    """Accesses of these parameters, as of local memory. A kernel's own stay what they are."""
    pattern = "|".join(map(re.escape, names))
    if not pattern:
        return text
    access = re.compile(rf"\b(ld|st)\.param\b([^;\[]*\[\s*(?:{pattern})(?![\w$]))")
    return access.sub(r"\1.local\2", text)
