"""Finds statements in PTX text, takes them apart and writes new ones (PTX ISA 4.2, 4.3)."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from b200.program.tokens import split_operands
from hopper.errors import HopperError

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)


def without_comments(text: str) -> str:
    return _COMMENT.sub("", text)


def closing(text: str, opening: int) -> int:
    """The index of the brace that closes the one at index `opening`."""
    depth = 0
    for match in re.compile(r"[{}]").finditer(text, opening):
        depth += 1 if match[0] == "{" else -1
        if depth == 0:
            return match.start()
    raise HopperError("unsupported", "the PTX has a brace that does not close")


@dataclass(frozen=True)
class Statement:
    """One instruction: `@guard opcode operands;`. guard: "" or "@p" or "@!p"."""

    guard: str
    opcode: str
    operands: tuple[str, ...]
    source: str

    @property
    def mods(self) -> list[str]:
        return self.opcode.split(".")

    def has(self, *mods: str) -> bool:
        return all(mod in self.mods for mod in mods)

    def unsupported(self, why: str = "not carried over to Hopper") -> HopperError:
        return HopperError("unsupported", f"{self.source}: {why}")


def finder(prefixes: list[str]) -> re.Pattern:
    """A pattern for statements whose opcode starts with one of `prefixes` (regular expressions)."""
    return re.compile(
        r"(?<![\w.$%])(?P<guard>(?:@!?[\w%$.]+\s+)?)(?P<opcode>(?:"
        + "|".join(prefixes)
        + r")[\w.:]*)(?P<rest>[^;]*);"
    )


def statement(match: re.Match) -> Statement:
    operands = tuple(" ".join(o.split()) for o in split_operands(match["rest"]))
    source = " ".join(match.group(0).split())
    return Statement(match["guard"].strip(), match["opcode"], operands, source)


def elements(token: str) -> list[str]:
    """The operands in a vector `{a, b}`."""
    return split_operands(token.strip()[1:-1])


def wide(register: str) -> bool:
    """Whether a register holds 64 bits, by its name as NVVM names registers."""
    return register.startswith("%rd")


@dataclass
class Block:
    """PTX that takes the place of a statement: a scope with registers of its own."""

    lines: list[str] = field(default_factory=list)
    registers: list[tuple[str, str]] = field(default_factory=list)

    def register(self, kind: str) -> str:
        """A new register of PTX type `kind`, such as "b32"."""
        name = f"hopper_{kind}_{len(self.registers)}"
        self.registers.append((kind, name))
        return name

    def emit(self, line: str) -> None:
        self.lines.append(line + ";")

    def made(self, opcode: str, *operands: object, kind: str = "b32") -> str:
        """A new register with what an instruction makes of its operands."""
        found = self.register(kind)
        self.emit(f"{opcode} {', '.join(map(str, (found, *operands)))}")
        return found

    def narrow(self, value: str) -> str:
        """A 32-bit register or immediate with the low half of `value`."""
        return self.made("cvt.u32.u64", value) if wide(value) else value

    def address(self, token: str, kind: str = "b32") -> str:
        """A register with the address that `[base+offset]` names."""
        match = re.fullmatch(r"\[\s*([\w%$.]+)\s*(?:([+-])\s*(-?\w+))?\s*\]", token)
        if match is None:
            raise HopperError("unsupported", f"address {token}")
        base, sign, offset = match.groups()
        if not base.startswith("%") and not base.startswith("hopper_"):
            base = self.made(f"mov.{kind}", base, kind=kind)
        elif kind == "b32":
            base = self.narrow(base)
        if offset is None:
            return base
        by = f"{'-' if sign == '-' else ''}{offset}"
        return self.made(f"add.s{kind[1:]}", base, by, kind=kind)

    def shared(self, statement: Statement, token: str) -> str:
        """A 32-bit shared address; a generic one is converted if the opcode has no state space."""
        if any(m.startswith("shared") for m in statement.mods):
            return self.address(token)
        generic = self.address(token, "b64")
        return self.made("cvt.u32.u64", self.made("cvta.to.shared.u64", generic, kind="b64"))

    def as_32(self, value: str) -> str:
        """A 16-bit register as 32 bits."""
        return self.made("cvt.u32.u16", value)

    def flag(self, predicate: str, bit: int = 1) -> str:
        """A 32-bit register: `bit` where the predicate holds, else 0."""
        chosen = (0, bit) if predicate.startswith("!") else (bit, 0)
        return self.made("selp.b32", *chosen, predicate.lstrip("! "))

    def call(self, function: str, *arguments: tuple[str, str], result: str = "") -> str:
        """Call a device function; arguments are (type, value). Returns the result's register."""
        self.lines.append("{")
        for i, (kind, value) in enumerate(arguments):
            self.lines.append(f".param .{kind} hopper_in{i};")
            self.emit(f"st.param.{kind} [hopper_in{i}], {value}")
        names = ", ".join(f"hopper_in{i}" for i in range(len(arguments)))
        out = self.register(result) if result else ""
        if result:
            self.lines.append(f".param .{result} hopper_out;")
        self.emit(f"call {'(hopper_out), ' if result else ''}{function}, ({names})")
        if result:
            self.emit(f"ld.param.{result} {out}, [hopper_out]")
        self.lines.append("}")
        return out

    def text(self, guard: str, number: int) -> str:
        """The PTX of the block; it is skipped where the guard of the statement does not hold."""
        declared = [f".reg .{kind} {name};" for kind, name in self.registers]
        body = ["{", *declared, *self.lines, "}"]
        if guard:
            inverse = guard[2:] if guard.startswith("@!") else "!" + guard[1:]
            label = f"HOPPER_SKIP_{number}"
            body = [f"@{inverse} bra {label};", *body, f"{label}:"]
        return "\n\t".join(body)
