"""Which findings fail a case, and what is said of them."""

from types import SimpleNamespace

from b200.checker.finding import NOTE, PORTABILITY, Finding, Findings
from harness.findings import SHOWN, verdict


def launch(*severities: str) -> SimpleNamespace:
    findings = Findings()
    findings += [Finding("race", f"d{i}", (), "k.py:1", "", s) for i, s in enumerate(severities)]
    findings.arrange()
    return SimpleNamespace(findings=findings)


def test_only_errors_fail_a_case_unless_all_are_to():
    assert verdict([SimpleNamespace(findings=None), launch()]) == (False, "")
    remarks = launch(NOTE, PORTABILITY)
    failed, text = verdict([remarks])
    assert not failed and "1 of severity note" in text and "d0" not in text
    failed, text = verdict([remarks], strict=True)
    assert failed and "race (note): d0" in text
    failed, text = verdict([remarks], wrong=True)
    assert not failed and "2 remark(s), no error" in text and "d1" in text
    assert verdict([launch("error")])[0]


def test_errors_are_shown_first_and_all_can_be_had():
    many = [launch(*[NOTE] * 12), launch(NOTE, "error")]
    failed, text = verdict(many)
    assert failed and text.splitlines()[1] == "k.py:1: race: d1"
    assert text.splitlines()[-1] == f"... {14 - SHOWN} more: --all-findings"
    assert verdict(many, everything=True)[1].count("k.py:1") == 14
