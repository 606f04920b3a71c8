"""The generated tables about pipelines on an H200: measured side by side (`python -m b200
pipeline`) and by the clock with its constants (`python -m lab h200_model`).

A pack's name tells what it is: "ours-gemm-benchmark-0" what `pick` chooses for the first shape of
gemm, "peer-gemm-benchmark-0" a public kernel, "family-gemm-0-plain" a family of configurations
(lab/packs/families.py).
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from itertools import groupby

from harness.evaluator.ladder import errors as ladder
from lab.tables import markdown
from task import PROBLEMS

WORDS = {
    "plain": "no cluster",
    "two_an_sm": "two CTAs an SM",
    "split_2": "K split by 2",
    "split_4": "K split by 4",
    "multicast_2": "multicast by 2",
    "multicast_2_split_2": "multicast by 2 and K split by 2",
    "multicast_4": "multicast by 4",
    "swapped": "tokens as rows",
    "swapped_multicast_2": "tokens as rows, multicast by 2",
    "swapped_pairs": "tokens as rows of pairs",
}


@dataclass(frozen=True)
class Pipeline:
    """role: ours, peer or family; family: its name, else "". us: median of the rounds, measured;
    over_first: of the ratios to ours, round by round; modelled_us: by the H200 model.
    """

    role: str
    shape: str
    family: str
    ctas: int
    cluster: int
    us: float
    over_first: float
    modelled_us: float

    @property
    def problem(self) -> str:
        return self.shape.split()[0]

    @property
    def error(self) -> float:
        return self.modelled_us / self.us - 1


def pipelines(measured: dict, modelled: dict) -> list[Pipeline]:
    """The pipelines in the order of the problems; ours first for each shape."""
    times = {record["pack"]: record["us"] for record in modelled["modelled"]}
    found = []
    for contest in measured["contests"]:
        for contestant in contest["contestants"]:
            name = contestant["name"]
            role, problem, *rest = name.split("-")
            number, family = (rest[0], rest[1]) if role == "family" else (rest[1], "")
            us, ratio = (statistics.median(contestant[key]) for key in ("us", "ratios"))
            sizes = contestant["ctas"], contestant["cluster"]
            shape = f"{problem} {int(number) + 1}"
            found.append(Pipeline(role, shape, family, *sizes, us, ratio, times[name]))
    short = [problem.short for problem in PROBLEMS.values()]
    return sorted(found, key=lambda p: (short.index(p.problem), p.shape))


def by_shape(measured: dict, modelled: dict) -> list[tuple[str, list[Pipeline]]]:
    found = pipelines(measured, modelled)
    return [(shape, list(members)) for shape, members in groupby(found, lambda p: p.shape)]


def model_errors(measured: dict, modelled: dict) -> str:
    """Modelled over measured, by kind."""
    found = pipelines(measured, modelled)
    families = [p for p in found if p.role == "family"]
    kinds = {"all families": families}
    kinds |= {words: [p for p in families if p.family == name] for name, words in WORDS.items()}
    kinds |= {
        f"{problem.short}, families": [p for p in families if p.problem == problem.short]
        for problem in PROBLEMS.values()
    }
    kinds["what `pick` chooses"] = [p for p in found if p.role == "ours"]
    kinds["public kernels, unmodified"] = [p for p in found if p.role == "peer"]
    rows = []
    for words, members in kinds.items():
        if not members:
            continue
        errors = [p.error for p in members]
        size = statistics.mean(map(abs, errors))
        signed = (statistics.mean(errors), max(errors, key=abs))
        rows.append((words, len(errors), f"{size:.1%}", *(f"{error:+.1%}" for error in signed)))
    return markdown.table(("pipelines", "count", "error without sign", "mean", "worst"), rows)


def model_ranks(measured: dict, modelled: dict) -> str:
    """For each shape the family that is fastest in the model, and how fast it is."""
    rows = []
    for shape, members in by_shape(measured, modelled):
        families = [p for p in members if p.role == "family"]
        chosen = min(families, key=lambda p: p.modelled_us)
        best = min(families, key=lambda p: p.us)
        times = [p.modelled_us for p in families], [p.us for p in families]
        rank = statistics.correlation(*map(ladder.ranks, times))
        cells = WORDS[chosen.family], WORDS[best.family], f"{chosen.us / best.us:.2f}"
        rows.append((shape, *cells, f"{rank:.2f}"))
    header = ("shape", "fastest, modelled", "fastest, measured", "first over second, measured")
    return markdown.table((*header, "Spearman of all"), rows)


def h200_picks(measured: dict, modelled: dict) -> str:
    """What `pick` chooses beside the fastest family and a public kernel."""
    rows = []
    for shape, members in by_shape(measured, modelled):
        ours = next(p for p in members if p.role == "ours")
        best = min((p for p in members if p.role == "family"), key=lambda p: p.us)
        peers = [p for p in members if p.role == "peer"]
        cells = [f"{ours.ctas} in {ours.cluster}", f"{ours.us:.2f}", f"{ours.modelled_us:.2f}"]
        cells += [f"{best.us:.2f} {WORDS[best.family]}", f"{1 / best.over_first:.2f}"]
        peer = (f"{peers[0].us:.2f}", f"{1 / peers[0].over_first:.2f}") if peers else ("", "")
        rows.append((shape, *cells, *peer))
    header = ("shape", "ours: CTAs, cluster", "ours us", "H200 model us", "fastest family us")
    return markdown.table((*header, "ours over it", "public kernel us", "ours over it"), rows)
