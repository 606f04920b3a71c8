"""Which findings fail a case, and what is said of them."""

from types import SimpleNamespace

from b200.checker.finding import NOTE, PORTABILITY, Finding, Findings
from harness.evaluator.case.findings import SHOWN, incomplete, verdict


def launch(*severities: str) -> SimpleNamespace:
    findings = Findings()
    findings += [
        Finding("race", f"d{i}", (), "k.py:1", f"{i}", s) for i, s in enumerate(severities)
    ]
    findings.arrange()
    return SimpleNamespace(kernel="k", findings=findings, incomplete=[], orders=None)


UNCHECKED = SimpleNamespace(kernel="k", findings=None, incomplete=[], orders=None)


def test_only_errors_fail_a_case_unless_all_are_to():
    assert verdict([UNCHECKED, launch()]) == (False, "")
    remarks = launch(NOTE, PORTABILITY)
    failed, text = verdict([remarks])
    assert (
        not failed
        and text == "no error; 2 remarks of the checker with --all-findings"
        and "d0" not in text
    )
    failed, text = verdict([remarks], strict=True)
    assert failed and "race (note): d0" in text
    failed, text = verdict([remarks], wrong=True)
    assert not failed and "2 remark(s), no error" in text and "d1" in text
    assert verdict([launch("error")])[0]


def test_errors_are_shown_first_and_all_can_be_had():
    many = [launch(*[NOTE] * 12), launch(NOTE, "error")]
    failed, text = verdict(many)
    assert failed and text.splitlines()[1] == "k.py:1: race: d1"
    assert text.splitlines()[-2:] == [
        f"... {13 - SHOWN} more: --all-findings",
        "explained in docs/reference/checks.md: #race",
    ]
    assert verdict(many, everything=True)[1].count("k.py:1") == 13


def test_what_is_incomplete_is_said_and_fails_if_all_is_to():
    left_out = launch()
    left_out.incomplete = ["k.py:3: the checker has no rule for discard"]
    failed, text = verdict([left_out, left_out])
    assert not failed
    assert text == "the check is incomplete:\n  k.py:3: the checker has no rule for discard"
    assert verdict([left_out], strict=True)[0]
    assert incomplete([left_out, launch(), left_out]) == left_out.incomplete
    failed, text = verdict([UNCHECKED], strict=True)
    assert failed and "k ran without the checker" in text


def test_the_verdicts_over_all_orders_are_told():
    one, other = launch(), launch()
    one.orders = other.orders = "all orders: deadlock-free"
    assert verdict([one, other]) == (False, "all orders: deadlock-free, 2 times")


def test_a_cause_is_told_once_and_not_once_a_launch():
    failed, text = verdict([launch("error"), launch("error"), launch("error", "error")])
    assert failed and text.startswith("the checker found 2 error(s):")
    assert text.count("race: d0") == 1
