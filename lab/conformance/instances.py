"""Statements of PTX that the instruction table has, and their neighbours that it may not have.

An instance is a form with its choices made and registers for its operands. A neighbour of an
instance lacks a modifier, has one more, or has another one in a place: most are no PTX.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from itertools import count

from b200.isa import grammar
from b200.isa.grammar import Form, Slot

BITS = {"pred": 1, "tf32": 32, "e2m1x2": 8, "e2m1x4": 16, "ue8m0x2": 16, "s2f6x2": 16}
CLASSES = {1: "%p", 8: "%b", 16: "%rs", 32: "%r", 64: "%rd", 128: "%rq"}
MATRIX = re.compile(r"m(\d+)n(\d+)k(\d+)")
# Registers that a lane holds of a and b of wmma's shapes, where the shape is not the square one.
WMMA = {("a", "m32"): 2, ("a", "m8"): 0.5, ("b", "n32"): 2, ("b", "n8"): 0.5}


def bits_of(kind: str) -> int:
    """Bits of a register of a PTX type."""
    if kind in BITS:
        return BITS[kind]
    pair = re.fullmatch(r"(?:e\dm\d)x(\d)", kind)
    if pair:
        return 8 * int(pair[1])
    number, _, lanes = kind.lstrip("busf").partition("x")
    return int(number) * int(lanes or 1)


class Operands:
    """The operands of one statement; each register is used once."""

    def __init__(self, mnemonic: str, modifiers: list[str]):
        self.mnemonic, self.modifiers = mnemonic, modifiers
        self.types = [m for m in modifiers if grammar.KINDS[0].fullmatch(m)]
        self.numbers = {name: count(1) for name in CLASSES.values()}

    def text(self, form: Form) -> str:
        if form.mnemonic in ("mma", "wmma"):
            return self._matrix()
        found = (self._one(token) for token in form.operands.split(", ") if token)
        return ", ".join(one for one in found if one)

    def register(self, kind: str) -> str:
        bits = bits_of(kind)
        small = bits == 8 and self.mnemonic in ("ld", "ldu", "st") and "async" not in self.modifiers
        name = CLASSES[16 if small else bits]
        return f"{name}{next(self.numbers[name])}"

    def registers(self, kind: str, number: int) -> str:
        return "{" + ", ".join(self.register(kind) for _ in range(number)) + "}"

    def _one(self, token: str) -> str:
        token, _, needs = token.partition("?")
        if needs and not self._has(needs):
            return ""
        if token in ("[b", "c]"):  # an address in a tensor
            return f"[{self.register('b64')}" if token == "[b" else self._coordinates() + "]"
        if token.startswith("["):
            name, _, kind = token[1:-1].partition(":")
            return f"[{self.register(kind or 'b64')}]"
        if token in ("L", "_") or token[0].isdigit():
            return {"L": "DONE"}.get(token, token)
        if "|" in token:
            return "|".join(map(self._one, token.split("|")))
        token, _, kind = token.partition(":")
        name, _, vector = token.partition("*")
        found = self._type(name, kind)
        number = self._count(vector) if "*" in token else 0
        return self.registers(found, number) if number else self.register(found)

    def _has(self, needs: str) -> bool:
        sets = {"JOIN": ("and", "or", "xor")}
        return any(m in self.modifiers for m in sets.get(needs, (needs,)))

    def _type(self, name: str, kind: str) -> str:
        if kind == "wide":
            last = self.types[-1]
            return f"{last[0]}{2 * bits_of(last)}"
        if kind == "1" or not kind and name == "d":
            return self.types[0]
        if name == "q" and not kind:
            return "pred"
        return kind or self.types[-1]

    def _count(self, vector: str) -> int:
        """The registers of a vector; 0 for a register by itself."""
        if vector.isdigit():
            return int(vector)
        number = next((int(m[1:]) for m in self.modifiers if re.fullmatch(r"[vx]\d+", m)), 0)
        if vector == "im2col":
            rank = next(int(m[0]) for m in self.modifiers if re.fullmatch(r"\dd", m))
            return rank - 2 if "im2col" in self.modifiers else 2
        if vector == "tmem":
            return number * {"16x128b": 2, "16x256b": 4}.get(self.modifiers[3], 1)
        return number * 2 if vector == "2x" else number

    def _coordinates(self) -> str:
        number = next(int(m[0]) for m in self.modifiers if re.fullmatch(r"\dd", m))
        four = any(m in ("tile::gather4", "tile::scatter4") for m in self.modifiers)
        return self.registers("b32", 5 if four else number)

    def _matrix(self) -> str:
        """The registers of mma.sync, and of wmma."""
        if self.mnemonic == "wmma":
            return self._wmma()
        m, n, k = map(int, next(f for x in self.modifiers if (f := MATRIX.fullmatch(x))).groups())
        d, a, b, c = self.types
        if (m, a) == (8, "f16"):  # four products at once
            sums = [self.registers("b32", 4 if kind == "f16" else 8) for kind in (d, c)]
            return ", ".join((sums[0], self.registers("b32", 2), self.registers("b32", 2), sums[1]))
        sizes = [(d, m * n), (a, m * k), (b, k * n), (c, m * n)]
        return ", ".join(self._part(kind, cells) for kind, cells in sizes)

    def _part(self, kind: str, cells: int) -> str:
        bits = {"e4m3": 8, "e5m2": 8}.get(kind) or bits_of(kind)
        each = max(32, bits)
        return self.registers(f"b{each}", max(1, cells * bits // (32 * each)))

    def _wmma(self) -> str:
        kind = self.types[-1]
        action, role = self.modifiers[:2]
        if action != "mma":
            data = self._fragment(role, kind)
            address, stride = f"[{self.register('b64')}]", self.register("b32")
            return ", ".join(
                (data, address, stride) if action == "load" else (address, data, stride)
            )
        d, *inputs, c = self.types
        a = inputs[0] if inputs else "f16"
        return ", ".join(
            (
                self._fragment("c", d),
                self._fragment("a", a),
                self._fragment("b", a),
                self._fragment("c", c),
            )
        )

    def _fragment(self, role: str, kind: str) -> str:
        shape = next(x for x in self.modifiers if MATRIX.fullmatch(x))
        if role in "cd":
            return (
                self.registers("b64", 2)
                if kind == "f64"
                else self.registers("b32", 4 if kind == "f16" else 8)
            )
        share = next(
            (
                f
                for (r, part), f in WMMA.items()
                if r == role and part in re.findall(r"[mn]\d+", shape)
            ),
            1,
        )
        number = {
            "f16": 8,
            "bf16": 4 * share,
            "s8": 2 * share,
            "u8": 2 * share,
            "tf32": 4,
            "f64": 1,
        }[kind]
        return self.registers("b64" if kind == "f64" else "b32", int(number))


def statement(form: Form, modifiers: list[str]) -> str:
    opcode = ".".join((form.mnemonic, *modifiers))
    return f"{opcode} {Operands(form.mnemonic, modifiers).text(form)}".strip()


def instances(form: Form, most: int, random: random.Random) -> Iterator[tuple[str, list[str]]]:
    """Up to about `most` statements of a form, with the modifiers of each; each choice is there."""
    each = max(1, most // len(form.variants))
    for slots in form.variants:
        longest = max((len(slot.choices) for slot in slots), default=1)
        seen = set()
        for i in range(max(each, longest)):
            chosen = tuple(m for slot in slots if (m := _pick(slot, i, random)))
            if chosen not in seen:
                seen.add(chosen)
                yield statement(form, list(chosen)), list(chosen)


def _pick(slot: Slot, i: int, random: random.Random) -> str:
    choices = sorted(slot.choices)
    if slot.optional and random.random() < 0.4:
        return ""
    return choices[i % len(choices)] if random.random() < 0.7 else random.choice(choices)


def neighbours(form: Form, modifiers: list[str], text: str, random: random.Random) -> Iterator[str]:
    """Statements that differ from an instance by a modifier: one less, one more, and another."""
    known = sorted(grammar.modifiers_of(form.mnemonic)) or ["uni"]
    at = random.randrange(len(modifiers)) if modifiers else 0
    more, other = random.choice(known), random.choice(known)
    kind = grammar.kind_of(modifiers[at]) if modifiers else -1
    alike = [m for m in known if kind >= 0 and grammar.kind_of(m) == kind] or known
    for changed in (
        [*modifiers[:at], *modifiers[at + 1 :]],
        [*modifiers[:at], more, *modifiers[at:]],
        [*modifiers[:at], other, *modifiers[at + 1 :]],
        [*modifiers[:at], random.choice(alike), *modifiers[at + 1 :]],
    ):
        opcode = ".".join((form.mnemonic, *changed))
        found = grammar.match(opcode)
        if found is not None and not found.form.open and found.form.operands:
            yield statement(found.form, found.name.split(".")[1:])
        else:
            yield f"{opcode} {text.partition(' ')[2]}".strip()
