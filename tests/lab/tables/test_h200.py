"""Tables of pipelines measured on an H200 beside its model: which pack is what, errors, and who is
fastest.
"""

import pytest

from lab.tables import h200


def contestant(name: str, us: float, first: float, ctas: int = 64, cluster: int = 1) -> dict:
    times = [us + 0.1, us, us - 0.1]
    ratios = [t / (first + d) for t, d in zip(times, (0.1, 0, -0.1), strict=True)]
    return {"name": name, "ctas": ctas, "cluster": cluster, "us": times, "ratios": ratios}


def contest(
    problem: str, number: int, ours: float, peer: float, families: dict[str, float]
) -> dict:
    found = [contestant(f"ours-{problem}-benchmark-{number}", ours, ours, 32, 2)]
    found.append(contestant(f"peer-{problem}-benchmark-{number}", peer, ours))
    found += [contestant(f"family-{problem}-{number}-{f}", us, ours) for f, us in families.items()]
    return {"contestants": found}


MEASURED = {
    "contests": [
        contest("gemm", 1, 10.0, 8.0, {"plain": 9.0, "split_2": 12.0, "multicast_2_split_2": 11.0}),
        contest("gemv", 0, 20.0, 25.0, {"plain": 20.0, "split_2": 18.0, "multicast_4": 30.0}),
    ]
}
FACTORS = {"plain": 1.1, "split_2": 0.8, "multicast_4": 1.0, "multicast_2_split_2": 0.95, "": 1.05}
MODELLED = {
    "modelled": [
        {"pack": c["name"], "us": c["us"][1] * FACTORS[c["name"].split("-")[3].strip("01")]}
        if c["name"].startswith("family")
        else {"pack": c["name"], "us": c["us"][1] * FACTORS[""]}
        for d in MEASURED["contests"]
        for c in d["contestants"]
    ]
}


def cells(text: str, first: str) -> list[str]:
    (row,) = [line for line in text.splitlines() if line.startswith(f"| {first} |")]
    return [cell.strip() for cell in row.strip("|").split("|")][1:]


def test_pipelines_are_told_by_their_names():
    found = h200.pipelines(MEASURED, MODELLED)
    assert [p.shape for p in found] == ["gemv 1"] * 5 + ["gemm 2"] * 5
    assert [(p.role, p.family) for p in found[:3]] == [
        ("ours", ""),
        ("peer", ""),
        ("family", "plain"),
    ]
    assert found[-1].family == "multicast_2_split_2" and found[5].cluster == 2
    assert found[6].over_first == pytest.approx(0.8) and found[6].error == pytest.approx(0.05)


def test_errors_by_kind():
    text = h200.model_errors(MEASURED, MODELLED)
    assert cells(text, "no cluster") == ["2", "10.0%", "+10.0%", "+10.0%"]
    assert cells(text, "K split by 2") == ["2", "20.0%", "-20.0%", "-20.0%"]
    assert cells(text, "public kernels, unmodified") == ["2", "5.0%", "+5.0%", "+5.0%"]
    assert cells(text, "all families") == ["6", "10.8%", "-4.2%", "-20.0%"]


def test_the_family_that_the_model_has_first():
    text = h200.model_ranks(MEASURED, MODELLED)
    assert cells(text, "gemv 1") == ["K split by 2", "K split by 2", "1.00", "1.00"]
    assert cells(text, "gemm 2") == ["K split by 2", "no cluster", "1.33", "-0.50"]


def test_picks_beside_the_fastest_and_a_peer():
    text = h200.h200_picks(MEASURED, MODELLED)
    assert cells(text, "gemm 2") == [
        "32 in 2", "10.00", "10.50", "9.00 no cluster", "1.11", "8.00", "1.25"
    ]  # fmt: skip
