"""The profile of a timed launch for a kernel's author: phases, waits of each role, busy units."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from b200.chip.describe import mnemonic
from b200.clock import kind
from b200.clock.rates import PIPES
from b200.clock.timeline import Timeline
from b200.effects import Copies, Multiplies, Stores, TensorLoads
from b200.program.module import Instr
from b200.program.names import readable

SATURATED = 0.7  # of a unit's capacity, from which the kernel counts as bound by it
PIPE_NAMES = {  # of a sub-core
    "issue": "instruction issue",
    "alu": "ALU pipe",
    "fma": "FMA pipe",
    "xu": "special-function pipe",
}
ROLES = ("load", "MMA", "epilogue", "store")  # of a warp, in the order of its label
UNCOALESCED = 1.5  # bytes of whole sectors for a byte stored, from which a word is due
FEW_STORED = 4096  # bytes, below which it is not
REREAD = 16  # times that a byte from DRAM is read from the L2, from which a word is due
FEW_READ = 1 << 20  # bytes from DRAM, below which it is not
IDLE = 0.005  # share of the time, below which a unit is not listed
WIDTH = 110  # characters of a line of a profile


def floor_us(record: Timeline) -> float:
    """A lower bound in microseconds: the time of the bytes read at full DRAM bandwidth, or of the
    busiest tensor core's work, whichever is longer.
    """
    dram = record.chip.dram_bytes / record.c.dram_bandwidth * 1e6
    return max(dram, record.us(max(sm.pipe.busy for sm in record.sms)))


def utilisation(record: Timeline) -> dict[str, float]:
    """Unit -> share of the kernel's time (0 to 1) that it was busy. A unit of the SMs counts on the
    SM where it was busiest.
    """
    end, chip, used = record.end or 1.0, record.chip, record.sms
    return {
        "DRAM": chip.channel_busy / chip.channels / end,
        "L2": max(server.busy for server in chip.l2 + chip.ports) / end,
        "die-to-die fabric": max(server.busy for server in chip.fabric) / end,
        "tensor core": max(sm.pipe.busy for sm in used) / end,
        "tcgen05.cp": max(sm.pipe.copy_busy for sm in used) / end,
        "TMA": max(sm.tma.busy for sm in used) / end,
        "shared-memory fill": max(sm.fill.busy for sm in used) / end,
        "LSU": max(sm.lsu.busy for sm in used) / end,
        **{
            name: max(core.busy[PIPES.index(pipe)] for sm in used for core in sm.cores) / end
            for pipe, name in PIPE_NAMES.items()
        },
        "tensor-memory ports": max(core.tmem.busy for sm in used for core in sm.cores) / end,
    }


def phases(record: Timeline) -> list[tuple[str, float]]:
    """(name, microseconds) of each phase of a kernel, in order: medians over its CTAs."""
    marks = [
        ("start to first load issued", record.first_issue),
        ("first load issued to first data", record.first_data),
        ("first data to first MMA", record.first_mma),
        ("first to last MMA done", record.last_mma),
        ("last MMA done to last store", record.last_store),
    ]
    out: list[tuple[str, float]] = []
    before = 0.0
    for name, times in marks:
        at = record.median_us(times)
        if at is not None and at >= before:
            out.append((name, at - before))
            before = at
    out.append(("drain and uneven end", max(0.0, record.time_us - before)))
    return out


def bound_by(record: Timeline) -> str:
    """A text that says what limits the kernel."""
    name, share = max(utilisation(record).items(), key=lambda item: item[1])
    if share >= SATURATED:
        return f"{name} ({share:.0%} busy)"
    phase, longest = max(phases(record), key=lambda item: item[1])
    return f"latency: {phase} {longest:.1f} us ({name} {share:.0%} busy)"


def roles(record: Timeline) -> dict[int, str]:
    """Warp index -> its roles ("load", "MMA, epilogue"), by the instructions that it executed."""
    found: dict[int, str] = {}
    for index, instructions in record.executed.items():
        mine = {role_of(ins) for ins in instructions}
        if "epilogue" in mine or "MMA" in mine:
            mine.discard("store")  # of what the epilogue read, or of a flag
        found[index] = ", ".join(role for role in ROLES if role in mine) or "other"
    return found


def role_of(ins: Instr) -> str:
    """The role of a warp that executes an instruction: "load", "MMA", "epilogue", "store" or ""."""
    effect = ins.effect
    if isinstance(effect, Multiplies):
        return "MMA"
    if isinstance(effect, TensorLoads):
        return "epilogue"
    if isinstance(effect, Stores):
        return "store" if effect.space == "global" else ""
    if isinstance(effect, Copies) and not effect.operation and effect.source:
        return "store" if effect.target == "global" else "load"
    return ""


def waits(record: Timeline) -> list[tuple[str, float, str, str]]:
    """(role, microseconds a warp, what the role waits for, source line), longest first."""
    names, ctas = roles(record), max(1, len(record.ctas))
    warps: dict[str, set[int]] = defaultdict(set)
    for index, role in names.items():
        warps[role].add(index)
    sums: dict[tuple[str, str, str], float] = defaultdict(float)
    for key, clk in record.stalls.items():
        index, (ins, what) = key[0], record.places[key]
        role = names.get(index, "other")
        line = str(ins.loc) if ins.loc else mnemonic(ins)
        sums[(role, what, line)] += clk / ctas / max(1, len(warps[role]))
    rows = [(role, record.us(clk), what, line) for (role, what, line), clk in sums.items()]
    return sorted(rows, key=lambda row: -row[1])


def _stores(record: Timeline) -> list[str]:
    """Bytes that warps store and what that moves, with advice where it is much more."""
    asked, sent = record.asked_bytes, record.sent_bytes
    if not asked:
        return []
    lines = [f"  st to global memory: {asked / 1e6:.3f} MB in {sent / 1e6:.3f} MB of sectors"]
    if sent >= UNCOALESCED * asked and asked >= FEW_STORED:
        executed = [ins for each in record.executed.values() for ins in each]
        stores = (ins for ins in executed if isinstance(ins.effect, Stores))
        mine = [ins for ins in stores if role_of(ins) == "store"]
        where = list(dict.fromkeys(str(ins.loc) for ins in mine if ins.loc))
        at = f" ({', '.join(where[:2])})" if where else ""
        lines.append(
            f"  advice: the stores are uncoalesced, {sent / asked:.1f} times their bytes{at}:"
        )
        lines.append(
            "    let the lanes of a warp store neighbouring bytes, since memory moves whole sectors"
            " of 32, or go through shared memory and a TMA store"
        )
    return lines


def _reads(record: Timeline) -> list[str]:
    """Advice where the L2 delivers many times what comes from DRAM."""
    chip = record.chip
    if chip.dram_bytes < FEW_READ or chip.l2_bytes < REREAD * chip.dram_bytes:
        return []
    return [
        f"  advice: the L2 delivers {chip.l2_bytes / chip.dram_bytes:.0f} times the bytes that come"
        " from DRAM:",
        "    share tiles (larger ones, multicast), and let one lane of a warp issue a load:"
        " SASS issues it once a lane",
    ]


def _wrapped(lead: str, parts: Iterable[str]) -> list[str]:
    """Parts of a list in lines of at most WIDTH characters."""
    lines = [f"  {lead}"]
    for part in parts:
        if lines[-1].endswith(":") or len(lines[-1]) + len(part) + 2 <= WIDTH:
            lines[-1] += f"{' ' if lines[-1].endswith(':') else ', '}{part}"
        else:
            lines[-1] += ","
            lines.append(f"    {part}")
    return lines


def text(record: Timeline) -> str:
    """The profile of one launch as lines for a person."""
    launch, chip = record.launch, record.chip
    end = record.time_us or 1e-9
    mma = sum(sm.pipe.count for sm in record.sms)
    swept = record.options.sweep_constants
    ends = f" (constants at their ends {record.low_us:.2f} .. {record.high_us:.2f})" * swept
    lines = [
        f"kernel {readable(launch.kernel)}: modelled {record.time_us:.2f} us{ends} at"
        f" {record.ghz} GHz; {kind.of(record)}",
        f"  grid {launch.grid}, cluster {launch.cluster}, block {launch.block}; "
        f"{len(record.ctas)} {'CTA' if len(record.ctas) == 1 else 'CTAs'} on "
        f"{record.used_sms} of 148 SMs",
        f"  {launch.smem_bytes:,} bytes of shared memory a CTA; {record.tmem_columns} "
        f"tensor-memory columns; "
        f"{record.registers}",
        f"  DRAM {chip.dram_bytes / 1e6:.1f} MB, {chip.dram_bytes / end / 1e6:.2f} TB/s; L2 "
        f"{chip.l2_bytes / 1e6:.1f} MB, "
        f"{chip.l2_bytes / end / 1e6:.2f} TB/s; stored {chip.written_bytes / 1e6:.2f} MB; {mma} "
        f"MMAs",
        f"  bound by {bound_by(record)}; floor {floor_us(record):.2f} us",
        *_wrapped("phases, us, median over CTAs:", (f"{n} {us:.2f}" for n, us in phases(record))),
        *_wrapped(
            "units, share of the kernel's time that the busiest of each kind works:",
            (f"{n} {share:.0%}" for n, share in utilisation(record).items() if share >= IDLE),
        ),
        *_reads(record),
        *_stores(record),
        f"  {'role':14} {'us a warp':>9}  waits for            where",
    ]
    for role, clk, what, line in waits(record)[:16]:
        if clk >= 0.005:
            lines.append(f"  {role:14} {clk:9.2f}  {what:20} {line}")
    return "\n".join(lines)
