"""Pack the official benchmark shapes in several families of configurations, to be measured on a
Hopper GPU and modelled on an H200.

    python -m tests.submission.pack_families -o packs                  with the DSL; needs no GPU
    python -m b200.hopper.pipeline packs/family-*.npz                  on a machine with a Hopper GPU
    python -m b200 h200-model packs/family-*.npz                             anywhere

Of each family the legal configuration with the best estimate, whatever the rule would pick.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import b200
from b200.hopper.pack import Recorder, record
from harness.evaluator import cases
from harness.studies.packs import GPUS, bytes_read, fits_as_on, make_data
from submission import Config, estimate, launch, legal_configs, problem_of, unpack
from task import PROBLEMS

# What is alike in a family: `swap_ab`, and the shape of its clusters.
FAMILIES = {
    "plain": (True, lambda c: c.cluster == 1),
    "multicast_2": (True, lambda c: c.cluster == c.cluster_n == 2),
    "multicast_4": (True, lambda c: c.cluster == c.cluster_n == 4),
    "split_2": (True, lambda c: c.cluster == c.split_k == 2),
    "split_4": (True, lambda c: c.cluster == c.split_k == 4),
    "multicast_2_split_2": (True, lambda c: c.cluster_n == c.split_k == 2 and c.cluster == 4),
    "swapped": (False, lambda c: c.cluster == 1),
    "swapped_multicast_2": (False, lambda c: c.cluster == c.cluster_n == 2),
    "swapped_pairs": (False, lambda c: c.cluster == c.cta_group == 2),
}


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="tests/submission/pack_families.py", description=__doc__)
    parser.add_argument("-o", "--out", default="packs", type=Path)
    parser.add_argument("--family", action="append", choices=FAMILIES, help="all by default")
    parser.add_argument("--gpu", choices=GPUS, help="whose clusters count; a B200's by default")
    parser.add_argument("problems", nargs="*", help="short names; all by default")
    arguments = parser.parse_args(argv)
    if arguments.gpu:
        fits_as_on(arguments.gpu)
    recorder = Recorder()
    b200.install(check=False, gpu=recorder)
    arguments.out.mkdir(parents=True, exist_ok=True)
    for problem in PROBLEMS.values():
        if arguments.problems and problem.short not in arguments.problems:
            continue
        for i, case in enumerate(cases.official(problem, "benchmark")):
            recipe = {"problem": problem.name, **case.args}
            data = make_data(recipe)
            form = problem_of(data, unpack(data)[0])
            legal = legal_configs(form)
            for name in arguments.family or FAMILIES:
                swap_ab, belongs = FAMILIES[name]
                family = [c for c in legal if c.swap_ab == swap_ab and belongs(c)]
                if not family:
                    continue
                config = min(family, key=lambda config: estimate(config, form))

                def kernel(data, config: Config = config):
                    groups, _ = unpack(data)
                    launch(problem_of(data, groups), groups, config)

                path = arguments.out / f"family-{problem.short}-{i}-{name}.npz"
                record(recorder, kernel, data, recipe, bytes_read(recipe)).save(path)
                print(f"{path}: {config}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
