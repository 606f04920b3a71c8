"""Does submission.py still compile to the code of a revision? Compares PTX and SASS of each kernel.

    python -m lab same_code --against REVISION|FILE [--keep FOLDER]
        [--only picks|covering]

Compiled are the picks of the official cases (tests and benchmarks) and the covering set of
configurations. A kernel is "same PTX" if the text is equal, line information and the kernel's name
aside; "same SASS" if the instructions are, which registers they use and in which order aside; else
"differs", with the opcodes that one has more often. A pick that the two files disagree on is named.
Exit status 1 if anything differs.

--keep FOLDER: code that was compiled before, by content, for the next run.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import re
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

import torch

import submission
from b200.command_line import Parser
from harness.evaluator import cases
from lab.code import disassembly
from lab.kernel_cases import KEEP_CODE, covering_set, shapes_of
from submission import Config
from task import PROBLEMS

ROOT = Path(submission.__file__).parent

# In a process of its own, in a folder with the submission.py to compile: what it picks, its code.
COMPILE = """
import pickle, sys
import submission
work, path = pickle.load(sys.stdin.buffer), sys.argv[1]
found = []
for data, fields in work:
    groups, _ = submission.unpack(data)
    problem = submission.problem_of(data, groups)
    config = submission.Config(**fields) if fields else submission.pick(problem)
    function, _ = submission.kernel_for(problem, config)
    cubin = function.__cubin__
    cubin = cubin if isinstance(cubin, bytes) else cubin.encode("latin-1")
    found.append((vars(config), function.__ptx__, cubin))
with open(path, "wb") as file:
    pickle.dump(found, file)
"""


def codes(rows: int, k: int, batch: int) -> torch.Tensor:
    stored = torch.zeros((batch, rows, k // 2), dtype=torch.float4_e2m1fn_x2, device="meta")
    return stored.permute(1, 2, 0)


def scales(rows: int, k: int, batch: int) -> torch.Tensor:
    in_memory = batch, -(-rows // 128), k // 64, 32, 4, 4
    stored = torch.zeros(in_memory, dtype=torch.float8_e4m3fn, device="meta")
    return stored.permute(3, 4, 1, 5, 2, 0)


def data_of(sizes: list[tuple[int, ...]], kind: str) -> tuple:
    """What custom_kernel is given for (m, n, k, l) of each group, as tensors without memory."""
    operands, pairs = [], []
    for m, n, k, batch in sizes:
        rows = 128 if kind == "gemv" else n
        stored = (batch, m, 1 if kind == "gemv" else n)
        c = torch.zeros(stored, dtype=torch.float16, device="meta").permute(1, 2, 0)
        operands.append((codes(m, k, batch), codes(rows, k, batch), c))
        pairs.append((scales(m, k, batch), scales(rows, k, batch)))
    (a, b, c), (sfa, sfb) = operands[0], pairs[0]
    if kind == "group":
        return operands, None, pairs, sizes
    if kind == "dual":
        return (a, b, b, None, None, None, sfa, sfb, sfb, c)
    return (a, b, None, None, sfa, sfb, c)


def work() -> dict[str, tuple[tuple, dict | None]]:
    """By name (data, fields of the configuration or None for the pick)."""
    found = {}
    for problem in PROBLEMS.values():
        for mode in ("test", "benchmark"):
            for case in cases.official(problem, mode):
                args = case.args
                if problem.grouped:
                    sizes = [(m, n, k, 1) for m, n, k in zip(args["m"], args["n"], args["k"])]
                else:
                    sizes = [(args["m"], args.get("n", 1), args["k"], args["l"])]
                data = data_of(sizes, problem.short)
                found[f"{problem.short} {mode} {case.text}"] = data, None
    for number, (config, problem) in enumerate(covering_set()[0]):
        sizes, kind = shapes_of(problem)
        found[f"covering {number} {config}"] = data_of(sizes, kind), asdict(config)
    return found


def compile_all(source: str, jobs: dict[str, tuple], keep: Path) -> dict[str, tuple]:
    """By name (picked fields, PTX, cubin) of the jobs with this text of submission.py."""
    digest = hashlib.sha256((source + version("nvidia-cutlass-dsl")).encode()).hexdigest()[:16]
    kept = {}
    for name, job in jobs.items():
        key = hashlib.sha256(repr(job).encode()).hexdigest()[:16]
        kept[name] = keep / f"{digest}-{key}.pickle"
    missing = [name for name in jobs if not kept[name].exists()]
    environment = os.environ | KEEP_CODE
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        (path / "submission.py").write_text(source)
        (path / "task.py").write_text((ROOT / "task.py").read_text())
        environment["CUTE_DSL_DUMP_DIR"] = folder
        command = [sys.executable, "-c", COMPILE, str(path / "code")]
        given = pickle.dumps([jobs[name] for name in missing])
        subprocess.run(command, input=given, env=environment, cwd=folder, check=True)
        for name, found in zip(missing, pickle.loads((path / "code").read_bytes())):
            kept[name].write_bytes(pickle.dumps(found))
    return {name: pickle.loads(path.read_bytes()) for name, path in kept.items()}


def plain(ptx: str) -> list[str]:
    """PTX without line information, comments and the kernel's name."""
    lines = (re.sub(r"//.*", "", line).strip() for line in ptx.splitlines())
    kept = [line for line in lines if line and not line.startswith((".loc", ".file"))]
    return re.sub(r"kernel_\w+", "kernel", "\n".join(kept)).splitlines()


def instructions(cubin: bytes, tool: str) -> Counter[str]:
    return Counter(disassembly.opcodes(disassembly.disassemble(cubin, tool)))


def compare(new: tuple, old: tuple, tool: str | None) -> str:
    if plain(new[1]) == plain(old[1]):
        return "same PTX"
    if tool is None:
        return "differs"
    ours, theirs = instructions(new[2], tool), instructions(old[2], tool)
    if ours == theirs:
        return "same SASS"
    more, fewer = dict(ours - theirs), dict(theirs - ours)
    return f"differs: {ours.total()} instructions for {theirs.total()}; more {more}, fewer {fewer}"


def text_of(against: str) -> str:
    """submission.py of a revision, or the text of a file."""
    if Path(against).is_file():
        return Path(against).read_text()
    show = ["git", "show", f"{against}:submission.py"]
    return subprocess.run(show, cwd=ROOT, check=True, capture_output=True, text=True).stdout


def main() -> int:
    parser = Parser("python -m lab same_code", __doc__)
    parser.add_argument("--against", required=True, help="a revision of git, or a file")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="code that was compiled before")
    parser.add_argument("--only", choices=("picks", "covering"), help="compile only these")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        keep = options.keep or Path(folder)
        keep.mkdir(parents=True, exist_ok=True)
        jobs = work()
        if options.only:
            covering = options.only == "covering"
            jobs = {n: job for n, job in jobs.items() if n.startswith("covering") == covering}
        ours = (ROOT / "submission.py").read_text()
        theirs = text_of(options.against)
        new, old = (compile_all(source, jobs, keep) for source in (ours, theirs))
    tool, verdicts = disassembly.find_tool(), Counter()
    for name in jobs:
        verdict = compare(new[name], old[name], tool)
        if new[name][0] != old[name][0]:
            verdict = f"differs: picks {Config(**new[name][0])}, was {old[name][0]}"
        verdicts[verdict.partition(":")[0]] += 1
        if not verdict.startswith("same"):
            print(f"{name}\n  {verdict}")
    told = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.items())
    print(f"{len(jobs)} kernels with DSL {version('nvidia-cutlass-dsl')}: {told}")
    return int("differs" in verdicts)


if __name__ == "__main__":
    sys.exit(main())
