"""setmaxnreg: what a thread starts with, and the CTA's pool."""

import pytest

from b200.chip.sync.registers import RegisterPool, registers_at_entry
from b200.program.module import Kernel
from b200.registry import Blocked

# "Used N registers" of ptxas 13.0.88 -arch=sm_100a -v for a kernel with the operands; None: C7508.
PTXAS = [
    ({}, (168, 80), None),
    ({"maxntid": (512,)}, (168, 80), None),
    ({"reqntid": (512,)}, (168, 80), None),
    ({"minnctapersm": (1,)}, (168, 80), None),
    ({"maxntid": (512,), "minnctapersm": (1,)}, (168, 80), 128),
    ({"maxntid": (384,), "minnctapersm": (1,)}, (168, 80), 168),
    ({"maxntid": (256,), "minnctapersm": (2,)}, (168, 80), 128),
    ({"maxntid": (512,), "minnctapersm": (1,)}, (80, 80), 80),
    ({"maxntid": (512,), "maxnreg": (64,)}, (168, 80), 64),
    ({"maxnreg": (64,)}, (168, 80), 64),
    ({"reqntid": (256,), "maxnreg": (200,)}, (168, 80), 168),
    ({"reqntid": (256,), "minnctapersm": (1,)}, (168, 80), 168),
    ({"reqntid": (384,), "minnctapersm": (1,)}, (240, 24), 168),
    ({"reqntid": (640,), "minnctapersm": (1,)}, (192, 48), 96),
    ({"reqntid": (416,), "minnctapersm": (1,)}, (192, 48), 128),
    ({"maxntid": (1024,), "minnctapersm": (2,)}, (168, 80), 32),
]


@pytest.mark.parametrize("directives, operands, expected", PTXAS)
def test_registers_at_entry_are_those_of_ptxas(directives, operands, expected):
    assert registers_at_entry(Kernel("k", directives=directives), list(operands)) == expected


def test_a_kernel_without_setmaxnreg_has_no_pool():
    assert registers_at_entry(Kernel("k", directives={"maxnreg": (64,)}), []) is None


def test_the_pool_hands_over_what_warps_give():
    pool = RegisterPool(None, 128)
    with pytest.raises(Blocked):
        pool.take(4, 160)
    pool.give(0, 96)
    pool.take(4, 160)
    assert (pool.free, pool.of(0), pool.of(4), pool.of(8)) == (0, 96, 160, 128)
    with pytest.raises(Blocked):
        pool.take(5, 136)
    pool.take(4, 160)  # what it has
    assert pool.wanted == {5: 136}
