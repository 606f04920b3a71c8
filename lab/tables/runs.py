"""The generated tables of docs/lab/hopper.md: what the kernel and small programs did on an H200."""

from __future__ import annotations

from typing import Any

from lab.tables import markdown
from task import DUAL, PROBLEMS, find_problem


def shape_of(case: dict) -> str:
    if "g" in case:
        sizes = {(n, k) for n, k in zip(case["n"], case["k"])}
        return f"group of {case['g']}, " + ", ".join(f"{n} x {k}" for n, k in sizes)
    short = find_problem(case["problem"]).short
    sizes = [case[key] for key in "mnk" if key in case]
    batch = f", L{case['l']}" if case["l"] > 1 else ""
    return f"{short} {' x '.join(map(str, sizes))}{batch}"


def run(record: dict) -> str:
    def count(results: list[dict], **wanted: object) -> str:
        found = sum(all(r[key] == value for key, value in wanted.items()) for r in results)
        return f"{found} of {len(results)}"

    tests, shapes = record["official_tests"], record["benchmark_shapes"]
    live = sum(record["live"]["passed"].values())
    public, levers = record["public_kernels"]["results"], record["levers"]["results"]
    again, alike = "same_bits_in_all_calls", "same_bits_as_emulator"
    dual = [r for r in tests if r["case"]["problem"] == DUAL.name]
    others = [r for r in tests if r not in dual]
    bits = f"{count(others, **{alike: True})} of gemv, gemm, group; {count(dual, **{alike: True})}"
    rows = [
        (
            "official test cases, as packs, ten times",
            f"{count(tests, reference='right')} right, {count(tests, **{again: True})} repeatable",
        ),
        (
            "... live, `eval.py test --device hopper` with the DSL on the machine",
            f"{live} of {live + record['live']['failed']} right",
        ),
        ("... with the emulator's bits", f"{bits} of dual"),
        (
            "benchmark shapes, ten times",
            f"{count(shapes, reference='right')} right, "
            f"{count(shapes, **{again: True})} repeatable",
        ),
        ("public CuTe DSL kernels", f"{count(public, **{alike: True})} with the emulator's bits"),
        (
            "one configuration for each lever of the kernel",
            f"{count(levers, **{again: True})} repeatable, {count(levers, **{alike: True})} with"
            " the emulator's bits",
        ),
    ]
    return markdown.table(("run", "result"), rows)


def pipeline(record: dict) -> str:
    order = [p.name for p in PROBLEMS.values()]
    measured = sorted(
        record["measured"], key=lambda m: (order.index(m["case"]["problem"]), m["pack"])
    )
    columns = {
        "shape": lambda m: shape_of(m["case"]),
        "cluster": "{cluster}",
        "MB": lambda m: f"{m['input_bytes'] / 1e6:.1f}",
        "us": "{us:.1f}",
        "relaxed, us": "{without_releases_us:.1f}",
        "ordinary loads, us": "{read_us:.1f}",
    }
    text = f"A copy from device to device moves {record['copy_gb_s']:.0f} GB/s."
    return f"{markdown.filled(columns, measured)}\n\n{text}"


def arrives(record: dict) -> str:
    def span(cycles: Any) -> str:
        return f"{cycles[0]} - {cycles[1]}" if isinstance(cycles, list) else str(cycles)

    rows = [
        (f".{name}", span(found["idle"]), span(found["loads_in_flight"]))
        for name, found in record["arrives"].items()
        if isinstance(found, dict)
    ]
    return markdown.table(("mbarrier.arrive", "CTA idle", "bulk loads in flight in the CTA"), rows)


def fences(record: dict) -> str:
    words = {"none": "nothing", "bulk": "bulk load", "ld": "loads", "st": "stores"}
    rows = []
    for result in record["results"]:
        case = result["case"]
        if case["ctas"] != 4 and case["nbytes"] != 131072:
            continue  # the same with all SMs at work
        size = case["nbytes"]
        access: str = case["access"]
        text = words.get(access, access)
        text += f" of {size >> 10} KB" if size >= 1024 else f" of {size} B" if size else ""
        text += ", another warp's" if case["other"] else ""
        text += ", still in flight" if case["in_flight"] else ""
        text += ", in all SMs" if case["ctas"] != 4 else ""
        peer = "" if result["peer"] is None else f"{result['peer']:.0f}"
        rows.append((text, f"{result['first']:.0f}", f"{result['second']:.0f}", peer))
    return markdown.table(
        ("since the last fence", "fence", "the next one", "in the peer CTA"), rows
    )


def chain(record: dict) -> str:
    columns = {"page of 2 MB": "{page}", "before": "{before}"}
    loads = range(len(record["results"][0]["cycles"]))
    columns |= {f"load {n + 1}": f"{{cycles[{n}]:.0f}}" for n in loads}
    return markdown.filled(columns, record["results"])


def replays(record: dict) -> str:
    four = [r for r in record["results"] if r["ctas"] == 4]
    plain, once = ([r for r in four if r["load"].endswith(".cs") == cs] for cs in (False, True))
    columns = {
        "read a call, of the L2": "{share:.0%}",
        "the same again": "{again_us:.1f}",
        "... with `.cs`": "{once_us:.1f}",
        "other memory": "{cold_us:.1f}",
    }
    rows = ({**a, "once_us": b["again_us"]} for a, b in zip(plain, once))
    return markdown.filled(columns, rows)


def loads(record: dict) -> str:
    one, four = ([r for r in record["results"] if r["warps"] == n] for n in (1, 4))
    columns = {
        "bytes a warp": "{nbytes}",
        "one warp": "{alone:.0f}",
        "four warps, mean": "{mean:.0f}",
        "the last of four": "{last:.0f}",
    }
    return markdown.filled(columns, ({**b, "alone": a["mean"]} for a, b in zip(one, four)))
