"""Forms of instructions: a row for each, in the notation of the PTX ISA (forms/*.txt).

    TYPES: u32 s32                                 a set, which rows name
    add{.sat}.s32 d, a, b                          a form and its operands
    (popc|clz).(b32|b64) d:b32, a                  mnemonics and types to choose from
    - multimem.* ; multimem                        a form that is not modelled, and why
    cvt.rn.bf16x2.e4m3x2 d, a @9.2                 a form that is newer than PTX ISA 9.0
    - tex.* ; textures                             all that begins so

`{...}` is optional, `.(a|b)` a choice, `.TYPES` a choice from a set, `<.a|.b.c>` one of several
modifiers; braces may hold several ways, too: `{.a|.b.c}`. Operands are read by what makes
forms for ptxas (lab/conformance); nothing here looks at them.

ptxas takes modifiers in nearly any order, and public programs use that
(`cp.async.bulk.tensor.2d.cta_group::2.shared::cluster...`). So a form is matched whatever the
order, and names its modifiers in the grammar's. Modifiers of one kind keep their order: the first
of two state spaces is the destination's, the first of two types is the result's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import product
from pathlib import Path

FOLDER = Path(__file__).with_name("forms")
BASE = 9, 0  # the PTX ISA of rows that name none; older ones are not told apart
NEWEST = "9.5"  # PTX ISA of the newest ptxas that the rows were held against
# Modifiers that keep their order among themselves.
KINDS = tuple(
    re.compile(kind)
    for kind in (
        r"pred|[bu]f?\d+(x\d)?|[sf]\d+(f\d)?(x\d)?|tf32|u?e\d+m\d+(x\d)?",
        r"(global|shared|local|param|const)(::\w+)?",
        r"row|col",
        r"L2::evict_\w+",
    )
)
_ELEMENT = re.compile(r"\.\(([^)]*)\)|\.([\w:]+)")
_SET = re.compile(r"([A-Z][A-Z_0-9]+): (.*)")


@cache
def kind_of(modifier: str) -> int:
    """The kind whose modifiers keep their order; -1 for one that may stand anywhere."""
    return next((i for i, kind in enumerate(KINDS) if kind.fullmatch(modifier)), -1)


def is_type(modifier: str) -> bool:
    return kind_of(modifier) == 0


@dataclass(frozen=True)
class Slot:
    """A place of a form: one of `choices`, which may be left out if `optional`."""

    choices: frozenset[str]
    optional: bool = False


@dataclass(frozen=True)
class Form:
    """A row of the table.

    text: its modifiers as written. operands: as written. reason: why it is not modelled, or "".
    variants: its slots, once for each choice of the groups of several modifiers. chapter: the name
    of its file. since: the PTX ISA that brought it, where that is newer than 9.0.
    """

    mnemonic: str
    text: str
    operands: str
    reason: str
    variants: tuple[tuple[Slot, ...], ...]
    chapter: str = ""
    since: tuple[int, int] = BASE

    @property
    def open(self) -> bool:
        """Whether all that begins with its modifiers belongs to it."""
        return self.text.endswith(".*")


@dataclass(frozen=True)
class Match:
    """The form that an opcode has. name: the opcode with its modifiers in the grammar's order."""

    form: Form
    name: str

    @property
    def reason(self) -> str:
        """Why it is not modelled, or ""."""
        return self.form.reason


@lru_cache(maxsize=8192)
def match(opcode: str) -> Match | None:
    """The form of an opcode, whatever the order of its modifiers; None if there is none."""
    mnemonic, *modifiers = opcode.split(".")
    for form in table().get(mnemonic, ()):
        for slots in form.variants:
            if (places := _assign(modifiers, slots, form.open)) is not None:
                named = [
                    modifiers[i] for i in sorted(range(len(modifiers)), key=places.__getitem__)
                ]
                return Match(form, ".".join((mnemonic, *named)))
    return None


def _assign(modifiers: list[str], slots: tuple[Slot, ...], rest: bool = False) -> list[int] | None:
    """The slot of each modifier, or None if they do not fill the slots. rest: whether modifiers may
    be left over.
    """
    needed = sum(not slot.optional for slot in slots)
    if not needed <= len(modifiers) or (len(modifiers) > len(slots) and not rest):
        return None
    places: list[int] = []

    def fill(k: int) -> bool:
        if k == len(modifiers):
            return all(slot.optional or i in places for i, slot in enumerate(slots))
        kind = kind_of(modifiers[k])
        same = [places[i] for i in range(k) if kind >= 0 and kind_of(modifiers[i]) == kind]
        for i, slot in enumerate(slots):
            if modifiers[k] in slot.choices and i not in places and all(i > j for j in same):
                places.append(i)
                if fill(k + 1):
                    return True
                places.pop()
        if rest:
            places.append(len(slots) + k)
            if fill(k + 1):
                return True
            places.pop()
        return False

    return places if fill(0) else None


def modifiers_of(mnemonic: str) -> frozenset[str]:
    """All modifiers that forms of a mnemonic have."""
    forms = table().get(mnemonic, ())
    return frozenset(m for f in forms for slots in f.variants for s in slots for m in s.choices)


# --- what is wrong with an opcode -----------------------------------------------------------------


def refusal(opcode: str) -> str:
    """Why an opcode is not executed, for one that no modelled form has."""
    mnemonic, *modifiers = opcode.split(".")
    forms = table().get(mnemonic)
    if forms is None:
        return f"instruction {mnemonic} is not modelled"
    found = match(opcode)
    if found is not None:
        return f"{found.reason}{_of(found.form.since)}, not modelled"
    known = modifiers_of(mnemonic)
    for modifier in modifiers:
        if modifier not in known:
            return f"{mnemonic} has no modifier .{modifier} that is known (PTX ISA {NEWEST})"
    return _nearest(modifiers, forms)


def _of(since: tuple[int, int]) -> str:
    return " (PTX {}.{})".format(*since) if since > BASE else ""


def newer(opcode: str, isa: tuple[int, int]) -> str:
    """Why a module of a PTX ISA may not have a modelled opcode, as ptxas has it; "" if it may."""
    found = match(opcode)
    if found is None or found.reason or found.form.since <= max(isa, BASE):
        return ""
    return "of PTX {}.{}, and the module's .version is {}.{}".format(*found.form.since, *isa)


def _nearest(modifiers: list[str], forms: tuple[Form, ...]) -> str:
    """What is missing or too much, by the form that fits best."""
    best: tuple[tuple[int, int], Form, list[str], list[Slot]] | None = None
    for form in forms:
        for slots in form.variants:
            left: list[str] = []
            free = list(slots)
            for modifier in modifiers:
                slot = next((s for s in free if modifier in s.choices), None)
                if slot is None:
                    left.append(modifier)
                else:
                    free.remove(slot)
            missing = [slot for slot in free if not slot.optional]
            distance = len(left) + len(missing), sum(not is_type(m) for m in left)
            if best is None or distance < best[0]:
                best = distance, form, left, missing
    assert best is not None
    _, form, left, missing = best
    if left:
        wrong = f".{left[0]} does not go with its other modifiers"
    elif missing:
        choices = sorted(f".{m}" for m in missing[0].choices)
        wrong = f"{'one of ' if choices[1:] else ''}{', '.join(choices)} is missing"
    else:
        wrong = "its types or state spaces are in another order"
    return f"PTX ISA {NEWEST} has no such form: {wrong}; the nearest is {form.mnemonic}{form.text}"


# --- the table ------------------------------------------------------------------------------------


@cache
def table() -> dict[str, tuple[Form, ...]]:
    """The forms of each mnemonic."""
    found: dict[str, list[Form]] = {}
    for path in sorted(FOLDER.glob("*.txt")):
        for form in rows(path.read_text(), path.stem):
            found.setdefault(form.mnemonic, []).append(form)
    # a modelled form before one that is not, and one with a name before all that begins so
    order = {
        name: sorted(forms, key=lambda f: (f.open, f.reason != "")) for name, forms in found.items()
    }
    return {name: tuple(forms) for name, forms in order.items()}


def rows(text: str, chapter: str = "") -> Iterator[Form]:
    """The forms that a text has."""
    sets: dict[str, tuple[str, ...]] = {}
    for line in text.splitlines():
        line = line.split("#")[0].rstrip()
        if not line:
            continue
        if found := _SET.fullmatch(line):
            sets[found[1]] = tuple(_choices(found[2].split(), sets))
            continue
        line, _, reason = line.partition(" ; ")
        absent = line.startswith("- ")
        assert absent == bool(reason), f"a reason belongs to a form that is not modelled: {line}"
        line, _, since = line.partition(" @")
        template, _, operands = line.removeprefix("- ").strip().partition(" ")
        head = re.match(r"\([^)]*\)|\w+", template)
        assert head is not None, f"no mnemonic: {line}"
        modifiers = template[head.end() :]
        variants = tuple(_variants(modifiers.removesuffix(".*"), sets))
        said = _expanded(modifiers, sets), operands.strip(), reason.strip()
        age = _version(since) if since else BASE
        for mnemonic in head[0].strip("()").split("|"):
            yield Form(mnemonic, *said, variants, chapter, age)


def _choices(words: list[str], sets: dict[str, tuple[str, ...]]) -> Iterator[str]:
    for word in words:
        if re.fullmatch(r"[A-Z][A-Z_0-9]{2,}", word) and word not in sets:
            raise ValueError(f"no set is called {word}")
        yield from sets.get(word, (word,))


def _version(text: str) -> tuple[int, int]:
    major, minor = map(int, text.split("."))
    return major, minor


def _expanded(template: str, sets: dict[str, tuple[str, ...]]) -> str:
    """A template with the choices of its sets in place of their names."""
    alone = re.sub(r"\.([A-Z][A-Z_0-9]{2,})\b", r".(\1)", template)
    return re.sub(r"[A-Z][A-Z_0-9]{2,}", lambda m: "|".join(sets.get(m[0], (m[0],))), alone)


def _variants(template: str, sets: dict[str, tuple[str, ...]]) -> Iterator[tuple[Slot, ...]]:
    """The slots of a template: one optional modifier is a slot, groups are written out."""
    parts: list[list[tuple[Slot, ...]]] = []
    for group in re.findall(r"\{[^}]*\}|<[^>]*>|[^{}<>]+", template):
        optional, choice = group[0] == "{", group[0] == "<"
        ways = re.split(r"\|(?=\.)", group[1:-1]) if optional or choice else [group]
        slots = [tuple(_slots(way, sets)) for way in ways]
        if optional and len(slots) == 1 and len(slots[0]) == 1:
            parts.append([(Slot(slots[0][0].choices, True),)])
        else:
            parts.append([(), *slots] if optional else slots)
    for chosen in product(*parts):
        yield tuple(slot for part in chosen for slot in part)


def _slots(template: str, sets: dict[str, tuple[str, ...]]) -> Iterator[Slot]:
    assert _ELEMENT.sub("", template) == "", f"not modifiers: {template}"
    for many, one in _ELEMENT.findall(template):
        yield Slot(frozenset(_choices((many or one).split("|"), sets)))
