"""The machine: barriers, clusters, deadlocks, guards, registers."""

import contextlib
import gc

import pytest
import torch

import b200
from b200.checker import Checker
from b200.chip.copies.tensormap import TensorMap
from b200.chip.global_memory import GlobalMemory
from b200.chip.gpu import Gpu
from b200.chip.machine import Machine
from b200.chip.sync.mbarrier import MBarrier
from b200.clock.timed import Timed
from b200.errors import EmulatorError
from b200.explore import Explorer
from b200.program.module import Kernel
from tests.b200.chip.machine_support import STORE, output, report
from tests.b200.ptx_support import kernel, run


def test_bar_sync_between_warps_orders_shared_memory():
    got = output(
        """
    mov.b32 %r10, dyn;
    shl.b32 %r11, %r1, 2;
    add.u32 %r12, %r10, %r11;
    st.shared.u32 [%r12], %r1;
    bar.sync 0;
    xor.b32 %r13, %r11, 508;
    add.u32 %r13, %r13, %r10;
    ld.shared.u32 %r14, [%r13];
    st.global.u32 [%rd3], %r14;""",
        threads=128,
        smem=512,
    )
    assert got == list(range(127, -1, -1))


TURNS = """
    mov.b32 %r10, dyn;
    setp.ne.u32 %p1, %r1, 0;
    @!%p1 mbarrier.init.shared.b64 [%r10], 1;
    mov.u32 %r11, 0;
    bar.sync 0;
    TURN:
    @!%p1 mbarrier.arrive.shared.b64 _, [%r10];
    and.b32 %r12, %r11, 1;
    WAIT:
    mbarrier.try_wait.parity.shared.b64 %p2, [%r10], %r12;
    @!%p2 bra WAIT;
    add.u32 %r11, %r11, 1;
    setp.lt.u32 %p3, %r11, 4;
    @%p3 bra TURN;
    st.global.u32 [%rd3], %r11;"""


def test_no_warp_runs_phases_ahead_of_those_that_come_to_the_same_wait():
    """On a chip they run side by side. In an order that lets the first run on, all others hang."""
    assert output(TURNS, threads=128, smem=64) == [4] * 128
    gpu = Gpu()
    gpu.machine = b200.machine(gpu.memory, check=False, schedule="early")
    assert report(TURNS, threads=128, smem=64, gpu=gpu).kind == "deadlock"


def test_cluster_reads_the_peer_through_mapa():
    got = output(
        """
    mov.b32 %r10, dyn;
    mov.u32 %r11, %cluster_ctarank;
    shl.b32 %r12, %r1, 2;
    add.u32 %r12, %r12, %r10;
    mad.lo.u32 %r13, %r11, 100, %r1;
    st.shared.u32 [%r12], %r13;
    barrier.cluster.arrive.release;
    barrier.cluster.wait.acquire;
    xor.b32 %r14, %r11, 1;
    mapa.shared::cluster.u32 %r15, %r12, %r14;
    ld.shared::cluster.u32 %r16, [%r15];
    barrier.cluster.arrive;
    barrier.cluster.wait;
    st.global.u32 [%rd3], %r16;""",
        ctas=4,
        cluster=(2, 1, 1),
        smem=128,
    )
    assert got == [100 * (1 - c % 2) + t for c in range(4) for t in range(32)]


def test_grid_wide_flag_is_seen_by_earlier_ctas():
    """CTA 0 waits for a flag of the last CTA: later clusters start while earlier ones wait."""
    out = torch.zeros(4, dtype=torch.int32)
    text = kernel(
        """
    ld.param.u64 %rd1, [out];
    mov.u32 %r1, %ctaid.x;
    setp.eq.u32 %p1, %r1, 3;
    @%p1 bra SET;
    W:
    ld.acquire.gpu.global.u32 %r2, [%rd1];
    setp.ne.u32 %p2, %r2, 1;
    @%p2 bra W;
    bra END;
    SET:
    mov.b32 %r3, 1;
    st.release.gpu.global.u32 [%rd1], %r3;
    END:""",
        [".u64 out"],
    )
    run(text, out, grid=(4, 1, 1))
    assert out[0] == 1


def test_missing_arrive_is_a_deadlock_that_names_barrier_and_line():
    error = report(
        """
    mov.b32 %r10, dyn;
    mov.b32 %r11, 2;
    setp.eq.u32 %p1, %r1, 0;
    @%p1 mbarrier.init.shared.b64 [%r10+8], %r11;
    @%p1 mbarrier.init.shared.b64 [%r10], %r11;
    @%p1 mbarrier.arrive.shared.b64 %rd9, [%r10+8];
    .loc 1 42 0
    { .reg .pred P1; LAB: mbarrier.try_wait.parity.shared.b64 P1, [%r10+8], 0;
    @P1 bra DONE; bra LAB; DONE: }""",
        smem=64,
    )
    assert error.kind == "deadlock"
    text = str(error)
    assert (
        "kernel.py:42" in text and "number 1 of 2" in text and "1 of 2 arrival(s) missing" in text
    )


def test_cluster_barrier_nobody_completes_is_a_deadlock():
    error = report(
        """
    mov.u32 %r11, %cluster_ctarank;
    setp.eq.u32 %p1, %r11, 1;
    @%p1 bra SKIP;
    barrier.cluster.arrive;
    barrier.cluster.wait;
    bra END;
    SKIP:
    bar.sync 1, 64;
    END:""",
        ctas=2,
        cluster=(2, 1, 1),
    )
    assert (
        error.kind == "deadlock"
        and "32 are missing" in str(error)
        and "barrier 1 of the CTA: 32 of 64" in str(error)
    )


@pytest.mark.parametrize("body, words", [
    ("st.global.u32 [%rd3+4096], %r1;", "is in no tensor's allocation"),
    ("mov.b32 %r5, 2; add.u64 %rd4, %rd1, 2; st.global.u32 [%rd4], %r5;", "not aligned"),
    ("mov.b32 %r10, dyn; st.shared.u32 [%r10+64], %r1;", "outside the CTA's shared memory"),
    ("mov.b32 %r10, 64; ld.shared.u32 %r11, [%r10];", "outside the CTA's shared memory"),
    ("mov.b32 %r10, dyn; mbarrier.arrive.shared.b64 %rd9, [%r10];", "no mbarrier is initialised"),
    ("setp.lt.u32 %p1, %r1, 5; @%p1 bra A; bra B; A: bar.sync 0; B: st.global.u32 [%rd3], %r1;", "a part of the warp"),
    ("barrier.cluster.wait;", "without barrier.cluster.arrive"),
])  # fmt: skip
def test_guards_name_line_and_reason(body, words):
    error = report(".loc 1 77 0\n" + body, smem=64)
    assert error.kind == "fault" and "kernel.py:77" in str(error) and words in str(error)


def test_unknown_instruction_stops_the_run_naming_it():
    error = report(".loc 1 5 0\nwgmma.fence.sync.aligned;")
    assert error.kind == "unsupported" and "wgmma" in str(error) and "kernel.py:5" in str(error)


def test_a_failure_of_the_emulator_is_not_blamed_on_the_program(monkeypatch):
    def fail(*_):
        raise KeyError("a mistake of ours")

    monkeypatch.setattr(MBarrier, "arrive", fail)
    error = report(
        ".loc 1 5 0\nmov.b32 %r10, dyn; mbarrier.init.shared.b64 [%r10], 1;"
        " mbarrier.arrive.shared.b64 %rd9, [%r10];",
        smem=64,
    )
    assert error.kind == "internal" and "kernel.py:5" in str(error)
    assert "says nothing of the program" in str(error) and "a mistake of ours" in str(error)


@pytest.mark.parametrize("options, words", [
    (dict(smem=240_000), "shared memory"),
    (dict(ctas=3, cluster=(2, 1, 1)), "not a multiple of the cluster"),
    (dict(ctas=32, cluster=(32, 1, 1)), "CTAs a cluster"),
])  # fmt: skip
def test_impossible_launches_are_refused(options, words):
    error = report("st.global.u32 [%rd3], %r1;", **options)
    assert error.kind == "limit" and words in str(error)


def test_counters_count_warp_instructions():
    out = torch.zeros(64, dtype=torch.int32)
    launch = run(
        kernel(STORE + "st.global.u32 [%rd3], %r1;", [".u64 out"], reqntid=64),
        out,
        block=(64, 1, 1),
    )
    assert launch.counters["st.global"] == 2 and launch.counters["mad"] == 2


def test_vectors_of_registers():
    """PTX ISA 5.4.2 and 6.4.3: declared as one, used whole and by element; x and r are the first.
    A scope's own vector hides one of the same name.
    """
    got = output(
        """
    .reg .v4 .b32 v, w;
    .reg .v2 .b32 pair;
    mov.b32 %r10, dyn;
    mov.b32 v.x, 1;
    mov.b32 v.g, 20;
    mov.b32 v.z, 300;
    mov.b32 v.a, 4000;
    { .reg .v4 .b32 v; mov.b32 v.x, 50000; mov.b32 v.y, v.r; }
    st.shared.v4.b32 [%r10], v;
    ld.shared.v4.b32 w, [%r10];
    mov.b32 pair.x, w.x; mov.b32 pair.y, w.y;
    add.u32 %r6, pair.x, pair.y;
    add.u32 %r6, %r6, w.b;
    add.u32 %r6, %r6, w.w;
    st.global.u32 [%rd3], %r6;""",
        smem=64,
    )
    assert got == [4321] * 32


@pytest.mark.parametrize("word, expected", [(0, -1), (1, 0)])
@pytest.mark.parametrize("some", ["", "setp.gt.u32 %p6, %r1, 7; @%p6 bra OUT;"])
def test_a_register_of_128_bits_is_loaded(some, word, expected):
    """As raw CUDA reads the response of clusterlaunchcontrol.try_cancel; all zeros is a failure."""
    got = output(
        f"""
    .reg .b128 response;
    .reg .pred q;
    mov.b32 %r10, dyn;
    mov.b32 %r5, 0;
    mov.b32 %r7, {word};
    st.shared.v4.b32 [%r10], {{%r5, %r5, %r5, %r7}};
    mov.b32 %r6, -1;
    {some}
    ld.shared.b128 response, [%r10];
    clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 q, response;
    @!q bra OUT;
    clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 %r6, response;
    OUT:
    st.global.u32 [%rd3], %r6;""",
        smem=64,
    )
    assert got == [expected if t < 8 or not some else -1 for t in range(32)]


def test_brx_idx_and_local_memory():
    got = output(
        """
    .local .align 8 .b8 depot[16];
    mov.u32 %r20, %ctaid.x;
    ts: .branchtargets T0, T1;
    brx.idx %r20, ts;
    T0:
    mov.b32 %r5, 50;
    bra J;
    T1:
    mov.b32 %r5, 60;
    J:
    mov.b64 %rd20, depot;
    st.local.u32 [%rd20+4], %r1;
    ld.local.u32 %r6, [%rd20+4];
    cvta.local.u64 %rd21, %rd20;
    ld.u32 %r7, [%rd21+4];
    add.u32 %r5, %r5, %r6;
    add.u32 %r5, %r5, %r7;
    st.global.u32 [%rd3], %r5;""",
        ctas=2,
    )
    assert got == [50 + 2 * t for t in range(32)] + [60 + 2 * t for t in range(32)]


def test_carry_flag_chains_additions():
    got = output("""
    mov.b32 %r5, 0xFFFFFFF0;
    add.cc.u32 %r6, %r5, %r1;
    addc.u32 %r7, %r1, 0;
    st.global.u32 [%rd3], %r7;""")
    assert got == [t + (t >= 16) for t in range(32)]


def test_pointer_parameters_with_attributes():
    out = torch.zeros(32, dtype=torch.int32)
    run(
        kernel(
            """
    ld.param.u64 %rd1, [out];
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd2, %r1, 4;
    add.u64 %rd3, %rd1, %rd2;
    st.global.u32 [%rd3], %r1;""",
            [".u64 .ptr .global .align 16 out"],
        ),
        out,
    )
    assert out.tolist() == list(range(32))


def test_a_counted_loop_that_reads_one_word_is_no_poll():
    """50,000 rounds, none with an effect."""
    text = kernel(
        "ld.param.u64 %rd1, [a]; ld.param.u64 %rd2, [b]; mov.u32 %r1, 0; mov.u32 %r2, 0;\n"
        "AGAIN: ld.volatile.global.u32 %r3, [%rd1]; add.u32 %r2, %r2, %r3;\n"
        "add.u32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, 50000; @%p1 bra AGAIN;\n"
        "st.global.u32 [%rd2], %r2;",
        [".u64 a", ".u64 b"],
    )
    one, out = torch.full((1,), 3, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    Gpu().launch(text, None, (1, 1, 1), (32, 1, 1), args=[one, out])
    assert out.item() == 150_000


@pytest.mark.parametrize("body", ["", "trap;"])
@pytest.mark.parametrize("collects", [True, False])
def test_no_garbage_is_collected_during_a_launch_and_after_it_as_before(
    body, collects, monkeypatch
):
    seen, launch = [], Machine.launch

    def watched(*args):
        seen.append(gc.isenabled())
        return launch(*args)

    monkeypatch.setattr(Machine, "launch", watched)
    if not collects:
        gc.disable()
    try:
        with contextlib.suppress(EmulatorError):
            output(body)
        assert (seen, gc.isenabled()) == ([False], collects)
    finally:
        gc.enable()


@pytest.mark.parametrize("nbytes", [64, 128])
def test_a_tensormap_lies_within_the_parameters(nbytes):
    body = "mov.b64 %rd1, map; cvta.param.u64 %rd1, %rd1; prefetch.tensormap [%rd1];"
    text = kernel(body, [f".align 64 .b8 map[{nbytes}]"])
    box = TensorMap(1 << 20, 6, (64, 32), (128,), (32, 8), (1, 1))
    if nbytes == 128:
        run(text, box.encode())
        return
    with pytest.raises(EmulatorError, match="128 bytes at parameter offset 0 of 64"):
        run(text, box.encode()[:nbytes])


@pytest.mark.parametrize("nbytes", [1, 2, 4, 8, 16, 17, 24])
def test_a_number_is_an_argument_of_up_to_16_bytes(nbytes):
    """It wraps as in C; what is larger is a structure, which has to be given as bytes."""
    out = torch.zeros(nbytes, dtype=torch.uint8)
    copies = "".join(
        f"ld.param.u8 %r5, [value+{i}]; st.global.u8 [%rd1+{i}], %r5;" for i in range(nbytes)
    )
    text = kernel(f"ld.param.u64 %rd1, [out]; {copies}", [".u64 out", f".b8 value[{nbytes}]"])
    if nbytes > 16:
        with pytest.raises(TypeError, match=f"argument 1: expected {nbytes} bytes"):
            run(text, out, -2)
        run(text, out, bytes(range(nbytes)))
        assert out.tolist() == list(range(nbytes))
    else:
        run(text, out, -2)
        assert out.tolist() == [0xFE, *[0xFF] * (nbytes - 1)]


@pytest.mark.parametrize("grid", [(2, 1), 2, (2.0, 1, 1)])
def test_a_grid_is_three_whole_numbers(grid):
    with pytest.raises(ValueError, match="grid: expected three whole numbers, got "):
        Gpu().launch(kernel("", []), None, grid, (32, 1, 1))
    assert Gpu().launch(kernel("", []), None, [2, 1, 1], (32, 1, 1)).grid == (2, 1, 1)  # type: ignore[arg-type]


def test_what_is_told_of_a_module_and_an_instruction_that_are_not_there():
    text = kernel("", [], name="one")
    with pytest.raises(ValueError, match="kernel 'two' is not one of the module's: one"):
        Gpu().launch(text, "two", (1, 1, 1), (32, 1, 1), (1, 1, 1), 0, ())
    error = report("setmaxnreg.sync.aligned.u32 64;")
    assert error.kind == "unsupported" and "one of .dec, .inc is missing" in str(error)
    assert Kernel("k").param_bytes == 0


@pytest.mark.parametrize(
    "move", ["mov.b64 {%r5, %r6}, %rd3", "mov.b64{%r5,%r6},%rd3", "mov.b64\t{%r5 ,%r6} , %rd3"]
)
def test_spaces_between_an_instruction_and_its_operands_may_be_left_out(move):
    got = output(
        f"{move}; cvt.u32.u64 %r7, %rd3; sub.u32 %r8, %r5, %r7; st.global.u32 [%rd3], %r8;"
    )
    assert got == [0] * 32


@pytest.mark.parametrize(
    "made",
    [
        "mov.u32 %r5, %tid.x;",
        "mul.lo.u32 %r4, %r1, 64; mov.u32 %r5, %r4;",
        "mov.u32 %r5, %laneid; shl.b32 %r5, %r5, 6;",
        "mov.u32 %r5, %tid.x; setp.gt.u32 %p1, %r5, 40; @%p1 mov.u32 %r5, 999;",
        "mov.u32 %r5, %tid.x; add.u32 %r5, %r5, 16;",
    ],
)
def test_a_shift_of_any_register(made):
    """`tid.x >> 5` is the warp, and the same in its lanes; of nothing else is it said."""
    got = output(f"{made} shr.u32 %r6, %r5, 5; st.global.u32 [%rd3], %r6;", threads=64)
    values = {
        "mov.u32 %r5, %tid.x;": lambda t: t,
        "mul": lambda t: 64 * t,
        "laneid": lambda t: t % 32 * 64,
        "999": lambda t: 999 if t > 40 else t,
        "16": lambda t: t + 16,
    }
    value = next(
        f
        for text, f in values.items()
        if text == made or text in made.removeprefix("mov.u32 %r5, %tid.x;")
    )
    assert got == [value(t) >> 5 for t in range(64)]


def test_a_clock_and_a_checker_are_refused_by_name():
    """Each sees instructions in a way of its own: no machine has both."""
    with pytest.raises(ValueError, match="Timed, Checker do not go together"):
        Machine(GlobalMemory(lambda address: None), Timed(), (Checker(),))


def test_who_records_stands_behind_the_checker_whose_instructions_it_sees():
    """A machine takes the class that is of all of theirs, wherever it stands among them."""
    checker = Checker()
    explorer = Explorer(checker)
    machine = Machine(GlobalMemory(lambda address: None), None, (checker, explorer))
    assert machine.fragment_type is Explorer.fragment_type
    assert machine.writer_type is Explorer.writer_type
    for watchers in ((explorer, checker), (explorer,)):
        with pytest.raises(ValueError, match="Explorer must stand behind its checker"):
            Machine(GlobalMemory(lambda address: None), None, watchers)
