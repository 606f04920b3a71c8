"""The state of a launch under way: a copy that can be put back, and a key that tells states apart.

FIELDS lists what changes in the objects of a launch. Objects keep their identity when a copy is put
back, so that closures of operations under way stay good. The arrays of a register file are replaced
and never written to (WarpState.register_file), so the list alone is copied.

Two states with one key go on alike. The key leaves out what only reports look at, registers that
nothing reads any more, and the order in which waiting fragments are kept.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import fields
from functools import partial
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np

from b200.chip.copies.async_groups import Copy, Groups
from b200.chip.fragment import ClusterBarrier, Fragment, Gathering, Join, WarpState
from b200.chip.meeting import Meeting
from b200.chip.operations import Operation
from b200.chip.state import CTA, Cluster
from b200.chip.sync.barriers import NamedBarrier
from b200.chip.sync.mbarrier import AnyOf, MBarrier
from b200.chip.sync.registers import RegisterPool
from b200.chip.tensor.tmem_alloc import TmemPool
from b200.program.translated import Registers
from b200.registry import Waitable

if TYPE_CHECKING:
    from b200.explore.touches import Pending

# What changes in an object of each class, and what of that is left out of the key.
FIELDS: dict[type, tuple[str, ...]] = {
    Cluster: ("ctas", "barrier"),
    CTA: tuple(
        """
        tmem_allocations tmem_freed tmem_permit tmem_peak tmem_pool registers mbarriers
        named_barriers async_groups warps exited_warps legal _tmem
        """.split()
    ),
    WarpState: tuple(
        """
        live fragments gathering meetings exits cluster_arrived cluster_phase local register_file
        """.split()
    ),
    Fragment: (
        "mask",
        "pc",
        "reconv",
        "join",
        "token",
        "register_file",
        "meeting",
        "waits_for",
        "queued",
    ),
    Join: ("at", "pc", "waiting", "arrived", "parent", "parent_pc"),
    MBarrier: ("waiters", "phase", "expected", "pending", "tx", "arrivals"),
    NamedBarrier: ("waiters", "generation", "arrived", "expected", "votes", "result"),
    ClusterBarrier: ("waiters", "phase", "arrived", "expected"),
    Gathering: ("waiters", "fragment"),
    Meeting: ("waiters", "members", "parts", "arrived", "let_go", "done", "result", "place"),
    AnyOf: ("waiters", "parts"),
    RegisterPool: ("waiters", "free", "held", "wanted"),
    TmemPool: ("waiters", "last", "requests", "granted"),
    Copy: ("waiters", "done", "then"),
    Groups: ("open", "groups"),
}
UNSEEN = frozenset(("exits", "arrivals", "queued", "legal", "tmem_peak"))
UNORDERED = frozenset(("waiters", "fragments", "gathering"))  # lists whose order tells nothing
KEPT = (list, deque, dict, set)


# Any: an object of a machine, whatever it is, and what its fields held.
Saved: TypeAlias = list[tuple[Any, Any]]
SavedArrays: TypeAlias = list[tuple[np.ndarray, bytes]]


class Unlisted(Exception):
    """An object that may change, of a class that FIELDS does not have; str() is its name."""


class Snapshot:
    """One state. key: equal for states that go on alike."""

    __slots__ = ("key", "_saved", "_arrays")

    def __init__(self, key: tuple[Any, ...], saved: Saved, arrays: SavedArrays):
        self.key, self._saved, self._arrays = key, saved, arrays

    def put_back(self) -> None:
        for target, value in self._saved:
            kind = target.__class__
            if kind is list:
                target[:] = value
            elif kind in KEPT:
                target.clear()
                target.extend(value) if kind is deque else target.update(value)
            else:
                for name, one in value:
                    setattr(target, name, one)
        for array, data in self._arrays:
            array[:] = np.frombuffer(data, array.dtype).reshape(array.shape)


class Camera:
    """Takes snapshots. far: allocations of global memory that the launch writes, as uint8 arrays.
    live: of a fragment, the registers that it still needs, as bits.
    """

    def __init__(self, far: Iterable[np.ndarray], live: Callable[[Fragment], int]):
        self.far, self.live = list(far), live
        # array, by its id() -> its latest contents and their digest: most states share them
        self.latest: dict[int, tuple[bytes, bytes]] = {}
        self.named: dict[int, object] = {}  # what a key names by its id(), which stays its own so

    def take(
        self, clusters: list[Cluster], queue: list[Fragment], pending: list[Pending]
    ) -> Snapshot:
        """queue: fragments that can run. pending: operations under way."""
        return _Look(self, clusters, queue, pending).snapshot()


class _Look:
    """One snapshot being taken."""

    def __init__(
        self,
        camera: Camera,
        clusters: list[Cluster],
        queue: list[Fragment],
        pending: list[Pending],
    ):
        self.camera = camera
        self.saved: Saved = []
        self.arrays: SavedArrays = []
        self.key: list[Any] = []
        self.index: dict[int, int] = {}
        self.work: deque[Any] = deque()
        for cluster in clusters:
            self._see(cluster)
            for cta in cluster.ctas:
                self._see(cta)
                self.key.append(self._array(cta.smem.u8))
                for warp in cta.warps:
                    self._see(warp)
        for cluster in clusters:
            for fragment in sorted(
                (f for cta in cluster.ctas for w in cta.warps for f in w.fragments), key=_place
            ):
                self._see(fragment)
        self.key += [self._array(array) for array in camera.far]
        self.key += [self._container(queue, True), self._container(pending, False)]
        while self.work:
            self._object(self.work.popleft())

    def snapshot(self) -> Snapshot:
        return Snapshot(tuple(self.key), self.saved, self.arrays)

    def _see(self, x: Any) -> tuple[str, int]:
        """The name of an object in the key: its place among those that were seen."""
        number = self.index.get(id(x))
        if number is None:
            number = self.index[id(x)] = len(self.index)
            self.work.append(x)
        return "object", number

    def _array(self, array: np.ndarray) -> bytes:
        data = array.tobytes()
        known, digest = self.camera.latest.get(id(array), (None, b""))
        if known is not None and known == data:
            data = known
        else:
            digest = hashlib.blake2b(data, digest_size=16).digest()
            self.camera.latest[id(array)] = data, digest
        self.arrays.append((array, data))
        return digest

    def _object(self, x: Any) -> None:
        kind = next((base for base in type(x).__mro__ if base in FIELDS), None)
        assert kind is not None
        values = [(name, getattr(x, name)) for name in FIELDS[kind]]
        self.saved.append((x, values))
        key: list[Any] = [kind.__name__]
        for name, value in values:
            if name == "register_file":
                self._registers(x, value, key)
            elif name in ("local", "_tmem"):
                key.append(None if value is None else self._array(value))
            elif name in UNSEEN:
                self._keep(value)
            else:
                key.append(self._value(value, name in UNORDERED))
        self.key.append(tuple(key))

    def _registers(self, owner: Any, registers: Registers, key: list[Any]) -> None:
        if id(registers) not in self.index:
            self.index[id(registers)] = len(self.index)
            self.saved.append((registers, registers.copy()))
        if isinstance(owner, Fragment):
            bits, i = self.camera.live(owner), 0
            while bits:
                if bits & 1:
                    value = registers[i]
                    key.append(value.tobytes() if isinstance(value, np.ndarray) else value)
                bits, i = bits >> 1, i + 1

    def _keep(self, value: Any) -> None:
        if type(value) in KEPT:
            self.saved.append((value, value.copy()))

    def _container(self, value: Any, unordered: bool) -> Any:
        self.saved.append((value, value.copy()))
        if isinstance(value, dict):
            items = cast("dict[Any, Any]", value).items()  # isinstance does not say what it is of
            found = [(self._value(k, False), self._value(v, False)) for k, v in items]
            return "dict", tuple(sorted(found, key=repr))
        found = [self._value(v, False) for v in value]
        return "list", tuple(sorted(found, key=repr) if unordered else found)

    def _value(self, x: Any, unordered: bool) -> Any:
        kind = x.__class__
        if x is None or kind in (int, bool, str, float, bytes):
            return x
        if kind in KEPT:
            return self._container(x, unordered or kind is set)
        if isinstance(x, tuple):
            return tuple(self._value(v, False) for v in cast("tuple[Any, ...]", x))
        if kind is np.ndarray:
            return x.tobytes()
        if any(base in FIELDS for base in kind.__mro__):
            return self._see(x)
        if isinstance(x, Waitable):
            raise Unlisted(kind.__name__)
        if kind is FunctionType:
            cells = x.__closure__ or ()
            return x.__qualname__, tuple(self._value(c.cell_contents, False) for c in cells)
        if kind is MethodType:
            return x.__qualname__, self._value(x.__self__, False)
        if kind is partial:
            parts = x.func, x.args, tuple(x.keywords.items())
            return "partial", *(self._value(part, False) for part in parts)
        if isinstance(x, Operation):
            parts = (getattr(x, f.name) for f in fields(x))
            return kind.__name__, *(self._value(part, False) for part in parts)
        self.camera.named[id(x)] = x
        return id(x)  # what never changes: instructions, the machine, operands


def _place(warp: Fragment) -> tuple[int, int, int, int]:
    return warp.cta.rank, warp.index, warp.mask, warp.pc
