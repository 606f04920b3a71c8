"""What SentryWard says of the kernel: `python -m lab verify [NAME ...]`.

SentryWard (PyPI: sentryward; the extra `verify`) is a static verifier of PTX: one launch, all
schedules. It wants the PTX and a JSON file with the launch, the values of scalar parameters and
what memory the others name. Three edits of the text, none of which changes what the kernel does:
pointers are marked as pointers to global memory; `.collector::a::discard`, which is the default, is
left out; and a reduction over a warp of what is alike in its lanes, the rank in the cluster, is a
move. Line information goes, so that places are lines of the PTX.

Exit status 1: synchronisation is not proved, or two accesses without an order are not of the kind
that docs/lab/evidence.md explains; 2: it is not installed.
"""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import b200
from b200.chip.copies import tensormap
from b200.command_line import Parser
from b200.program.module import Kernel
from harness.evaluator import cases
from harness.evaluator.case import loading
from harness.evaluator.case.gpu_data import on_gpu
from harness.qualify.submission import Submission
from hopper.byte_tensormaps import maps_in
from hopper.pack import Recorder
from reference import generate_input
from task import find_problem
from utils import tensors_of

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = "spverify.kernel-input/v1"
ELEMENTS = {"b4x16": "16u4_align8b", "u16": "u16"}
SWIZZLES = ("none", "32B", "64B", "128B")
_SCALARS = {8: "u64", 4: "u32", 1: "u8"}


# What SentryWard is asked about, a launch a mechanism, of sizes that it can take.
FOUR_CTAS = (4, 2, 1, 1, 1, 1, 1, 1)  # clusters at a time on a chip so small that tiles queue up
PLAIN = {
    "tile_n": 64,
    "swap_ab": True,
    "cta_group": 1,
    "split_k": 1,
    "cluster_n": 1,
    "persistent": False,
}


@dataclass(frozen=True)
class Asked:
    """A case file's line, and how its configuration differs from the plainest one."""

    problem: str
    case: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    table: tuple[int, ...] | None = None

    def config(self, picked: Mapping[str, Any]) -> dict[str, Any]:
        """All fields of a configuration like `picked`."""
        return {**picked, **{k: v for k, v in {**PLAIN, **self.fields}.items() if k in picked}}


ASKED = {
    "one CTA": Asked("gemm", "m: 64; n: 128; k: 512; l: 1"),
    "one CTA, stages filled again": Asked("gemm", "m: 64; n: 128; k: 2304; l: 1"),
    "pair": Asked("gemm", "m: 256; n: 256; k: 256; l: 1", {"tile_n": 256, "cta_group": 2}),
    "shared weights": Asked("gemm", "m: 128; n: 128; k: 512; l: 1", {"cluster_n": 2}),
    "K split": Asked("gemm", "m: 64; n: 128; k: 512; l: 1", {"split_k": 2}),
    "dual": Asked("dual", "m: 64; n: 128; k: 512; l: 1"),
    "group": Asked("group", "m: [64, 64]; n: [128, 128]; k: [256, 512]; g: 2"),
    "persistent": Asked("gemm", "m: 64; n: 768; k: 256; l: 1", {"persistent": True}, FOUR_CTAS),
    "persistent group": Asked(
        "group",
        "m: [64, 64]; n: [256, 512]; k: [256, 512]; g: 2",
        {"persistent": True},
        FOUR_CTAS,
    ),
}


@dataclass(frozen=True)
class Recorded:
    """A launch. objects: name of the memory by its address."""

    text: str
    kernel: Kernel
    grid: Sequence[int]
    block: Sequence[int]
    cluster: Sequence[int]
    smem: int
    params: bytes
    objects: dict[int, str]

    def _words(self) -> list[tuple[int, int, int]]:
        """(number of the parameter, offset in it, bytes) of what is no tensormap."""
        found = []
        for number, p in enumerate(self.kernel.params):
            size = next(s for s in _SCALARS if p.size % s == 0 and p.align % s == 0)
            found += [(number, at, size) for at in range(0, p.size, size)]
        maps = [range(at, at + tensormap.BYTES) for at in self._maps()]
        at = [p.offset for p in self.kernel.params]
        return [w for w in found if not any(at[w[0]] + w[1] in m for m in maps)]

    def _maps(self) -> list[int]:
        return maps_in(self.params, [(p.offset, p.size, p.align) for p in self.kernel.params])

    def _pointers(self) -> list[tuple[int, int, str]]:
        """(number of the parameter, offset in it, object) of each pointer."""
        return [
            (number, at, self.objects[value])
            for number, at, size in self._words()
            if size == 8 and (value := self._value(number, at, size)) in self.objects
        ]

    def _value(self, number: int, at: int, size: int) -> int:
        first = self.kernel.params[number].offset + at
        return int.from_bytes(self.params[first : first + size], "little")

    @property
    def ptx(self) -> str:
        """The text with its edits."""
        text = re.sub(r"^\s*\.(loc|file)\b.*$", "", self.text, flags=re.MULTILINE)
        text = text.replace(".collector::a::discard", "")
        text = re.sub(r"redux\.sync\.or\.b32\s+(\S+), (\S+), [^;]+;", r"mov.b32 \1, \2;", text)
        for number, _, _ in self._pointers():
            name = re.escape(self.kernel.params[number].name)
            text = re.sub(
                rf"\.param \.u64 ({name}\b)", r".param .u64 .ptr .global .align 16 \1", text
            )
        return text

    @property
    def input(self) -> dict[str, Any]:
        """The JSON file."""
        declarations, descriptors = [], []
        for number, at, name in self._pointers():
            place = {"parameter": number, "offset": at}
            declarations.append({**place, "type": "pointer", "space": "global", "object": name})
        for at in self._maps():
            found = tensormap.decode(self.params[at : at + tensormap.BYTES])
            number = next(
                i for i, p in enumerate(self.kernel.params) if p.offset <= at < p.offset + p.size
            )
            place = {"parameter": number, "offset": at - self.kernel.params[number].offset}
            name = self.objects[found.address]
            declarations.append({**place, "type": "tensor_map", "object": name})
            descriptors.append(
                {
                    **place,
                    "object": name,
                    "element_type": ELEMENTS[found.element.name],
                    "rank": found.rank,
                    "global_shape": list(found.dims),
                    "global_strides_bytes": list(found.strides),
                    "box_shape": list(found.box),
                    "element_strides": [1] * found.rank,
                    "swizzle": SWIZZLES[found.swizzle],
                    "interleave": "none",
                    "oob_fill": "zero",
                }
            )
        pointers = {(number, at) for number, at, _ in self._pointers()}
        arguments = [
            {
                "parameter": number,
                "offset": at,
                "type": _SCALARS[size],
                "value": self._value(number, at, size),
            }
            for number, at, size in self._words()
            if (number, at) not in pointers
        ]
        launch = {
            "grid_dim": list(self.grid),
            "block_dim": list(self.block),
            "cluster_dim": list(self.cluster),
            "dynamic_shared_bytes": self.smem,
        }
        return {
            "schema": SCHEMA,
            "entry": self.kernel.name,
            "launch": launch,
            "declarations": declarations,
            "arguments": arguments,
            "tma_descriptors": descriptors,
        }


def ask(recorded: Recorded, folder: Path, timeout: float) -> dict[str, Any]:
    """SentryWard's answer: `result`, `checks`, `races`, ... (its docs/output-json.md)."""
    ptx, given = folder / "kernel.ptx", folder / "input.json"
    ptx.write_text(recorded.ptx)
    given.write_text(json.dumps(recorded.input, indent=1))
    command = [sys.executable, "-m", "sentryward", str(ptx), "--input", str(given)]
    command += ["--timeout", str(timeout)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout + 60)
    try:
        return json.loads(done.stdout)
    except ValueError:
        said = (done.stderr.strip().splitlines() or ["nothing"])[-1]
        raise RuntimeError(f"sentryward gave no answer; it said: {said}") from None


def wrong(answer: Mapping[str, Any], ptx: str) -> list[str]:
    """What of an answer is not as it should be, a line each."""
    checks, lines = answer["checks"], ptx.splitlines()
    found: list[str] = []
    if checks["synchronization"] != "passed":
        said = [d["message"] for d in answer.get("diagnostics", ())]
        found.append(f"synchronisation {checks['synchronization']}: {'; '.join(said[:3])}")
    elif checks["memory"] != "passed":
        races = answer.get("races", ())
        for race in races:
            one, other = (_opcode(race[end], lines) for end in ("first", "second"))
            if not explained(race, one, other):
                found.append(f"{one} and {other}")
        if not races or answer.get("race_samples_truncated"):
            found.append(f"memory {checks['memory']}, and not all is told")
    return found


def _opcode(access: Mapping[str, Any], lines: Sequence[str]) -> str:
    """The instruction of an access, by its line of the PTX."""
    line: int = access["location"]["line"]
    return lines[line - 1].split()[0]


def explained(race: Mapping[str, Any], one: str, other: str) -> bool:
    """Whether two accesses are of the kind that docs/lab/evidence.md explains: the copies of scale
    factors of one thread, and the MMAs of it that read them from two columns into an atom on.
    """
    kinds = {re.match(r"[a-z0-9]+(\.[a-z]+)?", opcode)[0] for opcode in (one, other)}  # type: ignore[index]
    same = race["first"]["actor"] == race["second"]["actor"]
    in_tensor_memory = race["region"]["address_space"] == "tensor"
    return same and in_tensor_memory and kinds in ({"tcgen05.cp"}, {"tcgen05.cp", "tcgen05.mma"})


def record(submission: Submission, recorder: Recorder, asked: Asked) -> Recorded | None:
    """The launch of one case; None where there was none."""
    problem = find_problem(asked.problem)
    case = cases.make_case(problem, cases.parse(asked.case))
    data = generate_input(problem.name, **case.args)
    submission.reckon_with(asked.table)
    recorder.recorded.clear()
    submission.run(data, asked.config(submission.picked(data)))
    submission.reckon_with(None)
    if not recorder.recorded:
        return None
    program, kernel, grid, block, cluster, smem, params = recorder.recorded[-1]
    objects = {t.data_ptr(): f"tensor{i}" for i, t in enumerate(tensors_of(data))}
    return Recorded(program.text, kernel, grid, block, cluster, smem, params, objects)


def main(argv: Sequence[str] | None = None) -> int:
    parser = Parser(prog="python -m lab verify", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(ASKED)}")
    parser.add_argument("--submission", type=Path, default=ROOT / "submission.py")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds a launch")
    options = parser.parse_args(argv)
    if unknown := [name for name in options.names if name not in ASKED]:
        parser.error(f"expected names of {', '.join(ASKED)}, found {', '.join(unknown)}")
    if importlib.util.find_spec("sentryward") is None:
        print('verify: sentryward is not installed (pip install ".[verify]")', file=sys.stderr)
        return 2
    recorder, bad = Recorder(), False
    b200.install(check=False, gpu=recorder)
    submission = Submission.of(on_gpu(loading.load_kernel(options.submission.resolve())))
    for name in options.names or ASKED:
        recorded = record(submission, recorder, ASKED[name])
        if recorded is None:
            print(f"{name}: launched no kernel", flush=True)
            bad = True
            continue
        with tempfile.TemporaryDirectory() as folder:
            answer = ask(recorded, Path(folder), options.timeout)
        found = wrong(answer, recorded.ptx)
        told = f"{name}: {answer['result']}, {answer['elapsed_seconds']:.0f} s"
        print("\n  ".join([told, *found]), flush=True)
        bad |= bool(found)
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
