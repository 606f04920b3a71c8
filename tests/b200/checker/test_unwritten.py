"""Reads of global memory that nobody has written: which reach a result, and what stays as it was."""

import re

import numpy as np
import pytest
import torch

import b200
from b200.checker.finding import ERROR, NOTE
from b200.chip import unwritten
from b200.chip.gpu import Gpu
from tests.planted_bugs.case import Source
from tests.planted_bugs.cta import OUT, start, store_own
from tests.planted_bugs.gemm_kernel import Options, arguments, build
from tests.planted_bugs.tmem import tensor_memory
from tests.planted_bugs.unwritten import THREADS, empty

PARAMS = ".param .u64 src, .param .u64 out"
START = (
    "mov.u32 %r0, %tid.x;",
    "mov.u32 %r50, %ctaid.x;",
    f"mad.lo.u32 %r53, %r50, {THREADS}, %r0;",
    "ld.param.u64 %rd0, [src];",
    "ld.param.u64 %rd1, [out];",
    "mul.wide.u32 %rd8, %r53, 4;",
    "add.u64 %rd9, %rd0, %rd8;",
    "add.u64 %rd10, %rd1, %rd8;",
    "setp.lt.u32 %p4, %r53, 24;",
    "ld.global.u32 %r5, [%rd9];",
)
STORE = "st.global.u32 [%rd10], %r5;"


def text(*body: str) -> str:
    k = Source(PARAMS, THREADS)
    for line in (*START, *body, STORE):
        k(line)
    return k.text("reads")


def run(source: torch.Tensor, *body: str, ctas: int = 1, check: bool | str = True, schedule=None):
    """Threads load their word of `source`, do what `body` says and store %r5."""
    out = torch.zeros(THREADS * ctas, dtype=torch.int32)
    gpu = Gpu()
    gpu.machine = b200.machine(gpu.memory, check, schedule=schedule)
    arguments = [source, out]
    launch = gpu.launch(text(*body), "reads", (ctas, 1, 1), (THREADS, 1, 1), args=arguments)
    return launch.findings or [], out


def found_in(k: Source, *arguments: torch.Tensor, ctas: int = 1) -> list:
    """The findings on a kernel. Without arguments it stores a word for each of 32 threads."""
    gpu = Gpu()
    gpu.machine = b200.machine(gpu.memory, check=True)
    out = torch.zeros(32, dtype=torch.int32)  # findings name it
    shape = (ctas, 1, 1), (k.threads, 1, 1), (1, 1, 1)
    return gpu.launch(k.text("k"), None, *shape, 0x8000, arguments or (out,)).findings or []


@pytest.mark.parametrize("schedule", [None, "early", "random:3", "all", "pdl"])
def test_what_is_not_used_is_a_remark(schedule):
    findings, out = run(empty(THREADS, 24), "selp.u32 %r5, %r5, 1, %p4;", schedule=schedule)
    (finding,) = findings
    assert (finding.kind, finding.severity) == ("unwritten", NOTE)
    assert "no result of the launch" in finding.message
    assert "source[24]" in finding.message and "32 bytes in this access" in finding.message
    assert out.tolist() == [1] * THREADS


@pytest.mark.parametrize(
    "use",
    [
        "max.f32 %f1, %f0, 0f40000000; mov.b32 %r5, %f1;",  # maximum of NaN and 2: as of 0 and 2
        "setp.gt.f32 %p5, %f0, 0f40000000; selp.u32 %r5, 1, 0, %p5;",
        "add.f32 %f1, %f0, %f0; mov.b32 %r5, %f1;",
        "and.b32 %r5, %r5, 64;",
    ],
)
def test_what_is_used_is_an_error(use):
    body = [f"{part.strip()};" for part in use.split(";") if part.strip()]
    findings, out = run(empty(THREADS, 24), "mov.b32 %f0, %r5;", *body)
    (finding,) = findings
    assert (finding.kind, finding.severity) == ("unwritten", ERROR)
    assert "a result that depends on it: out[24]" in finding.message


def test_a_launch_that_ends_in_a_fault_has_the_read_as_its_cause():
    with pytest.raises(b200.EmulatorError, match="reads global memory that nobody has written"):
        run(empty(THREADS, 24), "mul.wide.u32 %rd8, %r5, 4;", "add.u64 %rd10, %rd1, %rd8;")


def test_memory_is_what_the_launch_has_left():
    """The launch is carried out again with other values: nothing of that stays."""
    k = "add.u32 %r5, %r5, 1;"
    found = []
    for check in (True, False):
        source = empty(THREADS, 24)
        _, out = run(source, k, "st.global.u32 [%rd9], %r5;", check=check)
        found.append((source, out))
    (source, out), (plain_source, plain_out) = found
    assert torch.equal(source, plain_source) and torch.equal(out, plain_out)


def test_results_do_not_depend_on_the_heap():
    values = [run(empty(THREADS), check=False)[1] for _ in range(2)]
    assert torch.equal(*values)


@pytest.mark.parametrize("check", [True, "all"])
def test_clusters_that_follow_are_seen(check):
    """The last of 8 CTAs alone reads what nobody has written."""
    source = empty(8 * THREADS, 7 * THREADS)
    findings, _ = run(source, ctas=8, check=check)
    (finding,) = findings
    assert "source[224]" in finding.message and "128 there in the launch" in finding.message


def test_a_launch_that_follows_the_one_before_is_seen():
    """The same kernel on other memory, whose last CTA reads what nobody has written."""
    gpu = Gpu()
    gpu.machine = b200.machine(gpu.memory)
    program = gpu.load(text())
    out = torch.zeros(8 * THREADS, dtype=torch.int32)
    found = []
    for written in (8, 8, 7):
        source = empty(8 * THREADS, written * THREADS)
        launch = gpu.launch(program, "reads", (8, 1, 1), (THREADS, 1, 1), args=[source, out])
        found.append([finding.severity for finding in launch.findings or ()])
    assert found == [[], [], [ERROR]]


def test_what_the_launch_writes_is_written():
    findings, _ = run(empty(THREADS, 24), "bar.sync 0;", "ld.global.u32 %r5, [%rd10];")
    assert [finding.severity for finding in findings] == [NOTE]  # of the first load alone
    assert ":10:" in findings[0].message


# --- what holds the pattern ----------------------------------------------------------------------


@pytest.mark.parametrize("nbytes", [2, 4, 6, 512, 20_000, unwritten.SMALL + 6, 1 << 20])
def test_all_of_an_allocation_is_unwritten(nbytes):
    data = np.zeros(nbytes, np.uint8)
    unwritten.fill(data)
    found = unwritten.find(data)
    assert found is not None and found.all() and found.size == nbytes // 2


@pytest.mark.parametrize("size, least", [(4096, 4), (1 << 20, 16)])
def test_a_hole_is_found_from_so_many_bytes_on(size, least):
    data = np.zeros(size, np.uint8)
    unwritten.fill(data)
    pattern = data.copy()
    data[:] = 7
    data[1002 : 1002 + least] = pattern[1002 : 1002 + least]
    found = unwritten.find(data)
    assert found is not None
    assert np.flatnonzero(found).tolist() == list(range(501, 501 + least // 2))


@pytest.mark.parametrize("value", [0, 255, 127, 128, 1])
def test_common_contents_are_written(value):
    for size in (4, 512, 1 << 20):
        assert unwritten.find(np.full(size, value, np.uint8)) is None


def test_four_bit_data_is_written():
    data = np.random.default_rng(1).integers(0, 256, 1 << 24, np.uint8)
    assert unwritten.find(data) is None


def test_the_pattern_is_no_number():
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        values = torch.from_numpy(unwritten.PATTERN.view(np.int16).copy()).view(dtype)
        assert values.isnan().all()


# --- what starts so ------------------------------------------------------------------------------

PROGRAM = """
import ctypes, numpy as np, torch, b200
from b200.chip import unwritten
b200.install()
def holds(t, start=0):
    storage = t.untyped_storage()
    data = np.zeros(storage.nbytes(), np.uint8)
    unwritten.fill(data)
    return ctypes.string_at(storage.data_ptr() + start, data.size - start) == data[start:].tobytes()
for device in ("cpu", "cuda"):
    x = torch.empty((3, 50), device=device)
    assert holds(x), device
    assert holds(torch.empty_like(x)) and holds(x.new_empty(7)) and holds(x.new_empty((2, 300)))
    assert holds(torch.empty_strided((4, 4), (8, 1), device=device))
    assert not holds(torch.zeros(5, device=device)) and not holds(torch.empty(5).fill_(1))
    x.fill_(1)
    x.resize_(40, 50)
    assert holds(x, 600) and not holds(x), device
assert torch.empty(4, device="meta").shape == (4,)
torch.empty(3, out=torch.zeros(3)).sum()
print("fine")
"""


def test_tensors_without_contents_are_unwritten(fork_server):
    done = fork_server.run("-c", PROGRAM)
    assert done.stdout == "fine\n", done.stderr


@pytest.mark.parametrize("dropped", [True, False])
def test_a_value_of_a_lane_that_has_returned_matters_where_a_result_depends_on_it(dropped):
    k = start(32, OUT)
    k("setp.ge.u32 %p4, %r0, 24;")
    k("@%p4 bra END;")
    k("shfl.sync.down.b32 %r6, %r0, 1, 31, -1;")
    k(f"setp.lt.u32 %p5, %r0, {23 if dropped else 24};")
    k("selp.b32 %r6, %r6, 0, %p5;")
    store_own(k, "%r6")
    k("END:")
    (found,) = found_in(k)
    assert "a shuffle takes values of lane 24" in str(found)
    assert found.severity == (NOTE if dropped else ERROR)


@pytest.mark.parametrize("dropped", [True, False])
def test_tensor_memory_that_nothing_has_written_matters_where_a_result_depends_on_it(dropped):
    k = start(32, OUT)
    k("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1], 32;")
    k("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;")
    k("ld.shared.u32 %r4, [%r1];")
    k("tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r6}, [%r4];")
    k("tcgen05.wait::ld.sync.aligned;")
    if dropped:
        k("mov.u32 %r6, %r0;")
    store_own(k, "%r6")
    k("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r4, 32;")
    (found,) = found_in(k)
    assert found.kind == "uninitialised" and "reads tensor memory" in found.diagnosis
    assert found.severity == (NOTE if dropped else ERROR)


@pytest.mark.parametrize("dropped", [True, False])
def test_a_sum_on_what_nothing_has_written_matters_where_a_result_depends_on_it(dropped):
    k = build(Options(first_accumulates=1))
    if dropped:  # the epilogue stores something else
        k.lines = [
            re.sub(r"(st.global.*){.*}", r"\1{%r0, %r0, %r0, %r0}", line) for line in k.lines
        ]
    (found,) = judged(k, "uninitialised", *arguments())
    assert "tcgen05.mma reads tensor memory" in found.diagnosis
    assert found.severity == (NOTE if dropped else ERROR)


@pytest.mark.parametrize("dropped", [True, False])
def test_deallocated_tensor_memory_matters_where_a_result_depends_on_it(dropped):
    """A store to it is an error in any case: another CTA may have it."""
    k = tensor_memory(free_first=True)
    if dropped:
        k.lines = [line.replace("[%rd9+-512], %r5", "[%rd9+-512], %r0") for line in k.lines]
    (found,) = judged(k, "lifetime", torch.zeros(32, dtype=torch.int32))
    assert "tcgen05.ld uses tensor memory that is deallocated" in found.diagnosis
    assert found.severity == (NOTE if dropped else ERROR)


def judged(k: Source, kind: str, *arguments: torch.Tensor) -> list:
    """The findings of this kind on a kernel of one CTA."""
    return [found for found in found_in(k, *arguments) if found.kind == kind]


@pytest.mark.parametrize(
    "body, wanted",
    [
        (("ld.local.u32 %r5, [x+8];",), [ERROR]),
        (("ld.local.u32 %r5, [x+8];", "mov.u32 %r5, 1;"), []),
        (("st.local.u32 [x+8], %r0;", "ld.local.u32 %r5, [x+8];"), []),
        (("@%p4 st.local.u32 [x+8], %r0;", "ld.local.u32 %r5, [x+8];"), [ERROR]),
        (("mov.u64 %rd4, x;", "cvta.local.u64 %rd4, %rd4;", "ld.u32 %r5, [%rd4+8];"), [ERROR]),
    ],
)
@pytest.mark.parametrize("ctas", [1, 8])
def test_local_memory_that_nothing_has_written(body, wanted, ctas):
    """Thread 0 alone stores under %p4."""
    k = start(32, OUT)
    k("setp.eq.u32 %p4, %r0, 0;")
    k(".local .align 8 .b8 x[64];")
    for line in body:
        k(line)
    store_own(k, "%r5")
    found = [f for f in found_in(k, ctas=ctas) if f.kind == "uninitialised"]
    assert [f.severity for f in found] == wanted
    assert all("local memory" in f.diagnosis and "depends on it: out" in str(f) for f in found)


@pytest.mark.parametrize(
    "body, wanted",
    [
        (("add.u32 %r5, %r60, 1;",), True),
        (("add.u32 %r5, %r60, 1;", "mov.u32 %r5, 1;"), False),
        (("@%p4 mov.u32 %r5, 1;",), True),
        (("@%p4 mov.u32 %r5, 1;", "@!%p4 mov.u32 %r5, 2;"), False),
        (("selp.u32 %r5, 1, 2, %p30;",), True),
        (("mov.u32 %r5, 0;", "@%p4 bra ON;", "mov.u32 %r60, 3;", "ON:"), False),
    ],
)
def test_a_register_that_nothing_has_written(body, wanted):
    k = start(32, OUT)
    k("setp.eq.u32 %p4, %r0, 0;")
    for line in body:
        k(line)
    store_own(k, "%r5")
    assert [f.diagnosis for f in found_in(k)] == (
        ["a register is read that nothing has written"] if wanted else []
    )


HEAP = """
.extern .func (.param .b64 out) malloc (.param .b64 bytes);
.extern .func free (.param .b64 block);
"""


def on_the_heap(*body: str) -> list:
    """Findings on a thread that allocates 64 bytes at %rd4, does what `body` says and stores %r5."""
    k = Source(".param .u64 out", 1)
    k("ld.param.u64 %rd1, [out];")
    k("{ .param .b64 p; .param .b64 q; st.param.b64 [p], 64;")
    k("call.uni (q), malloc, (p); ld.param.b64 %rd4, [q]; }")
    for line in body:
        k(line)
    k("st.global.u32 [%rd1], %r5;")
    gpu = Gpu()
    gpu.machine = b200.machine(gpu.memory, check=True)
    text = k.text("k").replace("\n.visible", f"{HEAP}.visible")
    out = torch.zeros(1, dtype=torch.int32)
    return gpu.launch(text, None, (1, 1, 1), (1, 1, 1), args=[out]).findings or []


FREE = "{ .param .b64 p; st.param.b64 [p], %rd4; call.uni free, (p); }"
SET = "st.global.u32 [%rd4], 7;"
LOAD = "ld.global.u32 %r5, [%rd4];"


@pytest.mark.parametrize("dropped", [True, False])
def test_freed_memory_of_the_heap_matters_where_a_result_depends_on_it(dropped):
    (found,) = on_the_heap(SET, FREE, LOAD, *(("mov.u32 %r5, 1;",) if dropped else ()))
    assert "loaded from 64 bytes of malloc in a kernel, which were freed" in found.diagnosis
    assert found.severity == (NOTE if dropped else ERROR)
    assert on_the_heap(SET, LOAD, FREE) == []


def test_the_second_run_frees_what_the_first_has_freed():
    (found,) = on_the_heap("ld.global.u32 %r5, [%rd4+4];", "mov.u32 %r5, 1;", SET, FREE)
    assert found.kind == "unwritten" and found.severity == NOTE


def test_a_store_to_freed_memory_of_the_heap_is_a_fault():
    with pytest.raises(b200.EmulatorError, match="which were freed"):
        on_the_heap(FREE, "mov.u32 %r5, 1;", SET)


@pytest.mark.parametrize("dropped", [True, False])
def test_what_lies_behind_a_tensor_matters_where_a_result_depends_on_it(dropped):
    source = torch.arange(THREADS - 8, dtype=torch.int32)
    body = (f"setp.lt.u32 %p5, %r53, {THREADS - 8};", "selp.b32 %r5, %r5, 0, %p5;")
    findings, out = run(source, *(body if dropped else ()))
    (found,) = findings
    assert found.kind == "unwritten" and "are loaded after" in found.diagnosis
    assert found.severity == (NOTE if dropped else ERROR)
    assert ("a result that depends on it: out" in str(found)) != dropped
    assert (out[-8:] == (0 if dropped else -1)).all()
