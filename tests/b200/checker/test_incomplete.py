"""What makes a check incomplete."""

from __future__ import annotations

from collections.abc import Callable

import torch

import b200
from b200.checker.finding import LIMIT
from b200.checker.instrument import WRAPPERS
from b200.chip import instruction_set  # noqa: F401  registers every unit
from b200.chip.gpu import Gpu
from b200.effects import Access, Computes, CoreOperation, Effect, Jumps, Ordered, Traps
from tests.planted_bugs import cta
from tests.planted_bugs.case import Source

NOT_UNDERSTOOD = {"Discards"}  # what it leaves in memory is not defined; no rule follows that


def kinds(of: type[Effect] = Effect) -> set[type[Effect]]:
    """The effects that an instruction may state."""
    below = of.__subclasses__()
    return set().union({of} - {Effect, Ordered, Access, CoreOperation}, *map(kinds, below))


# What registers alone have, and where control goes, needs no rule.
STATEFUL = kinds() - kinds(Computes) - {Jumps, Traps}


def launch(write: Callable[[Source], None], n: int = 32):
    k = cta.start(n)
    write(k)
    cta.store_own(k, "%r0")
    gpu = Gpu()
    gpu.machine = b200.machine(gpu.memory)
    out = torch.zeros(n, dtype=torch.int32)
    block = (n, 1, 1)
    return gpu.launch(k.text("k"), "k", (1, 1, 1), block, smem=k.smem, args=[out]), k


def discard(k: Source):
    k("discard.global.L2 [%rd0], 128;", "discard")


def discard_never(k: Source):
    k("setp.gt.u32 %p4, %r0, 99;")
    k("@!%p4 bra AFTER;")
    discard(k)
    k("AFTER: mov.u32 %r5, 0;")


def test_an_instruction_without_a_rule_is_named_where_it_was_executed():
    found, k = launch(discard)
    line = k.marks["discard"][0]
    assert found.incomplete == [f"k.ptx:{line}: the checker has no rule for discard"]
    assert launch(discard_never)[0].incomplete == []


def test_every_instruction_with_state_has_a_rule_or_is_known_to_need_none():
    silent = {each for each in STATEFUL if each.always is not None and each.always.silent}
    assert {each.__name__ for each in STATEFUL - {*WRAPPERS} - silent} == NOT_UNDERSTOOD
    assert not WRAPPERS.keys() & silent


def many_races(k: Source):
    """Stores of two warps to one word, on more lines than there are findings kept."""
    for i in range(LIMIT + 1):
        k(f"st.shared.u32 [%r1+{4 * i}], %r0;")


def test_findings_that_are_dropped_are_said():
    found, _ = launch(many_races, 64)
    dropped = found.findings.dropped
    assert len(found.findings) == LIMIT and dropped > 0
    assert found.incomplete == [
        f"{dropped} finding(s) beyond the first {LIMIT} of the launch are dropped"
    ]


SCRIPT = """
import sys
import torch
import b200
from b200.chip.gpu import Gpu

gpu = b200.install()
out = torch.zeros(32, dtype=torch.int32)
gpu.launch(open(sys.argv[1]).read(), "k", (1, 1, 1), (32, 1, 1), args=[out])
"""


def test_the_exit_status_of_strict(tmp_path, fork_server):
    """0 where the check is incomplete, 1 where that is not to pass; a complete one passes."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    for write, option, status in ((discard, "--no-again", 0), (discard, "--strict", 1)):
        k = cta.start(32)
        write(k)
        cta.store_own(k, "%r0")
        ptx = tmp_path / "k.ptx"
        ptx.write_text(k.text("k"))
        done = fork_server.run("-m", "b200", "run", option, str(script), str(ptx))
        assert done.returncode == status, done.stderr
        assert "the check is incomplete: k.ptx:" in done.stderr
