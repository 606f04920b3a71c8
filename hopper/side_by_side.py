"""Load pipelines and epilogues of two or more packed programs, side by side on a Hopper GPU.

    python -m hopper pipeline ours.npz theirs.npz [more.npz] [--rounds N] [--out FILE]
    python -m hopper pipeline ours/ theirs/                         pack after pack of one name
    python -m hopper pipeline --assemble ours.npz theirs.npz        without a GPU: can it be carried

A pack holds the launches of one call (`python -m hopper pack`, `python -m lab packs make`).
Loads, barriers, schedule and epilogue are the program's own; MMAs and copies to tensor memory are
left out, so a stage is free as soon as it has landed, and an epilogue works on numbers that mean
nothing. Inputs are cold: copies of them that together exceed L2 take turns. Programs take turns,
too, round by round; a ratio is of two times of one round. What is printed is of this GPU and no
time of a B200.

A program that Hopper cannot run is refused with the instruction. CTA pairs: pair_loads.py.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from math import prod
from pathlib import Path

from b200.command_line import Parser, writable
from b200.occupancy import ctas_per_sm
from hopper import toolchain
from hopper.errors import HopperError
from hopper.pack import Pack, load
from hopper.rewrite import Retargeted, loads_and_epilogue
from hopper.run import HopperKernel, carried_over, facts_of, places_of, require_gpu
from hopper.run_pack import buffers_of
from hopper.this_gpu import describe, write
from hopper.timing import between_events, captured

COLD_BYTES = 8 * (60 << 20)  # of inputs that take turns: eight times the L2 of an H200
CALLS = 40  # in a CUDA graph
ROUNDS = 15
NO_DEVICE_FUNCTIONS = ".version 8.8\n"


@dataclass(frozen=True)
class Contestant:
    """A program in the comparison, and its times.

    ctas, cluster: of its largest launch. fit: how many of these CTAs this GPU's SMs hold at once by
    threads and dynamic shared memory, if clusters find room. us: microseconds a call, from call to
    call in a CUDA graph, one for each round. ratios: us over the first contestant's us of the same
    round.
    """

    name: str
    case: dict | None
    launches: int
    ctas: int
    cluster: int
    fit: int
    us: list[float]
    ratios: list[float]

    def line(self, width: int) -> str:
        us, ratio = statistics.median(self.us), statistics.median(self.ratios)
        late = f"; {self.ctas} CTAs, {self.fit} fit at once" if self.ctas > self.fit else ""
        return (
            f"  {self.name:{width}}  {us:8.2f} us ({min(self.us):.2f} .. {max(self.us):.2f})"
            f"  {ratio:6.3f} of the first ({min(self.ratios):.3f} .. {max(self.ratios):.3f})"
            f"{late}"
        )


def rewritten(pack: Pack, number: int) -> Retargeted:
    """Launch number `number` of a pack, rewritten in the form that is timed. Raises HopperError."""
    launch = pack.launches[number]
    text = pack.programs[launch.program]
    facts = facts_of(text, launch.kernel, launch.cluster, launch.params)
    found = loads_and_epilogue(
        text, NO_DEVICE_FUNCTIONS, launch.kernel, facts, prod(launch.cluster)
    )
    if found.private_bytes and facts is None:
        raise HopperError(
            "unsupported",
            "a load with .cta_group::2 by a tensormap that is no kernel parameter",
        )
    if found.tmem:
        raise HopperError("unsupported", "it needs device functions, which would be timed, too")
    carried_over(launch.params, places_of(text, launch.kernel), found)
    return found


def cold_inputs(pack: Pack, most: int | None = None) -> tuple[list, list[list[bytes]]]:
    """Sets of random tensors, at most so many, that together exceed the L2, and for each the
    parameters of the pack's launches.
    """
    import torch

    random = partial(torch.randint, 0, 256, dtype=torch.uint8, device="cuda")
    copies = max(2, -(-COLD_BYTES // max(pack.read_bytes, 1)))
    kept, params = [], []
    for _ in range(min(copies, most or copies)):
        tensors = [random((n,)) for n in pack.sizes]
        kept.append((tensors, buffers := buffers_of(pack, tensors)))
        addresses = [t.data_ptr() for t in (*tensors, *buffers)]
        params.append([launch.relocated(addresses) for launch in pack.launches])
    return kept, params


def prepared(pack: Pack) -> Callable[[int], None]:
    """A function that makes call number i on its own cold inputs. Raises HopperError."""
    kernels = []
    for number, launch in enumerate(pack.launches):
        text = pack.programs[launch.program]
        kernel = HopperKernel(text, launch.kernel, rewritten(pack, number))
        kernels.append(kernel.prepared(launch.shape))
    kept, params = cold_inputs(pack, CALLS)

    def call(i: int, keep=kept) -> None:
        for run, data in zip(kernels, params[i % len(params)], strict=True):
            run(data)

    return call


def measure(packs: Sequence[Pack], names: Sequence[str], rounds: int) -> list[Contestant]:
    """Time all packs: each is a CUDA graph, and the graphs take turns. Raises HopperError."""
    import torch

    graphs = []
    for pack in packs:
        call = prepared(pack)
        graphs.append((captured(call, CALLS), call))
    times: list[list[float]] = [[] for _ in packs]
    for turn in range(-1, rounds):  # the first one warms up
        order = list(range(len(packs)))
        for i in order if turn % 2 else reversed(order):
            us = between_events(graphs[i][0].replay) / CALLS
            if turn >= 0:
                times[i].append(us)
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    largest = [max(pack.launches, key=lambda launch: prod(launch.grid)) for pack in packs]
    return [
        Contestant(
            name,
            pack.case,
            len(pack.launches),
            prod(launch.grid),
            prod(launch.cluster),
            sms * ctas_per_sm(prod(launch.block), launch.smem, 0),
            us,
            [mine / first for mine, first in zip(us, times[0], strict=True)],
        )
        for name, pack, launch, us in zip(names, packs, largest, times, strict=True)
    ]


def assembled(pack: Pack) -> str:
    """A text that says what a pack's launches are on Hopper. Raises HopperError."""
    sizes = []
    for number in range(len(pack.launches)):
        code = toolchain.assemble(rewritten(pack, number).text)
        sizes.append(f"{len(code):,} bytes")
    how = "of machine code" if toolchain.has_ptxas() else "of PTX (no ptxas on the PATH)"
    return f"{len(sizes)} launch(es) for Hopper, {', '.join(sizes)} {how}"


def contests_of(paths: Sequence[Path]) -> list[tuple[str, list[tuple[str, Path]]]]:
    """(title, [(name, path of a pack)]) of each comparison. Paths of packs make one comparison;
    folders make one for each file name that all of them have. Raises HopperError.
    """
    if not any(path.is_dir() for path in paths):
        stems = [path.stem for path in paths]
        same = len(set(stems)) < len(stems)
        names = [f"{p.resolve().parent.name}/{p.stem}" if same else p.stem for p in paths]
        return [(", ".join(dict.fromkeys(stems)), list(zip(names, paths, strict=True)))]
    if not all(path.is_dir() for path in paths):
        raise HopperError("missing", "expected packs, or folders of packs, not both")
    common = set.intersection(*({p.name for p in path.glob("*.npz")} for path in paths))
    if not common:
        raise HopperError("missing", "the folders have no pack of the same name")
    return [
        (Path(name).stem, [(path.resolve().name, path / name) for path in paths])
        for name in sorted(common)
    ]


def main(argv: Sequence[str]) -> int:
    """The command. Returns 0 if all was measured (or assembled), 2 if something was refused."""
    parser = Parser("hopper pipeline", __doc__)
    parser.add_argument(
        "packs",
        nargs="+",
        type=Path,
        metavar="PACK.npz|FOLDER",
        help="packs, or folders with packs of the same names; the first is the base",
    )
    parser.add_argument(
        "--rounds", type=int, default=ROUNDS, help=f"times each is timed (default {ROUNDS})"
    )
    parser.add_argument("--out", type=writable, metavar="FILE", help="write the times as JSON")
    parser.add_argument(
        "--assemble", action="store_true", help="need no GPU: only rewrite and assemble"
    )
    options = parser.parse_args(argv)
    if options.rounds < 1:
        parser.error(f"--rounds must be positive, got {options.rounds}")
    if not options.assemble and len(options.packs) < 2:
        parser.error("expected two packs or more; one is measured by python -m hopper.pipeline")
    try:
        contests = contests_of(options.packs)
        if not options.assemble:
            require_gpu()
    except HopperError as error:
        return _say(str(error))
    if options.assemble:
        return max(_assemble(packs) for _, packs in contests)
    machine, status, found = describe(), 0, []
    print(f"loads and epilogues, {options.rounds} rounds, measured on {machine['device']}")
    for what, packs in contests:
        results = _contest(packs, options.rounds)
        if results is None:
            status = 2
            continue
        width = max(len(one.name) for one in results)
        print("\n".join([what, *(one.line(width) for one in results)]), flush=True)
        found.append({"what": what, "contestants": [asdict(one) for one in results]})
        if options.out:
            write(options.out, machine, contests=found)
    if len(found) > 1:
        print("\n".join(_means(found)))
    return status


def _assemble(packs: list[tuple[str, Path]]) -> int:
    """Say what each pack is on Hopper, or why it is refused. The exit status."""
    status = 0
    for name, path in packs:
        try:
            print(f"{name} {path.stem}: {assembled(load(path))}")
        except HopperError as error:
            status = _refused(name, error)
    return status


def _contest(packs: list[tuple[str, Path]], rounds: int) -> list[Contestant] | None:
    """Measure, or say what is refused; the others' times are of no use without it."""
    loaded = []
    for name, path in packs:
        try:
            loaded.append(load(path))
            for number in range(len(loaded[-1].launches)):
                rewritten(loaded[-1], number)
        except HopperError as error:
            _refused(name, error)
            return None
    try:
        return measure(loaded, [name for name, _ in packs], rounds)
    except HopperError as error:
        _refused(" or ".join(name for name, _ in packs), error)
        return None


def _means(found: list[dict]) -> list[str]:
    """The geometric mean of each contestant's ratios."""
    lines = [f"geometric mean of {len(found)}, of the first"]
    for row in zip(*(one["contestants"] for one in found), strict=True):
        ratios = [statistics.median(one["ratios"]) for one in row]
        lines.append(f"  {row[0]['name']}  {statistics.geometric_mean(ratios):.3f}")
    return lines


def _refused(name: str, error: HopperError) -> int:
    """One line: of a compiler's complaint the first that it says."""
    return _say(f"{name} is refused: {' '.join(str(error).splitlines()[:2])}")


def _say(message: str) -> int:
    print(f"hopper pipeline: {message}", file=sys.stderr)
    return 2
