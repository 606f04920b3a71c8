"""Each file of docs/results: the sources it depends on, and what makes it.

`made_by` in a file (in each row of a file of JSON lines) says what made it. Of a modelled result it
has the digests of harness/digest.py; beside them, or in their place, `commit` is the commit that
brought the figures, and `device`, `sources` and `by` say what else there is to say.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from harness import digest
from lab.calibrations import CALIBRATIONS

ROOT = Path(__file__).resolve().parents[2]
RESULTS = "docs/results"
OUT = "OUT"  # in a command, stands for the file that it writes
PTXAS = "PTXAS"  # ... for the newest ptxas
DATA = "DATA"  # ... for the folder of published tables
KERNEL = (*digest.MODELLED, "submission")
PEERS = (*KERNEL, "ranges")


@dataclass(frozen=True)
class File:
    """depends: names of the digests in `made_by` that today's are held against. command: makes the
    file here; it has OUT, or prints the rows. slow: it takes hours. needs: what this checkout lacks
    to make the file.
    """

    depends: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    slow: bool = False
    needs: str = ""

    @property
    def here(self) -> bool:
        """Whether a stale one is to be made again before a change lands."""
        return bool(self.command) and not self.slow and not self.needs


def _tuning(name: str, *options: str) -> File:
    command = ("-m", "lab", "tuning", name, *options, "--jobs", "2", "--out", OUT)
    return File(KERNEL, command)


STEPS = ("gemm_mended.py", "steps/gemm_1.py", "steps/gemm_2.py", "steps/gemm_3.py", "gemm_fast.py")
CALIBRATED = {
    f"calibrate-{name}.json": File(
        digest.MODELLED,
        ("-m", "lab", "calibrate", name, "--data", DATA, "--out", OUT),
        needs="the published tables (--data FOLDER; docs/lab/timing.md names them)",
    )
    for name in CALIBRATIONS
}
H200 = "an H200"
RIGS = (
    *("chain", "clusters", "code", "depth", "fences", "ingest", "issue", "last-round", "launch"),
    "replays",
    *(
        "loads",
        "memory",
        "mixed",
        "outside",
        "sharing",
        "stores",
        "written",
        "arrives",
        "dependent",
    ),
)
FILES: dict[str, File] = {
    "benchmark.jsonl": File(PEERS, ("eval.py", "benchmark", "--device", "emulator", "--json")),
    "first-kernel.jsonl": File(
        PEERS,
        (
            *("eval.py", "compare", "submission.py"),
            *(f"docs/examples/{step}" for step in STEPS),
            *("gemm", "--case", "m: 128; n: 4096; k: 7168; l: 1", "--device", "emulator", "--json"),
        ),
    ),
    "floors.json": _tuning("floors"),
    "ablation.json": _tuning("ablation"),
    "sweep.json": _tuning("sweep", "--plot", "docs/lab/sweep.png"),
    "losses.jsonl": File(KERNEL, needs="a day, a run a seed (docs/lab/tuning.md)"),
    "mutations.json": File(
        ("program", "chip", "checker", "submission"),
        ("-m", "lab", "mutations", "--count", "180", "--seed", "1", "--jobs", "2", "--out", OUT),
        slow=True,
    ),
    "conformance.json": File(
        ("program", "chip"),
        ("-m", "lab", "conformance", "--ptxas", "ptxas", "--ptxas", PTXAS, "--out", OUT),
        needs="the newest ptxas beside CUDA 13.0's (pip download nvidia-cuda-nvcc)",
    ),
    "headers.json": File(
        ("program", "chip"), ("-m", "lab", "headers", "--out", OUT), needs="nvcc of CUDA 13.0"
    ),
    **CALIBRATED,
    "ladder.jsonl": File(digest.MODELLED, needs="the published kernels and their times"),
    "compare.jsonl": File(PEERS, needs="the published kernels"),
    "others.json": File(digest.MODELLED, needs="the kernels that it names, each run by hand"),
    "public-kernels.json": File(digest.MODELLED, needs="the kernels that it names, run by hand"),
    "strangers.jsonl": File(
        digest.MODELLED, needs="the work tree of TIRx-kernels, and the packages of its kernels"
    ),
    "suites.json": File(needs="checkouts of the projects, and hours (docs/suites.md)"),
    "evidence.json": File(needs="a reader: its rows are entered by hand"),
    "h200-model.json": File(
        (*digest.MODELLED, "h200", "hopper"),
        needs="packs of the kernel (python -m lab packs families)",
    ),
    **{f"h200-{rig}.json": File(needs=H200) for rig in RIGS},
    **{
        f"h200-{name}.json": File(("submission",), needs=f"{H200}, and packs of the kernel")
        for name in ("2026-11-21", "2026-11-22", "picks", "pipeline", "qualify")
    },
    "h100-cupti.json": File(needs="an H100"),
}


def today(root: Path = ROOT) -> dict[str, Callable[[], str]]:
    """Name of a digest -> how to make that of the sources under `root`."""
    package = root / "b200"
    found = {name: lambda name=name: digest.part(name, package) for name in digest.PARTS}
    return {
        **found,
        "h200": lambda: digest.of_file(root / "hopper" / "constants_h200.toml"),
        "hopper": lambda: digest.of_folder(root / "hopper"),
        "submission": lambda: digest.of_file(root / "submission.py"),
    }
