"""The official benchmark shapes in several families of configurations, as packs: `python -m lab
packs families`. They are measured on a Hopper GPU and modelled on an H200.

Of each family the legal configuration with the best estimate, whatever the rule would pick.
"""

from __future__ import annotations

from b200.command_line import Parser
from harness.evaluator import cases
from harness.qualify.packing import Packer, make_data
from lab.kernel_cases import configured
from lab.packs.official import GPUS, fits_as_on, out_option
from submission import estimate, legal_configs, problem_of, unpack
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


def make(argv: list[str]) -> int:
    """Pack the benchmark shapes, a file a family."""
    parser = Parser("python -m lab packs families", __doc__)
    out_option(parser)
    parser.add_argument("--family", action="append", choices=FAMILIES, help="all by default")
    parser.add_argument("--gpu", choices=GPUS, help="whose clusters count; a B200's by default")
    parser.add_argument("problems", nargs="*", help="short names; all by default")
    arguments = parser.parse_args(argv)
    if arguments.gpu:
        fits_as_on(arguments.gpu)
    packer = Packer()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for problem in PROBLEMS.values():
        if arguments.problems and problem.short not in arguments.problems:
            continue
        for i, case in enumerate(cases.official(problem, "benchmark")):
            data = make_data({"problem": problem.name, **case.args})
            form = problem_of(data, unpack(data)[0])
            legal = legal_configs(form)
            for name in arguments.family or FAMILIES:
                swap_ab, belongs = FAMILIES[name]
                family = [c for c in legal if c.swap_ab == swap_ab and belongs(c)]
                if not family:
                    continue
                config = min(family, key=lambda config: estimate(config, form))
                path = arguments.out / f"family-{problem.short}-{i}-{name}.npz"
                packer.pack(configured(config), case).save(path)
                print(f"{path}: {config}", flush=True)
    return 0
