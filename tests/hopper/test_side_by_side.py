"""What two programs are compared by on a Hopper GPU: packs of any program, the command as far as it
goes without a GPU. The rewritten text: test_side_by_side_text.py.
"""

from __future__ import annotations

import json
import shutil
import struct
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from b200.chip.copies.tensormap import TensorMap
from b200.program.parse import parse
from hopper import HopperError, side_by_side
from hopper import pack as packs
from hopper.byte_tensormaps import maps_in
from hopper.pack import Buffer, Recorder, Relocation, packed_launches, record
from tests.b200.ptx_support import kernel
from tests.hopper.test_hopper_run import Driver, OnCpu
from tests.hopper.test_side_by_side_text import GATHER, NIBBLES

# --- packs of any program -----------------------------------------------------------------------


def test_tensormaps_in_structures_are_found():
    """Two maps in a structure, after zeros, and pointers after them."""
    one, two = (
        TensorMap(at, NIBBLES, (256, 8), (128,), (256, 8), (1, 1)).encode()[:64] + b"\xff" * 64
        for at in (0x10000, 0x20000)
    )
    struct_ = bytes(64) + one + two + struct.pack("<QQ", 0x10010, 5).ljust(64, b"\0")
    assert maps_in(b"\0" * 64 + struct_, [(0, 8, 8), (64, len(struct_), 64)]) == [128, 256]
    text = kernel("", [".u64 p", f".align 64 .b8 all[{len(struct_)}]"])
    places = parse(text).kernels["k"].params
    data = struct.pack("<Q", 0x20008).ljust(64, b"\0") + struct_
    data = bytearray(data)
    struct.pack_into("<Q", data, 128 + 72, 0x10000)  # after what of a map matters
    found = packs.relocations(bytes(data), places, [(0x10000, 4096), (0x20000, 4096)])
    expected = [(0, 1, 8), (128, 0, 0), (256, 1, 0), (384, 0, 16)]
    assert found == tuple(Relocation(*one) for one in expected)


STORE = """
ld.param.u64 %rd1, [list];
ld.global.u64 %rd2, [%rd1+8];
st.global.u32 [%rd2+4], 7;
"""


def test_memory_besides_the_tensors_is_packed(tmp_path):
    """A pointer to a list with pointers to a tensor and to memory of the program's own."""
    data = torch.zeros(64, dtype=torch.int32)
    kept = []

    def program(tensors):
        own = torch.arange(1 << 15, dtype=torch.int32)
        listed = torch.tensor([own.data_ptr() + 8, tensors[0].data_ptr() + 16], dtype=torch.int64)
        kept.extend((own, listed))
        recorder.launch(kernel(STORE, [".u64 list"]), "k", (1, 1, 1), (32, 1, 1), args=[listed])

    recorder = Recorder(emulate=True)
    found = record(recorder, program, (data,))
    assert data[5] == 7 and found.expected != found.digests
    listed, own = found.buffers
    assert own == Buffer(4 << 15) and listed.size == 16
    assert listed.relocations == (Relocation(0, 2, 8), Relocation(8, 0, 16))
    assert found.launches[0].relocations == (Relocation(0, 1, 0),)
    moved = found.buffer_contents([0x1000, 0x2000, 0x3000])
    assert moved == [struct.pack("<QQ", 0x3008, 0x1010), None]
    found.save(tmp_path / "p.npz")
    assert packs.load(tmp_path / "p.npz") == found


def test_launches_of_a_script_are_packed_as_one_call():
    recorder, texts = Recorder(), [kernel(f"mov.b32 %r1, {i};", [".u64 out"]) for i in (1, 2)]
    small, large = torch.arange(64, dtype=torch.int32), torch.zeros(1 << 16, dtype=torch.int32)
    for text, tensor in zip((*texts, texts[0]), (small, large, large)):
        recorder.launch(text, "k", (2, 1, 1), (32, 1, 1), args=[tensor])
    every = packed_launches(recorder)
    assert [launch.program for launch in every.launches] == [0, 1, 0]
    assert [b.contents is None for b in every.buffers] == [False, True]
    assert every.buffers[0].contents == small.numpy().tobytes()
    assert every.read_bytes == 256 + (4 << 16) and not large.any()
    last = packed_launches(recorder, [2])
    assert len(last.launches) == 1 and [b.size for b in last.buffers] == [4 << 16]
    with pytest.raises(HopperError, match="made 3 launches, from 0, 3 were asked for"):
        packed_launches(recorder, [3])


def test_a_pack_of_the_format_before_is_read(tmp_path):
    recorder = Recorder()
    recorder.launch(kernel("", [".u64 out"]), "k", (1, 1, 1), (32, 1, 1), args=[torch.zeros(4)])
    packed_launches(recorder).save(tmp_path / "new.npz")
    arrays = np.load(tmp_path / "new.npz")
    manifest = json.loads(arrays["manifest"].tobytes())
    del manifest["buffers"]
    manifest["format"] = 2
    old = np.frombuffer(json.dumps(manifest).encode(), np.uint8)
    np.savez_compressed(tmp_path / "old.npz", manifest=old)
    assert packs.load(tmp_path / "old.npz").buffers == ()


# --- the command --------------------------------------------------------------------------------


def write_pack(path, body: str, cluster=(1, 1, 1), params=(".u64 out",)):
    recorder, out = Recorder(), torch.zeros(64, dtype=torch.int32)
    recorder.launch(kernel(body, list(params)), "k", cluster, (32, 1, 1), cluster, 64, [out])
    packed_launches(recorder).save(path)
    return str(path)


@pytest.mark.parametrize(
    "body, said",
    [
        ("tcgen05.shift.cta_group::1.down [%r1];", None),  # is left out, as an MMA is
        (GATHER, "tile::gather4"),
        (
            "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
            ".cta_group::2 [%r1], [%rd1, {%r2, %r3}], [%r4];",
            ".cta_group::2 by a tensormap that is no kernel parameter",
        ),
    ],
)
def test_what_hopper_cannot_run_is_refused_by_name(tmp_path, capsys, monkeypatch, body, said):
    monkeypatch.setattr(side_by_side.toolchain, "assemble", lambda text: b"code")
    fine, other = (write_pack(tmp_path / f"{n}.npz", b) for n, b in (("fine", ""), ("b", body)))
    status = side_by_side.main(["--assemble", fine, other])
    captured = capsys.readouterr()
    if said is None:
        assert status == 0 and captured.out.count("1 launch(es) for Hopper") == 2
    else:
        (line,) = captured.err.splitlines()
        assert status == 2 and line.startswith("hopper pipeline: b is refused: ") and said in line


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_bad_arguments(tmp_path, capsys):
    one = write_pack(tmp_path / "one.npz", "")
    for arguments, said in (
        ([one], "expected two packs or more"),
        ([one, one, "--rounds", "0"], "--rounds must be positive, got 0"),
    ):
        with pytest.raises(SystemExit):
            side_by_side.main(arguments)
        assert said in capsys.readouterr().err
    for arguments, said in (
        ([one, one], "no Hopper GPU"),
        ([str(tmp_path), one], "packs, or folders of packs, not both"),
        ([str(tmp_path), str(tmp_path.parent)], "no pack of the same name"),
        ([str(tmp_path / "none.npz"), "--assemble"], "none is refused: "),
    ):
        assert side_by_side.main(arguments) == 2
        assert said in capsys.readouterr().err


def test_folders_are_compared_pack_by_pack(tmp_path):
    for folder, names in (("ours", "ab"), ("theirs", "bca")):
        (tmp_path / folder).mkdir()
        for name in names:
            write_pack(tmp_path / folder / f"{name}.npz", "")
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    (a, of_a), (b, _) = side_by_side.contests_of([ours, theirs])
    assert (a, b) == ("a", "b")
    assert of_a == [("ours", ours / "a.npz"), ("theirs", theirs / "a.npz")]
    ((_, packs_),) = side_by_side.contests_of([ours / "a.npz", theirs / "a.npz"])
    assert [name for name, _ in packs_] == ["ours/a", "theirs/a"]


def test_a_ratio_is_of_one_round(monkeypatch, capsys, tmp_path):
    """Of three rounds, in which both programs take turns; the slow round is so for both."""
    fine = write_pack(tmp_path / "a.npz", "")
    times = {"a": [10.0, 20.0, 11.0], "b": [12.0, 24.0, 13.2]}

    def measure(packs_, names, rounds):
        ratios = [y / x for x, y in zip(times["a"], times["b"])]
        return [
            side_by_side.Contestant(
                name,
                None,
                1,
                148,
                2,
                132 if name == "b" else 148,
                times[name],
                [1.0] * 3 if name == "a" else ratios,
            )
            for name in names
        ]

    monkeypatch.setattr(side_by_side, "measure", measure)
    monkeypatch.setattr(side_by_side, "require_gpu", lambda: "GPU")
    monkeypatch.setattr(side_by_side, "describe", lambda: {"device": "NVIDIA H200"})
    (tmp_path / "b.npz").write_bytes((tmp_path / "a.npz").read_bytes())
    out = tmp_path / "both.json"
    assert (
        side_by_side.main([fine, str(tmp_path / "b.npz"), "--rounds", "3", "--out", str(out)]) == 0
    )
    said = capsys.readouterr().out
    assert "3 rounds, measured on NVIDIA H200" in said
    b = "b     13.20 us (12.00 .. 24.00)   1.200 of the first (1.200 .. 1.200)"
    assert f"{b}; 148 CTAs, 132 fit at once\n" in said and said.count("at once") == 1
    (written,) = json.loads(out.read_text())["contests"]
    assert written["contestants"][1]["us"] == times["b"]


def test_a_refusal_by_ptxas_is_one_line(tmp_path, capsys):
    if shutil.which("ptxas") is None:
        pytest.skip("no ptxas")
    packed = write_pack(tmp_path / "new.npz", "cvt.rn.satfinite.e2m1x2.f32 %r1, %r2, %r3;")
    assert side_by_side.main(["--assemble", packed]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "new is refused" in line and "ptxas" in line and "error" in line


class Graph:
    """A CUDA graph that does nothing; the clock runs on by 40 calls of 3 us at each replay."""

    now = 0.0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def replay(self):
        Graph.now += 0.12


class Event:
    def __init__(self, enable_timing):
        self.at = 0.0

    def record(self):
        self.at = Graph.now

    def elapsed_time(self, end):
        return end.at - self.at


def test_programs_take_turns_on_inputs_of_their_own(monkeypatch, tmp_path):
    """Through a driver that only notes what it is given: what it is told to launch, and where."""
    noted = Driver(monkeypatch)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", lambda graph: graph)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    properties = SimpleNamespace(multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    monkeypatch.setattr(side_by_side, "COLD_BYTES", 1 << 20)
    parameters = [".u64 list", ".u32 n", ".align 64 .b8 map[128]", ".u64 x"]  # the driver's
    text = kernel("ld.param.u64 %rd1, [list];", parameters)
    x = torch.zeros(1 << 18, dtype=torch.uint8)
    listed = torch.tensor([5, x.data_ptr() + 8])
    recorder = Recorder()
    args = [listed, 7, bytes(128), x]
    for grid in (7, 300):
        recorder.launch(text, "k", (grid, 1, 1), (32, 1, 1), smem=120_000, args=args)
    packed = packed_launches(recorder)
    with OnCpu():
        one, other = side_by_side.measure([packed, packed], ["a", "b"], 3)
    assert one.us == other.us == pytest.approx([3.0] * 3) and other.ratios == [1.0] * 3
    assert (one.launches, one.ctas, one.fit) == (2, 300, 132)
    grids = [config.gridDimX for config, _ in noted.launches]
    assert grids == [7, 300] * 2 * (
        1 + side_by_side.CALLS
    )  # two packs; a first call, then the graph's
    places = {int.from_bytes(values[3], "little") for _, values in noted.launches}
    assert len(places) == 2 * 4 and x.data_ptr() not in places  # four sets, 1 MiB, for each


SCRIPT = """
import sys
import torch
from cutlass.cute.runtime import from_dlpack
from tests.b200.host.dsl.dsl_kernels import scaled_sum

x, y, out = (torch.full((1 << 16,), float(n)) for n in range(3))
for _ in range(int(sys.argv[1])):
    scaled_sum(*map(from_dlpack, (x, y, out)), 2.0)
"""


def test_a_script_is_packed_by_the_command(tmp_path, fork_server):
    (tmp_path / "script.py").write_text(SCRIPT)
    command = ["-m", "hopper", "pack", "--out", str(tmp_path / "p.npz")]
    command += ["--launch", "1", str(tmp_path / "script.py"), "2"]
    done = fork_server.run(*command)
    assert done.returncode == 0 and "p.npz: 1 launch(es) as one call" in done.stdout, done.stderr
    assert done.stderr.count("grid (128, 1, 1)") == 2
    found = packs.load(tmp_path / "p.npz")
    assert found.launches[0].grid == (128, 1, 1)
    assert sorted(b.size for b in found.buffers) == [4 << 16] * 3


def test_each_launch_of_a_script_is_packed_with_its_results(tmp_path, fork_server):
    """The second launch finds what the first has left, and leaves the same."""
    (tmp_path / "script.py").write_text(SCRIPT)
    command = ["-m", "hopper", "run", "--pack", str(tmp_path / "p.npz")]
    done = fork_server.run(*command, str(tmp_path / "script.py"), "2")
    assert done.returncode == 0, done.stderr
    first, second = (packs.load(tmp_path / f"p-{n}.npz") for n in range(2))
    assert first.expected and second.expected
    assert first.launches[0].grid == (128, 1, 1) and first.sizes == (4 << 16,) * 3
    assert sum(a != b for a, b in zip(first.digests, first.expected, strict=True)) == 1
    assert set(first.expected) == set(second.digests) == set(second.expected)
