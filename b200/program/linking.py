"""One PTX module of several that were compiled to be linked (`nvcc -rdc=true`).

Names that a module keeps to itself get its number, numbers of source files are counted on, and what
one module declares and another defines is declared no more. Variables come first, as compilers
write them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from b200.program.parse import SYSTEM_CALLS

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
_LINKAGE = re.compile(r"\.(visible|extern|weak|common)\b")
_KINDS = re.compile(r"\.(func|entry|global|const|shared|alias)\b")
_FUNCTION = re.compile(r"\.(?:func|entry)\s*(?:\([^)]*\))?\s*([A-Za-z_$%][\w$]*)")
_VARIABLE = re.compile(r"([A-Za-z_$%][\w$]*)\s*(?:\[[^\]]*\]\s*)*(?:=.*)?$", re.S)
_FILE = re.compile(r"(?<![\w.])\.file\s+(\d+)")
_LOC = re.compile(r"(?<![\w.])(\.loc|inlined_at)\s+(\d+)")
_CALL = re.compile(r"\bcall\b[^;]*;")
_OF_THE_RUNTIME = re.compile(r"(?:__cudaCDP2|cuda)[A-Z]")  # device_runtime.py
_WORD = re.compile(r"[A-Za-z_$%][\w$]*")


def linked(texts: Sequence[str]) -> str:
    """The module of some modules' texts; the text itself of one."""
    if len(texts) == 1:
        return texts[0]
    head = ""
    variables: list[str] = []
    functions: list[str] = []
    rest: list[str] = []
    names: set[str] = set()
    declared: list[tuple[str, str]] = []
    for number, text in enumerate(texts):
        items = [*_items(_numbered(_COMMENT.sub(" ", text), 1000 * number))]
        own = {name for name, item in items if name and not _LINKAGE.match(item)}
        for name, item in items:
            item = _named_apart(item, own, number)
            if not name:
                head = head or item if item.startswith(".version") else head
                rest += [] if item.startswith((".version", ".target", ".address_size")) else [item]
            elif item.startswith(".extern") or item.endswith(";") and ".func" in item:
                declared.append((name, item))
            elif name not in names or name in own:  # the first one of weak definitions
                names.add(name)
                (functions if _FUNCTION.search(item) else variables).append(item)
    rest += [item for name, item in dict(declared).items() if name not in names]
    target = re.search(r"\.target[^\n]*", texts[0])
    first = f"{head}\n{target[0] if target else ''}\n.address_size 64"
    return "\n".join((first, *rest, *variables, *functions)) + "\n"


def undefined(text: str) -> list[str]:
    """Functions that a linked module calls and does not define; those of the driver are none."""
    items = [*_items(_COMMENT.sub(" ", text))]
    functions = [(name, item) for name, item in items if name and _FUNCTION.search(item)]
    declared = {name for name, item in functions if item.startswith(".extern")}
    defined = {name for name, item in functions if not item.startswith(".extern")}
    calls = {call for _, item in items for call in _CALL.findall(item)}
    called = {word for call in calls for word in _WORD.findall(call)}
    missing = (declared - defined - {*SYSTEM_CALLS}) & called
    return sorted(name for name in missing if not _OF_THE_RUNTIME.match(name))


def _named_apart(item: str, own: set[str], number: int) -> str:
    """A statement in which the module's own names have its number."""
    return _WORD.sub(lambda match: f"{match[0]}$of{number}" if match[0] in own else match[0], item)


def _numbered(text: str, first: int) -> str:
    """A text with the numbers of its source files counted from `first` on."""
    text = _FILE.sub(lambda m: f".file {first + int(m[1])}", text)
    return _LOC.sub(lambda m: f"{m[1]} {first + int(m[2])}", text)


def _items(text: str) -> Iterator[tuple[str, str]]:
    """(name, text) of each statement of a module: "" for one that names nothing."""
    at = 0
    while match := re.compile(r"\S").search(text, at):
        at, start = match.start(), match.start()
        line = text[at : text.find("\n", at) if "\n" in text[at:] else len(text)]
        words = line.split(None, 1)
        if not _KINDS.search(line) and not _LINKAGE.match(line):
            at += len(line)
            if words[0] == ".section":
                at = _end_of(text, at)
            yield "", text[start:at].strip()
            continue
        at = _end_of(text, at)
        item = text[start:at].strip()
        function = _FUNCTION.search(item.partition("{")[0])
        found = function or _VARIABLE.search(item.rstrip(";").partition("=")[0].strip())
        yield found[1] if found else "", item


def _end_of(text: str, at: int) -> int:
    """Where a statement ends: behind a semicolon, or the brace that closes a body."""
    depth = 0
    for mark in re.compile(r"[{};=]").finditer(text, at):
        if mark[0] == "{":
            depth += 1
        elif mark[0] == "}":
            depth -= 1
            if depth == 0 and "=" not in text[at : mark.start()].partition("{")[0]:
                return mark.end()
        elif mark[0] == ";" and depth == 0:
            return mark.end()
    return len(text)
