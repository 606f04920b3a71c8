"""Parses PTX text into a Program: registers, instructions with source lines, labels, variables.

Source: PTX ISA chapters 4 and 5. Inline-asm scopes `{ .reg ...; LAB: ... }` have their own
registers and labels; both are renamed so that names are unique in the kernel. Lines inside a scope
count from where the asm string starts, so a scope keeps the line of the instruction before it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from b200.errors import Unsupported
from b200.isa import grammar
from b200.program import calls, inlining, module, unread, wmma
from b200.program.device_runtime import with_device_runtime
from b200.program.tokens import declaration, immediate, is_number, split_operands

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
_ENTRY = re.compile(r"\.entry\s+([\w$]+)\s*(\(.*?\))?\s*([^{;]*)\{", re.S)
_LOC = re.compile(r"\.loc\s+(\d+)\s+(\d+)\s+(\d+)([^\n]*)")
_INLINE_ASM = re.compile(r"// begin inline asm\n.*?// end inline asm", re.S)
_FURTHER_LOCS = re.compile(r"(?<=\n)\s*\.loc\s[^\n]*")
_INLINED = re.compile(r"inlined_at\s+(\d+)\s+(\d+)\s+(\d+)")
_MODULE_VARIABLE = re.compile(
    r"^[ \t]*(?:\.(?:extern|visible|weak|common)\s*)*\.(?:shared|global|const)[\s.][^;]*;", re.M
)
_SPACE = re.compile(r"\s+")
_TOKEN = re.compile(r"\{|\}|;|\.loc\s[^\n]*|([\w$%]+)\s*:(?!:)|[^{};\s]+")
_ADDRESS = re.compile(r"([\w$%.]+?)\s*(?:([+-])\s*(-?\s*\w+))?")
_LABEL = re.compile(r"([\w$%]+)\s*:(?!:)")
_REG = re.compile(r"\.reg\s*(?:\.v([24])\s*)?\.(\w+)\s+(.*)", re.S)
_COMPONENTS = ("xr", "yg", "zb", "wa")  # names of a vector's elements (PTX ISA 6.4.3)
_GUARD = re.compile(r"@(!?)\s*([\w$%.]+)\s+")
_CALL = re.compile(r"(?:\(([^)]*)\)\s*,\s*)?([\w$]+)\s*(?:,\s*\(([^)]*)\))?", re.S)
_CALL_PARAMETER = re.compile(r"\.param\s*\.(b32|b64|u32|u64|s32|s64)\s+([\w$%]+)")
# PTX Writer's Guide, "System Calls"; and what device_runtime.py calls
SYSTEM_CALLS = (
    "vprintf",
    "__assertfail",
    "malloc",
    "free",
    "b200_child_grid",
    "b200_launch_child_grid",
)
_RESULTS = {"vprintf": "b32", "malloc": "b64", "b200_child_grid": "b64"}
_RESULTS["b200_launch_child_grid"] = "b32"
_SPECIALS = frozenset(
    """
    tid ntid laneid warpid nwarpid ctaid nctaid smid nsmid gridid clusterid nclusterid
    cluster_ctaid cluster_nctaid cluster_ctarank cluster_nctarank is_explicit_cluster lanemask_eq
    lanemask_le lanemask_lt lanemask_ge lanemask_gt clock clock_hi clock64 globaltimer
    globaltimer_lo globaltimer_hi dynamic_smem_size total_smem_size aggr_smem_size
    current_graph_exec reserved_smem_offset_begin reserved_smem_offset_end reserved_smem_offset_cap
    reserved_smem_offset_0 reserved_smem_offset_1
    """.split()
    + [f"envreg{i}" for i in range(32)]
)


def parse(text: str) -> module.Program:
    """Parse a PTX module. Raises Unsupported for a call of a function that it does not have."""
    source = text
    files = {int(n): path for n, path in re.findall(r'\.file\s+(\d+)\s+"([^"]*)"', text)}
    text = _COMMENT.sub("", _INLINE_ASM.sub(_without_own_lines, text))
    text = inlining.inlined(with_device_runtime(text))
    target = re.search(r"\.target\s+([\w]+)", text)
    version = re.search(r"\.version\s+(\d+)\.(\d+)", text)
    isa = (int(version[1]), int(version[2])) if version else None
    program = module.Program(target.group(1) if target else "", {}, {}, source, isa=isa)
    entries = list(_ENTRY.finditer(text))
    program.functions = (*inlining.defined(text), *(entry.group(1) for entry in entries))
    head_end = entries[0].start() if entries else len(text)
    for match in _MODULE_VARIABLE.finditer(text[:head_end]):
        if variable := declaration(match.group(0).strip().rstrip(";")):
            program.variables[variable.name] = variable
    for entry in entries:
        kernel = module.Kernel(entry.group(1))
        _params(kernel, entry.group(2) or "")
        for name, values in re.findall(r"\.(\w+)((?:\s+\d+\s*,?)*)", entry.group(3)):
            kernel.directives[name] = tuple(int(v) for v in re.findall(r"\d+", values))
        _Body(kernel, program, files).parse(text, entry.end())
        unread.drop(kernel)
        program.kernels[kernel.name] = kernel
    return program


def _without_own_lines(match: re.Match[str]) -> str:
    """Inline assembly with the first of its locations. LLVM counts the lines of the assembly on
    from the source line that it stands at, so the others name lines below that one.
    """
    asm, first = match.group(0), _FURTHER_LOCS.search(match.group(0))
    if first is None:
        return asm
    return asm[: first.end()] + _FURTHER_LOCS.sub("", asm[first.end() :])


def _declared(text: str) -> module.Variable:
    """The variable of a declaration; Unsupported for a text that is none."""
    if (found := declaration(text)) is None:
        raise Unsupported(f"this declaration is not modelled: {text}")
    return found


def _params(kernel: module.Kernel, text: str) -> None:
    offset = 0
    for item in filter(str.strip, text.strip().strip("()").split(",")):
        declared = _declared(item.strip())
        offset = -(-offset // declared.align) * declared.align
        declared.offset = offset
        offset += declared.size
        kernel.params.append(declared)
        kernel.variables[declared.name] = declared


@dataclass
class _Scope:
    """Names declared between a pair of braces; `suffix` makes them unique in the kernel."""

    suffix: str
    registers: dict[str, module.Reg] = field(default_factory=dict[str, module.Reg])
    vectors: dict[str, module.Vec] = field(default_factory=dict[str, module.Vec])
    ranges: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    labels: set[str] = field(default_factory=set[str])
    has_lines: bool = False  # it is the body of a function


class _Body:
    """Parser of one kernel's body."""

    def __init__(self, kernel: module.Kernel, program: module.Program, files: dict[int, str]):
        self.kernel, self.program, self.files = kernel, program, files
        self.scopes = [_Scope("")]
        self.loc: module.Loc | None = None
        # (file, line, column) -> the place with what it is inlined into, which `inlined_at` names
        self.places: dict[tuple[int, int, int], module.Loc] = {}
        self.count = 0
        self.call_parameters: set[str] = set()  # `.param` variables of calls: registers here

    def parse(self, text: str, at: int) -> None:
        depth_labels = self._scope_labels(text, at)
        while True:
            while text[at].isspace() or text[at] == ";":
                at += 1
            if text[at] == "{":
                self.count += 1
                scope = _Scope(f"@{self.count}")
                scope.labels = depth_labels.get(self.count, set())
                self.scopes.append(scope)
                at += 1
            elif text[at] == "}":
                if len(self.scopes) == 1:
                    return
                self.scopes.pop()
                at += 1
            elif text.startswith(".loc", at) and text[at + 4].isspace():
                match = _LOC.match(text, at)
                if match is None:
                    raise Unsupported(f"this .loc cannot be read: {text[at : at + 80]!r}")
                if len(self.scopes) == 1 or self.scopes[-1].has_lines:
                    self.loc = self._location(match)
                at = match.end()
            elif match := _LABEL.match(text, at):
                self.kernel.body.append(module.Label(self._label(match.group(1))))
                at = match.end()
                at = self._branch_targets(text, at, match.group(1))
            else:
                end = text.index(";", at)
                self._statement(text[at:end].strip())
                at = end + 1

    def _scope_labels(self, text: str, at: int) -> dict[int, set[str]]:
        """Labels each scope declares, by scope number, so that forward branches resolve."""
        labels: dict[int, set[str]] = {}
        stack, count = [0], 0
        start = True
        while True:
            match = _TOKEN.search(text, at)
            if match is None:
                raise Unsupported(f"kernel {self.kernel.name} has no closing brace")
            word = match.group(0)
            if word == "{" and start:
                count += 1
                stack.append(count)
            elif word == "{":  # an operand vector
                at = text.index("}", match.end()) + 1
                continue
            elif word == "}":
                stack.pop()
                if not stack:
                    return labels
            elif match.group(1) and start:
                labels.setdefault(stack[-1], set()).add(match.group(1))
            elif word != ";" and not (word.startswith(".loc") and word[4:5].isspace()):
                start = False
            if word in ("{", "}", ";"):
                start = True
            at = match.end()

    def _branch_targets(self, text: str, at: int, name: str) -> int:
        match = re.compile(r"\s*\.branchtargets\s+([^;]*);").match(text, at)
        if match is None:
            return at
        self.kernel.body.pop()
        targets = split_operands(match.group(1))
        self.kernel.branch_targets[name] = tuple(map(self._label, targets))
        return match.end()

    def _location(self, match: re.Match[str]) -> module.Loc | None:
        line = int(match.group(2))
        if line == 0:
            return self.loc
        inlined = _INLINED.search(match.group(4) or "")
        outer = None
        if inlined:
            number, row, column = map(int, inlined.groups())
            outer = self.places.get((number, row, column))
            outer = outer or module.Loc(self.files.get(number, "?"), row)
        file = self.files.get(int(match.group(1)), "?")
        found: module.Loc | None = None
        for call in reversed(calls.chain(file, line, int(match.group(3)))):
            found = module.Loc(call.file, call.line, found, call.function)
        if found is not None:
            return found
        place = module.Loc(file, line, outer)
        self.places[int(match.group(1)), line, int(match.group(3))] = place
        return place.own()

    def _label(self, name: str) -> str:
        for scope in reversed(self.scopes[1:]):
            if name in scope.labels:
                return name + scope.suffix
        return name

    def _statement(self, text: str) -> None:
        if not text:
            return
        if text.startswith(".reg"):
            self._declare_registers(text)
        elif match := _CALL_PARAMETER.fullmatch(text):
            scope, (kind, name) = self.scopes[-1], match.groups()
            scope.registers[name] = self._new(name + scope.suffix, kind)
            self.call_parameters.add(name + scope.suffix)
        elif text.startswith((".local", ".shared", ".param")):
            declared = _declared(text)
            self.kernel.variables[declared.name] = declared
        elif f"{text};" == inlining.MARK:
            self.scopes[-1].has_lines = True
        elif text.startswith((".pragma", ".file", ".section", ".callprototype", ".branchtargets")):
            pass
        elif (lines := wmma.written_out(text, self._is_narrow)) is None:
            self.kernel.body.append(self._instruction(text))
        else:
            self.scopes.append(_Scope(f"@wmma{len(self.kernel.body)}"))
            for line in lines:
                self._statement(line)
            self.scopes.pop()

    def _is_narrow(self, name: str) -> bool:
        found = self._register(name)
        return found is not None and module.TYPE_BITS.get(found.type) == 32

    def _declare_registers(self, text: str) -> None:
        found = _REG.match(text)
        if found is None:
            raise Unsupported(f"this declaration is not modelled: {text}")
        size, kind, names = found.groups()
        scope = self.scopes[-1]
        for name in split_operands(names):
            if size:
                self._declare_vector(name, int(size), kind)
            elif match := re.fullmatch(r"([\w$%]+)<(\d+)>", name):
                scope.ranges.append((match.group(1), kind))
            else:
                scope.registers[name] = self._new(name + scope.suffix, kind)

    def _declare_vector(self, name: str, size: int, kind: str) -> None:
        scope = self.scopes[-1]
        elements: list[module.Reg] = []
        for letters in _COMPONENTS[:size]:
            elements.append(self._new(f"{name}.{letters[0]}{scope.suffix}", kind))
            scope.registers |= {f"{name}.{letter}": elements[-1] for letter in letters}
        scope.vectors[name] = module.Vec(tuple(elements))

    def _vector(self, name: str) -> module.Vec | None:
        return next((s.vectors[name] for s in reversed(self.scopes) if name in s.vectors), None)

    def _new(self, name: str, kind: str) -> module.Reg:
        reg = module.Reg(name, kind)
        self.kernel.registers[name] = reg
        return reg

    def _register(self, name: str) -> module.Reg | None:
        for scope in reversed(self.scopes):
            if name in scope.registers:
                return scope.registers[name]
            for prefix, kind in scope.ranges:
                if name.startswith(prefix) and name[len(prefix) :].isdigit():
                    scope.registers[name] = self._new(name + scope.suffix, kind)
                    return scope.registers[name]
        return None

    def _instruction(self, text: str) -> module.Instr:
        source = _SPACE.sub(" ", text)
        pred, negated = None, False
        if match := _GUARD.match(text):
            negated, pred = bool(match.group(1)), self._register(match.group(2))
            text = text[match.end() :].strip()
        parts = text.split(None, 1)
        opcode, rest = parts[0], parts[1] if len(parts) > 1 else ""
        if "{" in opcode:  # "op{a,b}" cannot occur; "op [x]" may be written "op[x]"
            opcode, rest = opcode.split("{", 1)[0], "{" + opcode.split("{", 1)[1] + rest
        if opcode.split(".")[0] == "call":
            if opcode not in ("call", "call.uni"):
                raise Unsupported(f"{self.loc}: {source}: call has no such modifier")
            return self._call(rest, pred, negated, source)
        if found := grammar.match(opcode):
            opcode = found.name
        kind = opcode.split(".")[-1]
        operands: list[module.Operand] = []
        dual = False
        for i, token in enumerate(split_operands(rest)):
            if i == 0 and "|" in token and not token.startswith("["):
                dual, token = True, f"{{{token.replace('|', ',')}}}"
            operands.append(self._operand(token, kind))
        words = opcode.split(".")
        if words[1:2] == ["param"] and (moved := self._call_parameter(operands)):
            opcode, operands = f"mov.{kind}", moved
        if words[0] in ("addc", "subc", "madc"):
            operands.append(self._carry())
        if "cc" in words:
            operands[0], dual = module.Vec((operands[0], self._carry())), True
        return module.Instr(opcode, tuple(operands), pred, negated, self.loc, source, dual)

    def _call(self, rest: str, pred: module.Reg | None, negated: bool, source: str) -> module.Instr:
        """A call. The mnemonic of one that the driver provides becomes `call.NAME`; any other is
        refused by its name where it is executed (chip/memory/system_calls.py).
        """
        match = _CALL.fullmatch(rest.strip())
        if match is None or match.group(2) not in SYSTEM_CALLS:
            opcode = "call" if match is None else f"call.{match.group(2)}"
            return module.Instr(opcode, (), pred, negated, self.loc, source)
        result, name, arguments = match.groups()
        operands = [self._operand(t, "b64") for t in split_operands(arguments or "")]
        if name in _RESULTS:
            kind = _RESULTS[name]
            operands.insert(0, self._operand(result.strip(), kind) if result else module.SINK)
        return module.Instr(f"call.{name}", tuple(operands), pred, negated, self.loc, source)

    def _call_parameter(self, operands: list[module.Operand]) -> list[module.Operand] | None:
        """Operands of the move that an access of a call's parameter is; None for any other."""
        for i, operand in enumerate(operands):
            base = operand.base if isinstance(operand, module.Addr) else None
            if isinstance(base, module.Reg) and base.name in self.call_parameters:
                return [*operands[:i], base, *operands[i + 1 :]]
        return None

    def _carry(self) -> module.Reg:
        """The condition code of extended-precision arithmetic (PTX ISA 9.7.2), as a predicate."""
        return self.kernel.registers.get("%CC.CF") or self._new("%CC.CF", "pred")

    def _operand(self, token: str, kind: str) -> module.Operand:
        if token == "_":
            return module.SINK
        if token.startswith("{"):
            return module.Vec(tuple(self._operand(t, kind) for t in split_operands(token[1:-1])))
        if token.startswith("["):
            return self._address(token[1:-1].strip())
        if token.startswith("!"):
            if (reg := self._register(token[1:].strip())) is None:
                raise Unsupported(f"operand {token} is not a register")
            return module.Not(reg)
        if token.startswith("-") and (reg := self._register(token[1:].strip())):
            raise Unsupported(f"a register with a minus, -{reg.name}, is not modelled")
        if (reg := self._register(token) or self._vector(token)) is not None:
            return reg
        if token.startswith("%"):
            if token[1:].split(".")[0] not in _SPECIALS:
                raise Unsupported(f"special register {token} is not modelled")
            return module.Special(token[1:])
        if is_number(token):
            return module.Imm(immediate(token, kind))
        return module.Sym(self._label(token))

    def _address(self, text: str) -> module.Addr:
        pieces = split_operands(text)
        coords = ()
        if len(pieces) > 1:
            coords = tuple(self._operand(t, "s32") for t in split_operands(pieces[1].strip()[1:-1]))
        match = _ADDRESS.fullmatch(pieces[0].strip())
        if match is None:
            raise Unsupported(f"the address [{text}] is not modelled")
        base = self._operand(match.group(1), "b64")
        if not isinstance(base, (module.Reg, module.Sym, module.Imm)):
            raise Unsupported(f"the address [{text}] is not modelled")
        offset = immediate(match.group(3).replace(" ", "")) if match.group(3) else 0
        return module.Addr(base, -offset if match.group(2) == "-" else offset, coords)
