"""One access whose lanes lie in different state spaces, and reads just past a tensor."""

from __future__ import annotations

import pytest
import torch

import b200
from b200.chip.global_memory import GlobalMemory
from b200.chip.gpu import Gpu
from b200.errors import Fault
from tests.b200.ptx_support import kernel

BODY = """
ld.param.u64 %rd1, [out];
mov.u32 %r1, %tid.x;
mul.wide.u32 %rd7, %r1, 4;
mov.u32 %r2, dyn;
cvt.u64.u32 %rd5, %r2;
cvta.shared.u64 %rd6, %rd5;
add.u64 %rd8, %rd6, %rd7;
add.u64 %rd3, %rd1, %rd7;
{prepare}
{pick}
selp.b64 %rd9, %rd3, %rd8, %p1;
add.u32 %r4, %r1, 100;
{write}
{order}
{read}
add.u64 %rd10, %rd3, 128;
st.global.u32 [%rd10], %r5;
"""
PICKS = ("setp.eq.u32 %p1, %r1, 31;", "setp.lt.u32 %p1, %r1, 16;", "setp.ne.u32 %p1, %r1, 0;")
STORE, LOAD, EXCHANGE = (
    "st.u32 [%rd9], %r4;",
    "ld.u32 %r5, [%rd9];",
    "atom.exch.b32 %r6, [%rd9], %r4;",
)


def launched(pick: str, write: str, timing: bool = False, order="bar.warp.sync -1;", prepare=""):
    out, gpu = torch.zeros(64, dtype=torch.int32), Gpu()
    gpu.machine = b200.machine(gpu.memory, check=True, timing=timing)
    body = BODY.format(prepare=prepare, pick=pick, write=write, order=order, read=LOAD)
    return gpu.launch(
        kernel(body, [".u64 out"]), "k", (1, 1, 1), (32, 1, 1), smem=1024, args=[out]
    ), out


@pytest.mark.parametrize("write", (STORE, EXCHANGE), ids=("store", "atomic"))
@pytest.mark.parametrize("pick", PICKS, ids=("last", "half", "first"))
@pytest.mark.parametrize("timing", (False, True), ids=("checked", "timed"))
def test_lanes_of_one_access_lie_in_two_spaces(pick, write, timing):
    launch, out = launched(pick, write, timing)
    assert out[32:].tolist() == list(range(100, 132))
    assert not launch.findings and not launch.incomplete


def test_each_space_is_checked():
    """The shared half reads what another lane has stored without bar.warp.sync."""
    prepare = "xor.b32 %r3, %r1, 1;\nshl.b32 %r3, %r3, 2;\nadd.u32 %r3, %r3, %r2;"
    write = f"{STORE}\nbar.warp.sync -1;\nst.shared.u32 [%r3], %r4;"
    launch, _ = launched(PICKS[1], write, order="", prepare=prepare)
    assert {f.kind for f in launch.findings or ()} == {"race"}
    launch, _ = launched(PICKS[1], write, prepare=prepare)
    assert not launch.findings


HALVES = """ld.param.u64 %rd1, [a]; ld.param.u64 %rd2, [b]; mov.u32 %r1, %tid.x;
and.b32 %r2, %r1, 31; mul.wide.u32 %rd4, %r2, 4;
setp.lt.u32 %p1, %r2, 16; selp.b64 %rd3, %rd1, %rd2, %p1; add.u64 %rd3, %rd3, %rd4;
add.u64 %rd5, %rd2, %rd4; setp.lt.u32 %p2, %r1, 32;
"""
TENSORS = {  # how the lanes of a warp meet another warp in the second of two tensors; whether
    # `meet` keeps them apart
    "stores of other values": "selp.b32 %r3, 7, %r1, %p1; {meet} st.global.u32 [%rd3], %r3;",
    "reads before a store": "@!%p2 bra STORE; ld.global.u32 %r3, [%rd3];"
    "STORE: {meet} @!%p2 st.global.u32 [%rd5], %r1;",
}


@pytest.mark.parametrize("schedule", (None, "late", "random:1"))
@pytest.mark.parametrize("body", TENSORS.values(), ids=TENSORS)
def test_lanes_of_one_access_lie_in_two_tensors(body, schedule):
    def found(meet: str) -> list[str]:
        tensors, gpu = [torch.zeros(64, dtype=torch.int32) for _ in "ab"], Gpu()
        gpu.machine = b200.machine(gpu.memory, schedule=schedule)
        text = kernel(HALVES + body.replace("{meet}", meet), [".u64 a", ".u64 b"], reqntid=64)
        launch = gpu.launch(text, "k", (1, 1, 1), (64, 1, 1), args=tensors)
        return [f.kind for f in launch.findings or ()]

    together = "bar.sync 0;" if "%p2 bra" in body else "@!%p2 add.u64 %rd3, %rd3, 128;"
    assert found("") == ["global"]
    assert not found(together)


def test_sums_of_one_access_lie_in_two_tensors():
    """The lower lanes of each CTA add to a tensor of its own, the upper ones all to `b`."""
    (a, b, c), gpu = (torch.zeros(32) for _ in "abc"), Gpu()
    gpu.machine = b200.machine(gpu.memory)
    own = "ld.param.u64 %rd6, [c]; mov.u32 %r4, %ctaid.x; setp.eq.u32 %p3, %r4, 1;"
    own += "and.pred %p3, %p3, %p1; add.u64 %rd6, %rd6, %rd4; @%p3 mov.u64 %rd3, %rd6;"
    body = HALVES + own + "red.global.add.f32 [%rd3], 1.0;"
    text = kernel(body, [".u64 a", ".u64 b", ".u64 c"])
    launch = gpu.launch(text, "k", (2, 1, 1), (32, 1, 1), args=[a, b, c])
    (note,) = list(launch.findings or [])
    assert note.kind == "order" and "in b" in note.details


def test_a_gap_is_searched_once_a_launch():
    """However many reads reach past an allocation. Another function may know an address there."""
    data, searches, others = torch.zeros(100, dtype=torch.uint8), [], []

    def find_all(memory, address):
        searches.append(address)
        memory.register(data.data_ptr(), 100, "data")

    memory = GlobalMemory(find_all)
    memory.also_search(lambda memory, address: others.append(address))
    end = data.data_ptr() + 100
    for step in range(50):
        assert memory.readable(end + 4 * step, 4, rounded=True) != end + 4 * step
    assert len(searches) == 1 and len(others) == 50
    with pytest.raises(Fault, match="no tensor's allocation"):
        memory.readable(end + 1000, 4, rounded=True)
    memory.retain(lambda region: not region.behind)
    memory.readable(end, 4, rounded=True)
    assert len(searches) == 2
