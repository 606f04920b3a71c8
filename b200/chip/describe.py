"""Texts for the user: faults, deadlocks, counters. Reads the machine's state, changes nothing."""

from __future__ import annotations

import traceback
from collections import Counter
from typing import TYPE_CHECKING

from b200.chip.hang import explain, headline
from b200.chip.hang_cause import instruction
from b200.chip.polls import Poll
from b200.program.module import Instr
from b200.program.names import readable
from b200.registry import lanes_text

if TYPE_CHECKING:
    from b200.chip.fragment import Fragment
    from b200.chip.launch import Launch
    from b200.chip.machine import Machine
    from b200.program.translated import Translated


def count(code: Translated, hits: list[int]) -> dict[str, int]:
    """Warp instructions executed, by mnemonic (the opcode's leading words)."""
    out: Counter[str] = Counter()
    for block, n in zip(code.structure, hits, strict=True):
        if n:
            for op in block.ops:
                out[mnemonic(op.ins)] += n
    return dict(out.most_common())


# The most words of a mnemonic, where it is not one.
_WORDS: dict[str, int] = {
    **dict.fromkeys(("st", "ld", "tcgen05", "elect", "shfl", "vote", "red", "atom"), 2),
    **dict.fromkeys(("cp", "mbarrier", "barrier", "bar", "fence"), 4),
}


def mnemonic(ins: Instr) -> str:
    """The opcode up to its first type or qualifier: "tcgen05.mma", "add"."""
    first = ins.mods[0]
    words = [first]
    for mod in ins.mods[1 : _WORDS.get(first, 1)]:
        if "::" in mod or mod[0].isdigit() or mod in ("sync", "aligned") and first == "tcgen05":
            break
        words.append(mod)
    return ".".join(words)


def instruction_of(code: Translated, warp: Fragment, error: BaseException) -> Instr | None:
    """The instruction whose generated line raised `error`."""
    filename = f"<{code.kernel.name}>"
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.filename == filename:
            line = frame.lineno or 0
            while line > 0 and line not in code.lines:
                line -= 1
            return code.lines.get(line)
    return code.structure[warp.pc].ops[0].ins


def place(ins: Instr | None) -> str:
    """Source line of an instruction, with the lines that called it."""
    if ins is None or ins.loc is None:
        return "(no line information)"
    called = called_from(ins)
    return f"{ins.loc} ({called})" if called else str(ins.loc)


def call(ins: Instr | None) -> str:
    """The source line to show for an instruction: if it is in a helper function or in a library,
    the line of the program that calls it; else its own line.
    """
    if ins is None or ins.loc is None:
        return "(no line information)"
    frames = ins.loc.chain()
    outside = [frame for frame in frames if frame.file != frames[0].file]
    return str(outside[0] if outside else frames[1] if len(frames) > 1 else frames[0])


def called_from(ins: Instr | None) -> str:
    """ "in load, called by kernel at file:line"; "" where no helper is known."""
    if ins is None or ins.loc is None or ins.loc.inlined_at is None:
        return ""
    parts = [f"in {ins.loc.function}"] if ins.loc.function else []
    for loc in ins.loc.chain()[1:]:
        parts.append(f"called by {loc.function} at {loc}" if loc.function else f"inlined at {loc}")
    return ", ".join(parts)


def who(warp: Fragment) -> str:
    cta = warp.cta
    rank = f", rank {cta.rank} of its cluster" if len(cta.cluster.ctas) > 1 else ""
    return f"CTA {cta.index}{rank}, warp {warp.index}, {lanes_text(warp.mask)}"


def at_work(machine: Machine) -> list[str]:
    """The places of those warps of the running launch that wait for nothing: one line for each
    place, the place with most warps first; empty if there are no such warps.
    """
    places: dict[str, list[Fragment]] = {}
    for warp in machine.fragments():
        if warp.state.live and warp.waits_for is None:
            ins = machine.code.structure[warp.pc].ops[0].ins
            places.setdefault(place(ins), []).append(warp)
    lines: list[str] = []
    for where, fragments in sorted(places.items(), key=lambda item: -len(item[1])):
        others = f" and {len(fragments) - 1} more" if len(fragments) > 1 else ""
        lines.append(f"{where} ({who(fragments[0])}{others})")
    return lines


def fault(machine: Machine, launch: Launch, fragment: Fragment, error: BaseException) -> str:
    """The report of a fault: an instruction that hardware would not have executed."""
    ins = instruction_of(machine.code, fragment, error)
    return (
        f"{place(ins)}: {error}\n"
        f"  by {who(fragment)}\n"
        f"  PTX: {ins.text if ins else '?'}\n"
        f"  kernel {readable(launch.kernel)}, grid {launch.grid}, block {launch.block}, cluster "
        f"{launch.cluster}"
    )


def internal(machine: Machine, launch: Launch, fragment: Fragment, error: BaseException) -> str:
    """The report of a failure of the emulator itself: it says where, so that it can be mended."""
    trace = "".join(traceback.format_exception(error)[-3:])
    return (
        "internal: the emulator itself failed on this instruction, which says nothing of the"
        " program. Please report these lines with the kernel's PTX and the versions of b200,"
        f" Python and nvidia-cutlass-dsl.\n{fault(machine, launch, fragment, error)}\n{trace}"
    )


def waits_for_host(machine: Machine) -> str | None:
    """What is said where a fragment polls memory that the host shares; None if none does."""
    waiting = (warp.waits_for for warp in machine.fragments())
    for poll in (waits for waits in waiting if isinstance(waits, Poll)):
        read = poll.read
        if read is None or read.cta is not None:
            continue
        region = machine.memory.find(read.address, 1)
        if region is not None and region.shared:
            return (
                f"{place(poll.ins)}: the kernel waits for {poll.describe()}. The host shares this "
                "memory, and here it goes on only when a launch has ended"
            )
    return None


def deadlock(machine: Machine, launch: Launch) -> str:
    """The report of a deadlock: the likely causes; then an entry for each different wait, with the
    fragments in it; then the latest events at the barriers.
    """
    groups: dict[tuple[str, str, str], list[Fragment]] = {}
    for warp in machine.fragments():
        ins, waits_for = instruction(machine, warp), warp.waits_for
        text = waits_for.describe() if waits_for is not None else "lanes of its own warp"
        groups.setdefault((place(ins), ins.text, text), []).append(warp)
    lines = [
        f"deadlock: no warp can proceed in {readable(launch.kernel)}, grid {launch.grid}, cluster "
        f"{launch.cluster}"
    ]
    causes, history = explain(machine)
    lines[0] += headline(machine)
    lines += [*causes, *machine.limits.bounds(), "who waits for what:"]
    for (line, text, waits), fragments in list(groups.items())[:24]:
        more = f" and {len(fragments) - 1} more alike" if len(fragments) > 1 else ""
        lines += [
            f"  {line}: {who(fragments[0])}{more}",
            f"    waits for {waits}",
            f"    PTX: {text}",
        ]
    if len(groups) > 24:
        lines.append(f"  ... {len(groups) - 24} further waits")
    return "\n".join(lines + history)
