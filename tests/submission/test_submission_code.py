"""What the compiler makes of the kernel for every benchmark shape, and the rules for the file."""

from __future__ import annotations

import functools
import json
import pickle
import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest

import submission
from b200.host.cuda.cache import locked
from b200.host.takeover import is_there
from lab.code import disassembly
from lab.kernel_cases import dual, gemm
from lab.survey.plans import candidates
from lab.tuning.shapes import benchmarks
from submission import MAX_GROUPS, Config, Plan
from tests.fork_server import ForkServer
from tests.submission.submission_support import epilogue_warps

ROOT = Path(submission.__file__).parent

# Compiled functions keep their PTX and cubin. The settings are what CUTE_DSL_ARCH, CUTE_DSL_KEEP and
# CUTE_DSL_DUMP_DIR are read into, which each version of the DSL spells in another way.
COMPILE = """
import pickle, sys
import submission
from b200.host.dsl.engine import frontends
given, folder, path = sys.argv[1:]
for frontend in frontends():
    settings = frontend.envar
    settings.arch, settings.keep_ptx, settings.keep_cubin = "sm_100a", True, True
    settings.dump_dir = folder
code = []
for problem, config in pickle.load(open(given, "rb")):
    function, _ = submission.kernel_for(problem, config)
    cubin = function.__cubin__
    code.append((function.__ptx__, cubin if isinstance(cubin, bytes) else cubin.encode("latin-1")))
with open(path, "wb") as file:
    pickle.dump(code, file)
"""


FORMS = benchmarks()  # in the configuration picked for each
OTHERS = {
    "shared weights": (gemm(1024, 256, 1024), Config(cluster_n=4)),
    "pairs that share weights": (gemm(1024, 256, 1024), Config(cta_group=2, cluster_n=4)),
    "two accumulators of 192": (gemm(7168, 1024, 512), Config(tile_n=192, persistent=True)),
    "K split": (dual(256, 64, 2048), Config(split_k=4)),
    "tokens as rows": (gemm(256, 512, 1024), Config(swap_ab=False)),
    "weights as columns": (dual(256, 200, 2048), Config(swap_ab=False, split_k=4)),
}
# What another case has but for a number; gemv 3 and dual 4 have the very kernels of gemv 2 and dual 2.
LIKE_OTHERS = {
    "gemv 1",
    "gemm 3",
    "dual 3",
    "group 2",
    "pairs that share weights",
    "tokens as rows",
}
NAMES = [*FORMS, *OTHERS]
CASES = [
    pytest.param(name, marks=pytest.mark.slow if name in LIKE_OTHERS else ()) for name in NAMES
]


@functools.cache
def case(name: str) -> tuple[submission.Problem, Config]:
    return OTHERS[name] if name in OTHERS else (FORMS[name], submission.pick(FORMS[name]))


@pytest.fixture(scope="module")
def code(tmp_path_factory, worker_id, fork_server, request) -> dict[str, tuple[str, bytes]]:
    """PTX and cubin of every case of this run, compiled in a process of its own without a GPU, and
    once: by the first of the processes of a run that come to it.
    """
    tests = [item for item in request.session.items if item.path == request.path]
    asked = {item.callspec.params["name"] for item in tests if "code" in item.fixturenames}
    names = [name for name in NAMES if name in asked]
    base = tmp_path_factory.getbasetemp()
    kept = (base if worker_id == "master" else base.parent) / "code.pickle"
    with locked(kept.with_suffix(".lock")):
        if not kept.exists():
            made = compiled(fork_server, [*map(case, names)], tmp_path_factory.mktemp("code"))
            kept.write_bytes(pickle.dumps(made))
    return dict(zip(names, pickle.loads(kept.read_bytes())))


def compiled(server: ForkServer, cases: list[tuple], folder: Path) -> list[tuple[str, bytes]]:
    """PTX and cubin of each (problem, configuration)."""
    if is_there("cutlass.base_dsl.compiler:Compiler._check_cuda_dependencies_once"):
        pytest.skip("the DSL installed compiles only where there is a driver")
    given, found = folder / "cases", folder / "code"
    given.write_bytes(pickle.dumps(cases))
    done = server.run("-c", COMPILE, str(given), str(folder), str(found), cwd=ROOT, limit=1200)
    assert done.returncode == 0, done.stderr
    return pickle.loads(found.read_bytes())


def attributes(cubin: bytes) -> dict[int, list[tuple[int, ...]]]:
    """Values by attribute of the .nv.info sections of a cubin (ELF64)."""
    (start,) = struct.unpack_from("<Q", cubin, 0x28)
    entry, count, names = struct.unpack_from("<3H", cubin, 0x3A)
    sections = [struct.unpack_from("<IIQQQQ", cubin, start + i * entry) for i in range(count)]
    found: dict[int, list[tuple[int, ...]]] = {}
    for name, _, _, _, offset, size in sections:
        at = sections[names][4] + name
        if not cubin[at:].startswith(b".nv.info"):
            continue
        end = offset + size
        while offset < end:
            kind, attribute, value = struct.unpack_from("<BBH", cubin, offset)
            offset += 4
            values = (value,)
            if kind == 4:
                values = struct.unpack_from(f"<{value // 4}I", cubin, offset)
                offset += value
            found.setdefault(attribute, []).append(values)
    return found


REGISTERS, FRAME, STACK, PARAMETERS = 0x2F, 0x11, 0x12, 0x19


@pytest.mark.parametrize("name", CASES)
def test_no_local_memory_and_registers_to_spare(code, name):
    problem, config = case(name)
    ptx, cubin = code[name]
    assert ".local" not in ptx and "__local_depot" not in ptx
    info = attributes(cubin)
    assert {size for _, size in info[FRAME] + info[STACK]} == {0}
    ((_, registers),) = info[REGISTERS]
    threads = 32 * (epilogue_warps(config, problem) + 2)  # beside them the load and the MMA warp
    assert registers * threads <= 65_536
    ((parameters,),) = info[PARAMETERS]
    # Tensormaps of 128 bytes, addresses of 8, sizes of 4; the schedule, and gaps for alignment.
    operands, groups = problem.num_products + 1, len(problem.groups)
    a_group = 2 * 128 * operands + 8 * (operands + 1) + 4 * 5
    assert groups * a_group + 16 <= parameters <= groups * a_group + 16 + 56
    assert operands > 2 or MAX_GROUPS * a_group + 16 + 56 <= 32_764 < (MAX_GROUPS + 1) * a_group


@pytest.mark.parametrize("name", CASES)
def test_mma_instructions(code, name):
    problem, config = case(name)
    ptx, _ = code[name]
    plan = Plan(config, problem)
    mmas = re.findall(r"tcgen05\.mma\.(\S+)", ptx)
    kind = f"cta_group::{config.cta_group}.kind::mxf4nvf4.block_scale.block16.collector::a::discard"
    assert set(mmas) == {kind}
    k_blocks = 4
    assert len(mmas) == k_blocks * problem.num_products
    shape = 0x0800_0480 if config.cta_group == 1 else 0x1000_0480  # M, e2m1, e2m1
    smallest = shape | 8 * config.cta_group << 14  # N, where the tile leaves it no choice
    assert re.search(rf"\b({shape}|{smallest})\b", ptx)
    copies = len(re.findall(rf"tcgen05\.cp\.cta_group::{config.cta_group}\.32x128b\.warpx4", ptx))
    assert copies == k_blocks * (plan.num_a + plan.num_b * plan.max_b_atoms)


@pytest.mark.parametrize("name", CASES)
def test_loads_and_stores(code, name):
    problem, config = case(name)
    ptx, _ = code[name]
    loads = re.findall(r"cp\.async\.bulk\.tensor\.3d\.\S+", ptx)
    shares_a = config.cluster_n > 1
    plan = Plan(config, problem)
    # Codes and scales; those of a pair complete on the even CTA.
    boxes = plan.cta_n // plan.box_n + plan.max_b_atoms
    assert not re.search(r"cp\.async\.bulk\.shared", ptx)
    assert len(loads) >= 2 * plan.num_a + plan.num_b * boxes  # LLVM may have copied a loop
    pairs = [load for load in loads if "cta_group::2" in load]
    assert len(pairs) == (len(loads) if config.cta_group == 2 else 0)
    multicast = [load for load in loads if "multicast::cluster" in load]
    assert len(multicast) % (2 * plan.num_a) == 0 and bool(multicast) == shares_a
    wide = len(re.findall(r"st\.global\.L1::no_allocate\.v8\.b32", ptx))
    narrow = len(re.findall(r"st\.global\.L1::no_allocate\.b16", ptx))
    assert (wide > 0, narrow > 0) == (plan.wide_stores, not plan.wide_stores)
    partial = "st.async.shared::cluster" in ptx
    assert partial == (config.split_k > 1)
    commits = re.findall(r"tcgen05\.commit\.\S+", ptx)
    alone = config.cta_group == 1 and not shares_a
    assert any("multicast" in commit for commit in commits) != alone


@pytest.mark.parametrize("name", CASES)
def test_a_pair_allocates_behind_the_barrier_of_the_cluster(code, name):
    """PTX ISA, tcgen05.alloc: with .cta_group::2 the peer CTA has to be launched."""
    _, config = case(name)
    ptx, _ = code[name]
    before, allocated, _ = ptx.partition("tcgen05.alloc")
    assert allocated
    if config.cta_group == 2:
        block = before[before.rindex("$L") :]  # of the MMA warp
        assert "barrier.cluster.arrive.relaxed" in block and "barrier.cluster.wait" in block


@functools.cache
def sass(cubin: bytes) -> list[str]:
    return disassembly.disassemble(cubin, disassembly.find_tool())


@pytest.mark.parametrize("name", CASES)
def test_sass(code, name):
    """Each MMA is issued once: ptxas puts operands that it cannot prove uniform through a loop over
    lanes, an MMA at a time. No MEMBAR.ALL.GPU waits for all loads under way, which takes thousands
    of cycles (measured on an H200).
    """
    lines = sass(code[name][1])
    body = disassembly.role_loop(lines, ("UTCOMMA", "UTCBAR"))
    assert body and "BRA.U.ANY" not in body
    in_bounds(case(name)[0], disassembly.mma_loop(lines))
    assert not [op for op in disassembly.opcodes(lines) if op.startswith("MEMBAR.ALL.GPU")]


def in_bounds(problem, loop, before=190, behind=25, moves=0):
    """Operands of MMAs and copies are in uniform registers: no move into them in a k-tile, of at
    most 68 instructions; of a dual with 12 copies 95, and 17 more for 8 further copies, since its
    scales lie in more atoms. The way to the first load is long for groups: each value of a group is
    selected by as many instructions as there are groups. before: its instructions for one group, a
    fifth of which initialise mbarriers; behind: those of it that come behind the wait for the
    launch before."""
    assert loop.to_uniform <= moves, loop
    most = 68
    if problem.num_products == 2:
        most = 95 + max(0, 17 * (loop.copies - 12) // 8)
    assert loop.instructions <= most, loop
    assert loop.before_load <= before + 30 * (len(problem.groups) - 1), loop
    assert loop.behind_wait <= behind, loop


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted({name.split()[0] for name in FORMS}))
def test_sass_of_all_candidates(kind, tmp_path, fork_server):
    """As that of the picks, but for a longer way to the first load, for each configuration that a
    survey tries. Shapes of one plan have one kernel, which is compiled once.
    """
    shapes = [problem for name, problem in FORMS.items() if name.split()[0] == kind]
    tried = [(problem, config) for problem in shapes for config in candidates(problem)]
    cases = {submission.check(config, problem): (problem, config) for problem, config in tried}
    made = compiled(fork_server, [*cases.values()], tmp_path)
    for (problem, _), (_, cubin) in zip(cases.values(), made):
        lines = disassembly.disassemble(cubin, disassembly.find_tool())
        assert "BRA.U.ANY" not in disassembly.role_loop(lines, ("UTCOMMA", "UTCBAR"))
        in_bounds(problem, disassembly.mma_loop(lines), before=220, behind=30, moves=2)


@pytest.mark.parametrize("name", benchmarks())
def test_benchmark_shapes_take_the_fast_paths(name):
    """A leaderboard's shape has 32-byte stores (gemv has one token)."""
    problem, config = case(name)
    plan = Plan(config, problem)
    assert plan.wide_stores == (not problem.is_gemv)
    assert plan.num_stages * plan.stage_bytes >= 160 * 1024


# ---- rules of the leaderboards -------------------------------------------------------------------

SOURCE = (ROOT / "submission.py").read_bytes()


def test_the_file_keeps_the_rules():
    text = SOURCE.decode("utf-8")
    assert "stream" not in text.lower()
    assert len(SOURCE) < 1_000_000
    assert not re.search(r"\b(exec|eval|compile)\(", re.sub(r"cute\.compile\(", "", text))
    assert not re.search(r"\.item\(|\.cuda\(|\.to\(\s*['\"]cuda|torch\.(tensor|empty)", text)
    assert not re.search(r"synchronize|Event\(", text)  # the host waits for nothing, times nothing


@pytest.mark.parametrize(
    "profile",
    [
        "strict",  # all detectors of the default, and none of its leniencies
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("default", "generic")),
        pytest.param("sol-execbench", marks=pytest.mark.slow),
    ],
)
def test_kernelguard_calls_it_valid(profile):
    """The static checker that the leaderboards run."""
    pytest.importorskip("kernelguard")
    command = [sys.executable, "-m", "kernelguard", "--api-mode", "--profile", profile]
    found = subprocess.run(command, input=SOURCE, capture_output=True, check=True).stdout
    assert json.loads(found)["classification"] == "valid"


def test_it_needs_no_other_file():
    modules = set(re.findall(r"^(?:from|import) (\w+)", SOURCE.decode(), re.MULTILINE))
    standard = modules & set(sys.stdlib_module_names)
    assert modules - standard == {"cutlass", "torch", "task"}


def test_importing_does_nothing(tmp_path):
    """As the runner does first: `python submission.py`, with a task.py of its own."""
    (tmp_path / "submission.py").write_bytes(SOURCE)
    types = (
        "from typing import TypeVar\ninput_t = TypeVar('input_t')\noutput_t = TypeVar('output_t')\n"
    )
    (tmp_path / "task.py").write_text(types)
    command = [sys.executable, "submission.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == ""
    assert sorted(p.name for p in tmp_path.iterdir() if p.suffix == ".py") == [
        "submission.py",
        "task.py",
    ]
