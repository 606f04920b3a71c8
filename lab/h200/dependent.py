"""What programmatic dependent launch saves between two launches of a queue.

    python -m lab h200 dependent [--out FILE]
    python -m lab dependent [--measured FILE] [--out FILE]

On an H200 the first measures it. The second needs no GPU: it models the same launches by the clock
of an H200, beside what was measured.

A CTA of 192 threads does `before` steps (a product and a sum, one after the other), executes
griddepcontrol.wait, and does `work` steps. off: launched without the attribute. The others are with
it: no trigger (griddepcontrol.launch_dependents), the trigger as the first instruction, just
before the wait, or as the last one. us: a launch, of many in a queue.
"""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from b200 import records
from b200.clock import digest, overlap
from b200.clock.call_time import QUEUE_MORE_US
from b200.clock.devices import H200
from b200.command_line import Parser, writable
from b200.hardware import SMEM_RESERVED
from b200.hopper.rewrite import TARGET
from lab.h200.probe import command

FILE = Path(__file__).resolve().parents[2] / "docs" / "results" / "h200-dependent.json"
THREADS, CALLS, MODELLED = 192, 300, 30
TRIGGERS = ("none", "first", "before the wait", "last")  # by the kernel's parameter `early`
HOW = ("off", *TRIGGERS)
PLACES = (  # CTAs of a cluster, of a grid, KB of shared memory of a CTA
    *((1, 64, 216), (1, 132, 8), (1, 132, 216), (1, 528, 216)),
    *((4, 64, 216), (4, 132, 8), (4, 132, 216)),
)
STEPS = ((0, 20), (0, 2000), (250, 1000), (500, 1000), (500, 2000))  # before, work


@dataclass(frozen=True)
class Asked:
    cluster: int
    grid: int
    smem_kb: int
    before: int
    work: int


@dataclass(frozen=True)
class Measured(Asked):
    how: str
    us: float


def _loop(name: str, count: str) -> str:
    """Steps by fours, as nvcc unrolls them; `count` is a multiple of four."""
    step = "fma.rn.f32 %f1, %f1, 0f3F800347, 0f3F000000;\n    "
    return f"""setp.eq.s32 %p1, {count}, 0; @%p1 bra {name}_END;
    {name}: {step * 4}sub.s32 {count}, {count}, 4;
    setp.ne.s32 %p1, {count}, 0; @%p1 bra {name};
    {name}_END:"""


def _trigger(number: int) -> str:
    return f"setp.eq.s32 %p1, %r2, {number}; @%p1 griddepcontrol.launch_dependents;"


KERNEL = f""".version 8.6
.target {TARGET}
.address_size 64
.extern .shared .align 16 .b8 dyn[];
.visible .entry k(.param .u64 out, .param .u32 work, .param .u32 early, .param .u32 before)
    .reqntid {THREADS}, 1, 1
{{
    .reg .pred %p<3>; .reg .b32 %r<8>; .reg .f32 %f<3>; .reg .b64 %rd<3>;
    ld.param.u64 %rd1, [out]; ld.param.u32 %r1, [work]; ld.param.u32 %r2, [early];
    ld.param.u32 %r3, [before]; mov.u32 %r4, %tid.x; cvt.rn.f32.u32 %f1, %r4;
    {_trigger(1)}
    {_loop("BEFORE", "%r3")}
    {_trigger(2)}
    griddepcontrol.wait;
    {_loop("WORK", "%r1")}
    {_trigger(3)}
    setp.eq.f32 %p2, %f1, 0f4640E400; @!%p2 bra END;
    ld.shared.f32 %f2, [dyn]; add.f32 %f1, %f1, %f2; st.global.f32 [%rd1], %f1;
    END: ret;
}}
"""


def asked() -> Iterator[Asked]:
    for place in PLACES:
        for steps in STEPS:
            yield Asked(*place, *steps)


def _parameters(of: Asked, how: str, out: int) -> bytes:
    early = TRIGGERS.index(how) if how in TRIGGERS else 0
    return struct.pack("<QIII", out, of.work, early, of.before)


# --- on an H200 -----------------------------------------------------------------------------------
def measure() -> list[Measured]:
    import torch

    from b200.hopper.run import Image, Shape, places_of
    from b200.hopper.timing import queue_us

    image = Image(KERNEL, "k", places_of(KERNEL, "k"))
    out = torch.zeros(1, device="cuda")
    found = []
    for of in asked():
        block, cluster = (THREADS, 1, 1), (of.cluster, 1, 1)
        for how in HOW:
            shape = Shape((of.grid, 1, 1), block, cluster, of.smem_kb << 10, how != "off")
            image.prepare(shape)
            params = _parameters(of, how, out.data_ptr())
            us = queue_us(lambda _, shape=shape, params=params: image.enqueue(shape, params), CALLS)
            found.append(Measured(**asdict(of), how=how, us=us))
    return found


# --- by the clock ---------------------------------------------------------------------------------
# Of the kernel itself what was measured without the attribute is taken: how well the clock knows a
# chain of products is another question. A step takes (6.07 - 1.60) us / 1980, and two CTAs on an SM
# (33 clusters of 4, of which 30 find SMs of their own) (6.33 - 1.60) / (6.07 - 1.60) times as long.
# In front of the first step and behind the last one the clock has 0.04 and 0.06 us.
STEP_US, FRONT_US, BEHIND_US, DEMAND = 2.258e-3, 0.04, 0.06, 1.058 / 2


def grid_of(of: Asked, how: str) -> overlap.Grid:
    wait = FRONT_US + of.before * STEP_US
    done = wait + of.work * STEP_US
    trigger = {"first": FRONT_US, "before the wait": wait, "last": done}.get(how)
    part = overlap.Part(done + BEHIND_US, wait, trigger)
    need = (of.smem_kb << 10) + SMEM_RESERVED, THREADS, 1, 0
    parts = (part,) * (of.grid // of.cluster)
    return overlap.Grid(parts, of.cluster, need, how != "off", DEMAND, 0.0)


def model(of: Asked, how: str) -> float:
    """Modelled microseconds of a launch, the mean of many."""
    # The constants of an H200 have the gap in a graph; these calls come from a queue.
    gap = H200.constants("nominal", {}).launch_gap_us + QUEUE_MORE_US
    c = H200.constants("nominal", {"launch_gap_us": gap})
    grids = [grid_of(of, how)] * MODELLED
    return overlap.Queue(grids, H200.placement(), c, H200.clock_ghz).run()[-1] / MODELLED


def model_all() -> list[Measured]:
    return [Measured(**asdict(of), how=how, us=model(of, how)) for of in asked() for how in HOW]


# --- tables ---------------------------------------------------------------------------------------
def table(results: list[Measured], beside: list[Measured] | None = None) -> str:
    """A line for each kind of launch. beside: measured, in front of what is modelled."""
    lines = ["| cluster | grid | KB | before | work | " + " | ".join(HOW) + " |", "|---" * 10 + "|"]
    for i in range(0, len(results), len(HOW)):
        row, r = results[i : i + len(HOW)], results[i]
        cells = [f"{m.us:.2f}" for m in row]
        if beside is not None:
            pairs = zip(beside[i : i + len(HOW)], row)
            cells = [f"{real.us:.2f}, {m.us:.2f} ({m.us / real.us - 1:+.0%})" for real, m in pairs]
        first = f"| {r.cluster} | {r.grid} | {r.smem_kb} | {r.before} | {r.work} | "
        lines.append(first + " | ".join(cells) + " |")
    return "\n".join(lines)


def read(path: Path = FILE) -> list[Measured]:
    return [Measured(**row) for row in json.loads(path.read_text())["results"]]


def main(argv: list[str]) -> int:
    parser = Parser("python -m lab dependent", (__doc__ or "").splitlines()[0])
    parser.add_argument("--measured", type=Path, default=FILE, metavar="FILE", help="of an H200")
    parser.add_argument("--out", type=writable, metavar="FILE", help="write the times as JSON")
    options = parser.parse_args(argv)
    measured, modelled = read(options.measured), model_all()
    print(f"us a launch: measured on an H200, modelled (error)\n{table(modelled, measured)}")
    off = [abs(m.us / real.us - 1) for m, real in zip(modelled, measured, strict=True)]
    beyond = sum(error > 0.15 for error in off)
    print(f"\n{len(off)} times: mean error {sum(off) / len(off):.1%}, {beyond} beyond 15 %")
    if options.out:
        made = {"made_by": digest.made_by(), "results": [asdict(m) for m in modelled]}
        records.write(options.out, made)
    return 0


if __name__ == "__main__":
    sys.exit(command(__doc__, measure, table))
