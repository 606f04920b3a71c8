"""A warp is 32 threads: random programs against an interpreter that runs them thread by thread."""

import pytest
import torch

from b200.chip.gpu import Gpu
from tests.b200.chip.warp_programs import Maker, Text, interpret
from tests.b200.ptx_support import HEADER


def emulated(program: list) -> list[int]:
    text = f"{HEADER}\n.visible .entry k(.param .u64 out)\n{{\n{Text(program).body()}\n}}"
    out = torch.zeros(32, dtype=torch.int32)
    Gpu().launch(text, None, (1, 1, 1), (32, 1, 1), (1, 1, 1), 0, (out,))
    return [value & 0xFFFFFFFF for value in out.tolist()]


def agrees(seed: int, turns: bool) -> bool:
    program = Maker(seed, turns).program()
    return emulated(program) == interpret(program)


@pytest.mark.parametrize("turns", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_a_program_gives_what_its_threads_give(seed, turns):
    assert agrees(seed, turns)


@pytest.mark.slow
@pytest.mark.parametrize("turns", [False, True])
def test_a_thousand_programs_give_what_their_threads_give(turns):
    assert not [seed for seed in range(1000) if not agrees(seed, turns)]
