"""A kernel that takes the place of another one, with the same name and parameters, and tells what
arrived: its parameters byte by byte, its launch, and what TMA loads through its tensormaps.

It is PTX that any GPU of compute capability 9 or more runs. `Probe.text` is the module; what it
saw is in its variable `seen`, laid out as `Probe` says.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from b200.chip.copies import tensormap
from b200.chip.copies.tensormap import TensorMap
from b200.program.module import Kernel, Variable
from hopper.byte_tensormaps import maps_in

VARIABLE = "seen"
COUNTERS = ("CTAs", "CTAs a cluster", "threads a CTA", "bytes of dynamic shared memory")
LOADED = 8  # bytes that are kept of each box
BARRIER = 32768  # offset in shared memory, after the box
_UNITS = ((8, "b64", "%d0"), (4, "b32", "%r0"), (1, "b8", "%h0"))
# ptxas: kernel parameters of more than 4,352 bytes, eight groups, need PTX ISA 8.1.
_HEAD = ".version 8.1\n.target sm_90\n.address_size 64\n"
_LOAD = """    mov.b64 %d1, {name};
    cvta.param.u64 %d1, %d1;
    add.u64 %d1, %d1, {offset};
    mbarrier.arrive.expect_tx.shared::cta.b64 %d2, [%r1], {nbytes};
    cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes
        [%r2], [%d1, {{{zeros}}}], [%r1];
WAIT{number}:
    mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r1], {parity};
    @!%p1 bra WAIT{number};
    ld.shared.b64 %d3, [%r2];
    st.global.b64 [%d9 + {at}], %d3;
"""


@dataclass(frozen=True)
class Probe:
    """Stands in for `kernel`. loads: the tensormaps to load the first box of, by their offset among
    the parameters.
    """

    kernel: Kernel
    loads: Sequence[tuple[int, TensorMap]] = ()

    @property
    def params_at(self) -> int:
        return 4 * len(COUNTERS)

    @property
    def loaded_at(self) -> int:
        return -(-(self.params_at + self.kernel.param_bytes) // 8) * 8

    @property
    def size(self) -> int:
        return self.loaded_at + LOADED * len(self.loads)

    @property
    def text(self) -> str:
        """The PTX module. ValueError for a box that has no room."""
        parameters = [
            f".param .align {p.align} .b8 p{i}[{p.size}]" for i, p in enumerate(self.kernel.params)
        ]
        loads = "".join(self._load(i, *load) for i, load in enumerate(self.loads))
        return (
            f"{_HEAD}.global .align 16 .b8 {VARIABLE}[{self.size}];\n"
            ".extern .shared .align 1024 .b8 dynamic[];\n"
            f".visible .entry {self.kernel.name}({', '.join(parameters)})\n{{\n"
            "    .reg .b16 %h0;\n    .reg .b32 %r<3>;\n"
            "    .reg .b64 %d<10>;\n    .reg .pred %p<2>;\n"
            "    mov.u32 %r0, %tid.x;\n    setp.ne.u32 %p0, %r0, 0;\n    @%p0 bra DONE;\n"
            f"    mov.b64 %d9, {VARIABLE};\n    cvta.global.u64 %d9, %d9;\n"
            "    atom.global.add.u32 %r0, [%d9], 1;\n"
            "    mov.u32 %r0, %ctaid.x;\n    setp.ne.u32 %p0, %r0, 0;\n    @%p0 bra DONE;\n"
            "    mov.u32 %r0, %cluster_nctarank;\n    st.global.b32 [%d9 + 4], %r0;\n"
            "    mov.u32 %r0, %ntid.x;\n    st.global.b32 [%d9 + 8], %r0;\n"
            "    mov.u32 %r0, %dynamic_smem_size;\n    st.global.b32 [%d9 + 12], %r0;\n"
            f"{''.join(self._copied(i, p) for i, p in enumerate(self.kernel.params))}"
            f"    mov.b32 %r2, dynamic;\n    add.u32 %r1, %r2, {BARRIER};\n"
            "    mbarrier.init.shared::cta.b64 [%r1], 1;\n"
            "    fence.mbarrier_init.release.cluster;\n"
            f"{loads}DONE:\n    ret;\n}}\n"
        )

    def _copied(self, number: int, parameter: Variable) -> str:
        """The bytes of a parameter, in the largest units that its alignment allows."""
        lines, done, at = [], 0, self.params_at + parameter.offset
        for size, kind, register in _UNITS:
            aligned = parameter.align % size == 0 and at % size == 0
            while aligned and parameter.size - done >= size:
                lines.append(f"    ld.param.{kind} {register}, [p{number} + {done}];\n")
                lines.append(f"    st.global.{kind} [%d9 + {at + done}], {register};\n")
                done += size
        return "".join(lines)

    def _load(self, number: int, offset: int, found: TensorMap) -> str:
        """The first box of the tensormap at this offset among the parameters."""
        nbytes = found.box_rows * found.row_bytes
        if found.box_rows * found.pitch > BARRIER:
            raise ValueError(f"expected a box of at most {BARRIER} bytes, found {found}")
        place = next(
            i for i, p in enumerate(self.kernel.params) if p.offset <= offset < p.offset + p.size
        )
        return _LOAD.format(
            name=f"p{place}",
            offset=offset - self.kernel.params[place].offset,
            rank=found.rank,
            zeros=", ".join(["0"] * found.rank),
            nbytes=nbytes,
            number=number,
            parity=number & 1,
            at=self.loaded_at + LOADED * number,
        )

    def read(self, seen: bytes) -> tuple[dict[str, int], bytes, list[bytes]]:
        """What the kernel saw: counters by name, its parameters, the first bytes of each box."""
        counters: dict[str, int] = dict(
            zip(COUNTERS, struct.unpack_from(f"<{len(COUNTERS)}I", seen))
        )
        params = seen[self.params_at : self.params_at + self.kernel.param_bytes]
        boxes = [
            seen[self.loaded_at + LOADED * i : self.loaded_at + LOADED * (i + 1)]
            for i in range(len(self.loads))
        ]
        return counters, params, boxes


def loadable(maps: Sequence[tuple[int, TensorMap]], capability: int) -> list[tuple[int, TensorMap]]:
    """Those of the tensormaps that a GPU of this major compute capability takes: elements of 4 bits
    came with 10.
    """
    return [(at, found) for at, found in maps if found.element.bits >= 8 or capability >= 10]


def maps_of(kernel: Kernel, params: bytes) -> list[tuple[int, TensorMap]]:
    """The tensormaps among parameters, by offset."""
    places = [(p.offset, p.size, p.align) for p in kernel.params]
    return [
        (at, tensormap.decode(params[at : at + tensormap.BYTES])) for at in maps_in(params, places)
    ]
