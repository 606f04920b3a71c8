"""Observes allocations, loads and stores of tensor memory.

Each function is a wrapper of instrument.py: `wrap(ins, run)` returns an observed function of the
same form.
"""

from __future__ import annotations

from b200.checker import pairs
from b200.checker.accesses import Record
from b200.checker.steps import all_operands, followed
from b200.checker.tensor_memory import halves_of
from b200.chip.tensor.tmem import TmemAccess, split
from b200.effects import AllocatesTensor, FreesTensor, TensorLoads, TensorStores, WaitsForTensor
from b200.program.module import Instr
from b200.registry import Run


@followed(all_operands)
def alloc(ins: Instr, effect: AllocatesTensor, run) -> Run:
    def observed(w, mask, address, columns):
        observer = w.observer
        observer.ins = ins
        if effect.pair:
            pairs.allocates(observer, observer.agent(w))
        run(w, mask, address, columns)
        columns = columns if isinstance(columns, int) else int(columns[0])
        observer.allocated(w, address, columns, effect.pair)

    return observed


@followed(all_operands)
def dealloc(ins: Instr, effect: FreesTensor, run) -> Run:
    def observed(w, mask, taddr, columns):
        observer = w.observer
        observer.ins = ins
        run(w, mask, taddr, columns)
        first, n = (x if isinstance(x, int) else int(x[0]) for x in (taddr, columns))
        observer.freed(w, first, n, effect.pair)

    return observed


def _place_of_tensor_access(ins: Instr):
    """The step of a tensor memory access (steps.py): all operands but the registers that a
    store stores.
    """
    everything = all_operands(ins)
    if isinstance(ins.effect, TensorLoads):
        return everything
    return lambda w, mask, args: everything(w, mask, args[:-1])


@followed(_place_of_tensor_access)
def tensor_access(ins: Instr, effect: TensorLoads | TensorStores, run) -> Run:
    """Observe tcgen05.ld and tcgen05.st."""
    is_load = isinstance(effect, TensorLoads)
    access = TmemAccess(ins, ins.operands[0 if is_load else -1], effect.packed)
    height = 32 if access.shape == "32x32b" else 16
    kind, stream_name = ("load", "tmem_load") if is_load else ("store", "tmem_store")

    def observed(w, mask, taddr, *rest):
        observer = w.observer
        observer.ins = ins
        result = run(w, mask, taddr, *rest)
        second = rest[0] if (is_load and rest) or len(rest) == 2 else 0
        row, column = split(taddr if isinstance(taddr, int) else int(taddr[0]))
        row = 32 * (w.index % 4) + row % 32
        spans = access.spans(column, second)
        agent = observer.agent(w)
        stream = agent.stream(stream_name)
        places = " and ".join(f"[{columns.start}, {columns.stop})" for columns in spans)
        text = f"{'reads' if is_load else 'writes'} tensor-memory columns {places}"
        record = Record(agent, ins, stream.component, stream.next(), kind, text)
        observer.state(w.cta).add(record)
        rules = observer.tensor(w.cta)
        if is_load:
            agent.roles.add("epilogue")
            agent.loads[id(ins)] = record
        for columns in spans:
            if is_load:
                rules.read(record, halves_of(row, height), columns, partly=True)
            else:
                rules.write(record, halves_of(row, height), columns)
        return result

    return observed


@followed(all_operands)
def wait(ins: Instr, effect: WaitsForTensor, run) -> Run:
    """Observe tcgen05.wait: the warp's own loads or stores of tensor memory are complete."""
    name = "tmem_load" if effect.loads else "tmem_store"

    def observed(w, mask):
        run(w, mask)
        agent = w.observer.agent(w)
        stream = agent.stream(name)
        agent.learn(stream.component, stream.issued)

    return observed
