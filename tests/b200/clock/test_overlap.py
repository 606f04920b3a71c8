"""Launches in a queue that overlap: what of a call is hidden, by room, trigger and wait."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import b200
from b200.chip.gpu import Gpu
from b200.clock import Options, overlap
from b200.clock.call_time import gaps_us, reported
from b200.clock.devices import B200
from b200.hardware import SM_COUNT, SMEM_BYTES
from lab.h200 import dependent, dependent_model
from tests.b200.checker.test_dependent_launch import LET, WAIT, _kernel

C = B200.constants("nominal", {})
GHZ = B200.clock_ghz
SMALL, HALF, WHOLE = 8 << 10, 100 << 10, 200 << 10  # bytes of shared memory of a CTA


def grid(ctas=SM_COUNT, size=1, smem=WHOLE, tmem=0, before=1.0, work=5.0, trigger=True, **changes):
    """CTAs that take `before` us to their wait, and `work` behind it."""
    part = overlap.ClusterTimes(before + work, before, before if trigger else None)
    parts = (part,) * (ctas // size)
    made = overlap.Grid(parts, size, (smem, 128, 1, tmem), True, 0.1, 0.0)
    return dataclasses.replace(made, **changes)


def each(grids: list, calls: int = 10) -> float:
    """Microseconds of a call, where many are in the queue: of the last half of them."""
    ended = overlap.Queue(grids * calls, B200.placement(), C, GHZ).run()[
        len(grids) - 1 :: len(grids)
    ]
    return (ended[-1] - ended[calls // 2 - 1]) / (calls - calls // 2)


DISPATCH = SM_COUNT * C.cta_dispatch_ns * 1e-3
RELAUNCH = C.cta_relaunch / GHZ / 1e3 + C.cta_start_us


def test_without_the_attribute_all_is_paid():
    alone = C.launch_gap_us + C.cta_start_us + 1 + 5
    assert each([grid(dependent=False)]) == pytest.approx(alone, abs=DISPATCH)


def test_without_a_trigger_the_next_launch_comes_when_all_have_exited():
    assert each([grid(trigger=False)]) == pytest.approx(C.dependent_exit_us + 6, abs=DISPATCH)


@pytest.mark.parametrize(
    "ctas, smem", [(SM_COUNT // 2, WHOLE), (SM_COUNT, HALF), (SM_COUNT, SMALL)]
)
def test_where_there_is_room_all_in_front_of_the_wait_is_hidden(ctas, smem):
    assert each([grid(ctas, smem=smem)]) == pytest.approx(C.dependent_wait_us + 5, abs=DISPATCH)


@pytest.mark.parametrize("tmem", [0, 512])
def test_where_there_is_none_a_cta_starts_when_another_exits(tmem):
    """Shared memory, or tensor memory, is taken."""
    asked = grid(smem=HALF if tmem else WHOLE, tmem=tmem)
    assert each([asked]) == pytest.approx(max(C.dependent_wait_us, RELAUNCH + 1) + 5, abs=DISPATCH)


def test_tensor_memory_for_two_is_room():
    assert each([grid(smem=HALF, tmem=256)]) == pytest.approx(C.dependent_wait_us + 5, abs=DISPATCH)


def test_a_cta_that_ends_early_makes_room_early():
    """One CTA takes twice as long: the others' successors have started by then."""
    long = overlap.ClusterTimes(11.0, 1.0, 1.0)
    asked = grid()
    uneven = dataclasses.replace(asked, parts=(long, *asked.parts[1:]))
    found = each([uneven])
    assert found == pytest.approx(C.dependent_wait_us + 10, abs=DISPATCH)


def test_launches_of_several_waves():
    """In a launch a CTA starts a relaunch after another's exit, with code that is there."""
    asked = grid(2 * SM_COUNT)
    waves = 6 + C.cta_relaunch / GHZ / 1e3 + 6
    alone = C.launch_gap_us + C.cta_start_us
    whole = each([dataclasses.replace(asked, dependent=False)])
    assert whole == pytest.approx(alone + waves, abs=2 * DISPATCH)
    saved = alone - max(C.dependent_wait_us - 1, RELAUNCH)
    assert each([asked]) == pytest.approx(whole - saved, abs=2 * DISPATCH)


def test_a_pipe_that_is_asked_for_twice_is_shared():
    """Two launches' CTAs on each SM, which both work before the wait of the second."""
    parts = (overlap.ClusterTimes(10.0, 5.0, 0.0),) * SM_COUNT
    light, heavy = (each([grid(smem=HALF, parts=parts, demand=d)]) for d in (0.4, 1.0))
    assert light == pytest.approx(C.dependent_wait_us + 5, abs=DISPATCH)
    assert heavy > light + 3


def test_a_launch_behind_one_that_does_not_overlap():
    """The attribute of the second launch tells: the first waits for all."""
    first, second = grid(dependent=False), grid()
    gaps = C.launch_gap_us + C.cta_start_us + max(C.dependent_wait_us - 1, RELAUNCH)
    assert each([first, second]) == pytest.approx(gaps + 12, abs=2 * DISPATCH)


SOME = [
    a for a in dependent.asked() if a.grid == 64 and (a.before, a.work) in ((0, 20), (500, 1000))
]


@pytest.mark.parametrize("of", SOME, ids=str)
def test_the_h200s_table(of):
    """Each measured time within 15 %; `python -m lab h200_dependent` prints all of them."""
    measured = {m.how: m.us for m in dependent_model.read() if dependent.Asked(*_key(m)) == of}
    assert set(measured) == set(dependent.HOW)
    for how, us in measured.items():
        modelled = dependent_model.model(of, how, clusters=640)
        assert modelled == pytest.approx(us, rel=0.15), how


def test_clusters_that_share_sms_pile_up():
    """On an H200 31 clusters of 4 take 5.4 us a launch, and 33 take 11.0 as the mean of 64 launches,
    5.7 of the first eight: what ends early takes each other's places.
    """

    def us(ctas: int, launches: int, how: str = "before the wait") -> float:
        of = dependent.Asked(4, ctas, 8, 0, 2000)
        return dependent_model.model(of, how, clusters=ctas // 4 * launches)

    assert us(124, 64) == pytest.approx(5.4, rel=0.15)
    assert us(132, 8) == pytest.approx(5.7, rel=0.15)
    assert us(132, 64) == pytest.approx(11.0, rel=0.15)
    assert us(132, 16, "none") == pytest.approx(5.6, rel=0.15)


def _key(m: dependent.DependentTime) -> tuple:
    return m.cluster, m.grid, m.smem_kb, m.before, m.work


# --- a kernel by the clock ------------------------------------------------------------------------
def body(k):
    k(LET)
    k("nanosleep.u32 500;")
    k(WAIT)
    k("st.global.u32 [%rd2], %r0;")


def timed(dependent_: bool, x: torch.Tensor, smem: int = SMEM_BYTES // 2):
    gpu = Gpu()
    gpu.machine = b200.machine(gpu.memory, timing=Options())
    shape = (4, 1, 1), (64, 1, 1), (1, 1, 1), smem
    return gpu.launch(_kernel("body", body), None, *shape, [x, x], dependent=dependent_)


def test_the_clock_records_trigger_and_wait():
    record = timed(True, torch.zeros(64, dtype=torch.int32)).time
    assert record.dependent and len(record.triggered) == len(record.waited) == 4
    for cta in record.ctas:
        assert cta[3] <= record.triggered[cta[0]] < record.waited[cta[0]] < cta[4]
    made = overlap.grid_of(record)
    assert made.need == (SMEM_BYTES // 2 + 1024, 128, 1, 0) and len(made.parts) == 4
    assert made.tail == pytest.approx(record.us(C.store_drain), rel=0.5)


def test_a_call_with_the_attribute_is_shorter_and_one_call_is_not():
    x = torch.zeros(64, dtype=torch.int32)  # where it lies counts, too
    with_it, without = timed(True, x), timed(False, x)
    assert with_it.time.time_us == without.time.time_us
    assert reported([with_it], 1).time_us == reported([without], 1).time_us
    assert reported([with_it], 50).time_us < reported([without], 50).time_us - 0.8
    assert reported([with_it], 50).apart_us == pytest.approx(reported([without], 50).time_us)
    assert gaps_us([without.time], 50, C) == C.launch_gap_us
