"""The pages of CI say what there is: every field of a report, every option of the plugin."""

from __future__ import annotations

import re

import pytest

from b200 import pytest_plugin
from b200.reports import document
from b200.reports.choice import Choice
from tests import ROOT
from tests.b200.reports.test_formats import finding, launch, run_of

REPORT = (ROOT / "docs" / "reference" / "report.md").read_text()
PYTEST = (ROOT / "docs" / "pytest.md").read_text()


def rows(page: str) -> set[str]:
    """The code spans of the first cells of a page's tables."""
    cells = re.findall(r"^\| ([^|]+) \|", page, re.MULTILINE)
    return {span.split()[0] for cell in cells for span in re.findall(r"`([^`]+)`", cell)}


def test_every_field_of_a_report_has_a_row():
    report = run_of(launch(finding(), incomplete=["a"])).document(Choice())
    fields = set(report) | set(report["findings"][0])
    assert fields <= rows(REPORT), fields - rows(REPORT)
    assert document.SCHEMA in REPORT
    access, incomplete = report["findings"][0]["accesses"][0], report["incomplete"][0]
    for name in (*access, *incomplete, *report["findings"][0]["place"], *report["kernels"][0]):
        assert f"`{name}`" in REPORT, name


def test_every_option_of_the_plugin_has_a_row():
    class Group:
        names: list[str] = []

        def addoption(self, name: str, **how: object) -> None:
            self.names.append(name)

    class Parser:
        def getgroup(self, *_: str) -> Group:
            return Group()

    pytest_plugin.pytest_addoption(Parser())  # type: ignore[arg-type]
    assert len(Group.names) > 10
    assert set(Group.names) - {"--b200"} <= rows(PYTEST)
    assert len(PYTEST.splitlines()) <= 52  # a screen


@pytest.mark.parametrize("page", ["ci.md", "pytest.md"])
def test_options_that_pages_name_are_there(page):
    text = (ROOT / "docs" / page).read_text()
    named = set(re.findall(r"--b200-[a-z-]+", text))
    assert named <= rows(PYTEST)
