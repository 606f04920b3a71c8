"""Each form of the kernel has a row in docs/results/evidence.json, and a form without one is found."""

from __future__ import annotations

import dataclasses
import functools
import struct

import pytest

from b200.chip.copies.tensormap import TensorMap
from b200.chip.launch import Launch
from b200.program.parse import parse
from lab.evidence import forms, kernels, rows
from lab.evidence.rows import Evidence, Row, Source
from lab.evidence.watch import Watching
from lab.tables import evidence as evidence_tables
from tests import ROOT

HEAD = ".version 8.8\n.target sm_100a\n.address_size 64\n"


@pytest.fixture
def command(fork_server):
    """command(*arguments, limit=seconds): python -m lab evidence."""
    return functools.partial(fork_server.run, "-m", "lab", "evidence")


def test_some_picks_have_no_form_without_a_row(command):
    done = command("--every", "30", limit=600)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr[-2000:]


@pytest.mark.slow
def test_no_pick_and_no_configuration_has_a_form_without_a_row(command):
    done = command(limit=3600)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr[-2000:]


@pytest.mark.slow
def test_what_other_chips_make_it_pick_is_right(command):
    done = command("--check", limit=3600)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr[-2000:]
    changed = done.stderr.count(": right\n")
    assert changed, "no table changes a pick: the test looks at nothing"


def test_a_changed_instruction_is_found(command, tmp_path):
    """The kernel with another store: the form is named, with the first case that has it."""
    text = (ROOT / "submission.py").read_text()
    old, new = "st.global.L1::no_allocate.b16", "st.global.L1::evict_first.b16"
    assert old in text
    changed = tmp_path / "submission.py"
    changed.write_text(text.replace(old, new))
    done = command("--every", "60", "--submission", str(changed), limit=600)
    (line,) = done.stdout.splitlines()
    form = "instruction: st.global.L1::evict_first.b16"
    assert done.returncode == 1 and line.startswith(f"{form}: no row has it; gemv m: 128; k: 256")


def test_a_script_that_launches_nothing_has_no_forms(command, tmp_path):
    script = tmp_path / "idle.py"
    script.write_text("print('nothing to do')\n")
    done = command("--forms", "--script", str(script), limit=120)
    said = f"{script}: launched no kernel, so there is no form to look at"
    assert (done.returncode, done.stdout.splitlines()) == (1, ["nothing to do", said])


def test_the_rows_are_right():
    assert rows.wrong(rows.load()) == []


@pytest.mark.parametrize(
    "pattern, expected",
    [
        ("launch: 192 threads", ["launch: 192 threads"]),
        ("a{b,,c}d", ["abd", "ad", "acd"]),
        ("N {8..24 by 8}", ["N 8", "N 16", "N 24"]),
        ("{a,b}.{1..2 by 1}", ["a.1", "a.2", "b.1", "b.2"]),
    ],
)
def test_patterns(pattern, expected):
    assert rows.expand(pattern) == expected


def test_a_range_without_numbers_is_refused():
    with pytest.raises(ValueError, match="no number in {16..8 by 8}"):
        rows.expand("N {16..8 by 8}")


SEEN = Row(("launch: 1", "launch: {2,3}"), "", (("chip", "line 1"),))
OPEN = Row(("launch: 4",), "", (("text", ""),), if_wrong="a hang", instead="without it")
ORDER = Row(("order: a, then b",), "", (("chip", ""),), of=("instruction: a",))


def evidence(*more: Row) -> Evidence:
    sources = (Source("chip", "", rows.CHIP), Source("text", ""))
    return Evidence({source.key: source for source in sources}, (SEEN, OPEN, ORDER, *more))


def test_right_rows():
    assert rows.wrong(evidence()) == []
    assert evidence().open == [OPEN]


@pytest.mark.parametrize(
    "row, said",
    [
        (dataclasses.replace(SEEN, patterns=("launch: 3",)), "launch: 3: in the rows"),
        (dataclasses.replace(SEEN, patterns=("launch: 5", "mma: 5")), "forms of one kind"),
        (dataclasses.replace(SEEN, patterns=("other: 5",)), "forms of one kind"),
        (Row(("launch: 5",), "", (("text", ""),)), "no witness from a B200"),
        (Row(("launch: 5",), "", (("nobody", ""),)), "no source is called 'nobody'"),
        (Row(("launch: 5",), "", (("chip", ""),), if_wrong="a hang"), "goes with the way around"),
        (dataclasses.replace(ORDER, patterns=("order: c",), of=()), "says which forms it is of"),
    ],
)
def test_a_wrong_row_is_found(row, said):
    assert any(said in line for line in rows.wrong(evidence(row)))


def test_open_rows_are_counted():
    more = [dataclasses.replace(OPEN, patterns=(f"launch: {i}",)) for i in range(5, 10)]
    assert rows.wrong(evidence(*more[:4])) == []
    assert "at most 5 rows may lack a witness" in rows.wrong(evidence(*more))[-1]


def test_what_has_no_row_and_what_row_is_idle():
    seen = ["launch: 2", "launch: 6", "instruction: b"]
    assert rows.missing(evidence(), seen) == ["instruction: b", "launch: 6"]
    assert rows.idle(evidence(), seen) == ["launch: 4", "order: a, then b"]


def test_the_tables_have_each_row_once():
    data = {
        "sources": {"chip": {"what": "a chip", "ran": "B200"}, "text": {"what": "a text"}},
        "rows": [
            {"forms": ["launch: 1"], "means": "m", "witnesses": [["chip", "line 1"]]},
            {
                "forms": ["launch: 2"],
                "means": "m",
                "witnesses": [["text", ""]],
                "if_wrong": "a hang",
                "instead": "without it",
            },
        ],
    }
    assert "| `1` | m | **chip** line 1 |" in evidence_tables.of_kind("launch")(data)
    assert "`2`" not in evidence_tables.of_kind("launch")(data)
    assert "| `2` | m | **text** | a hang | without it |" in evidence_tables.without(data)


def test_instructions_are_named_with_all_modifiers():
    text = f"{HEAD}.visible .entry k() {{ .reg .b32 %r<2>; mov.b32 %r0, 1; add.s32 %r1, %r0, 2; ret; }}"
    kernel = parse(text).kernels["k"]
    found = {"instruction: mov.b32", "instruction: add.s32", "instruction: ret"}
    assert set(forms.instructions(kernel)) == found


def test_a_tensormap_is_named_by_its_bits():
    """Hints that TensorMap does not have: promotion is bits 17 and 18 of the second word."""
    codes = TensorMap(1 << 20, 11, (512, 64, 1), (256, 256 * 64), (256, 32, 1), swizzle=3)
    raw = bytearray(codes.encode())
    raw[8 + 2] |= 2 << 1
    text = f"{HEAD}.visible .entry k(.param .align 64 .b8 m[128]) {{ ret; }}"
    kernel = parse(text).kernels["k"]
    (form,) = forms.tensormaps(kernel, bytes(raw))
    expected = "b4x16, box 256 x 32 x 1, 128B swizzle, zero fill, L2 promotion 128B, hint 0"
    assert form == f"tensormap: {expected}"


def test_a_launch_is_named_by_its_attributes_and_sizes():
    text = f"{HEAD}.visible .entry k() .reqntid 64, 1, 1 {{ ret; }}"
    kernel = parse(text).kernels["k"]
    done = Launch("k", (4, 1, 1), (64, 1, 1), (2, 1, 1), smem_bytes=100_000)
    junk = bytes([0, 0, 0, 0, 77] + [0] * 59)
    found = set(forms.launch(kernel, done, bytes(5000), {4: bytes([2]) + bytes(63), 2: junk}))
    assert found == {
        "launch: directive .reqntid",
        "launch: attribute cluster dimension",
        "launch: attribute cooperative, zero",
        "launch: 64 threads",
        "launch: cluster of 2",
        "launch: shared memory of 2 CTAs an SM",
        "launch: over 4096 bytes of parameters",
    }


def test_watching_runs_the_first_a_middle_and_the_last_cluster():
    text = f"""{HEAD}.global .align 4 .u32 ran[16];
    .visible .entry k() {{ .reg .b32 %r<2>; .reg .b64 %d<3>;
    mov.u32 %r0, %ctaid.x; mul.wide.u32 %d0, %r0, 4; mov.b64 %d1, ran; cvta.global.u64 %d1, %d1;
    add.s64 %d2, %d1, %d0; mov.b32 %r1, 1; st.global.b32 [%d2], %r1; ret; }}"""
    gpu = Watching()
    program = gpu.load(text)
    gpu.launch(program, None, grid=(10, 1, 1), block=(1, 1, 1), cluster=(2, 1, 1))
    at = gpu.variables(program)["ran"]
    region = gpu.memory.region(at, 64)
    ran = struct.unpack_from("<10I", region.mem, at - region.base)
    assert ran == (1, 1, 0, 0, 1, 1, 0, 0, 1, 1)
    assert "instruction: st.global.b32" in gpu.forms


def test_cluster_tables_are_of_eight_sizes_and_fall():
    """More SMs in a cluster, fewer clusters; and never more SMs than a B200 has."""
    tables = [table for table in kernels.CLUSTER_TABLES.values() if table]
    assert len(tables) == 3
    for table in tables:
        assert len(table) == 8 and list(table) == sorted(table, reverse=True)
        assert all(size * count <= 148 for size, count in enumerate(table, 1))
