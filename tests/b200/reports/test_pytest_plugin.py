"""`pytest --b200`: a finding fails the test that launched, in every process; marks; the end of a job."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from importlib.metadata import entry_points

import pytest

from tests import ROOT
from tests.b200.reports.support import LAUNCH, WITHOUT_TORCH

INSTALLED = any(point.name == "b200" for point in entry_points(group="pytest11"))
BY_NAME = () if INSTALLED else ("-p", "b200.pytest_plugin")
# To import hypothesis takes each process a quarter of its start.
PLUGIN = ("-m", "pytest", *BY_NAME, "-p", "no:cacheprovider", "-p", "no:hypothesispytest", "-q")
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT)}  # for workers, where b200 is not installed
ENVIRONMENT.pop("PYTEST_XDIST_WORKER", None)
HEADER = f"import pytest\n{LAUNCH}"  # with torch, which the fork server has imported
ANEW = f"import pytest\n{WITHOUT_TORCH}"  # for workers of xdist, which do not have it
TESTS = """
def test_clean(): launch(CLEAN)
def test_race(): launch(RACE)
def test_race_and_failure(): launch(RACE); assert False, "mine"
def test_fault(): launch(FAULT)
def test_after_a_fault(): launch(CLEAN)
def test_caught():
    with pytest.raises(b200.EmulatorError): launch(FAULT)
@pytest.mark.b200(expect="global")
def test_expected(): launch(RACE)
@pytest.mark.b200(expect="global")
def test_expected_and_not_found(): launch(CLEAN)
@pytest.mark.b200(expect=["fault"])
def test_expected_fault(): launch(FAULT)
@pytest.mark.b200(allow="global at kernel.py:7")
def test_allowed(): launch(RACE)
@pytest.mark.b200(allow="global at kernel.py:8")
def test_allowed_elsewhere(): launch(RACE)
@pytest.mark.b200(budget=0.05)
def test_budget(): launch(ENDLESS.replace("st.global.u32 [%rd1], %r1;", ""))
@pytest.mark.b200(budget=0.05)
def test_budget_and_race(): launch(ENDLESS)
@pytest.mark.b200(check=False)
def test_unchecked(): launch(RACE)
@pytest.fixture
def launched(): launch(RACE)
def test_fixture(launched): pass
@pytest.mark.xfail
def test_xfail(): launch(RACE)
def test_process():
    if (child := os.fork()) == 0:
        launch(RACE)
        os._exit(0)
    os.waitpid(child, 0)
def test_launches(b200_launches, b200_gpu):
    launch(CLEAN)
    assert [x.kernel for x in b200_launches()] == ["clean"] and b200_gpu.launches
"""
# Of each process there is: torch is on cuda, or is going to be. A worker takes two CPU seconds to
# import it; what follows is that of tests/b200/host/cuda/test_when_imported.py.
IMPORTED = """
def test_torch(): assert torch.zeros(1, device="cuda").is_cuda
"""
WAITED_FOR = """
def test_torch():
    from b200.host import imports
    assert "torch" in imports._WATCH.waiting and "torch" not in sys.modules
"""
CONFTEST = """
import sys
def pytest_sessionfinish(session):
    if not hasattr(session.config, "workerinput"):
        open("imported", "w").write(str("torch" in sys.modules))
"""
RACE = "two CTAs write the same address"
# Test -> what JUnit has of it, and words of its text.
EXPECTED = {
    "test_clean": ("", ""),
    "test_race": ("failure", RACE),
    "test_race_and_failure": ("failure", RACE),
    "test_fault": ("failure", "is not aligned to the 4 bytes"),
    "test_after_a_fault": ("", ""),
    "test_caught": ("failure", "kernel faulty, grid (2, 1, 1)"),
    "test_expected": ("", ""),
    "test_expected_and_not_found": ("failure", "expected global, and found nothing of it"),
    "test_expected_fault": ("", ""),
    "test_allowed": ("", ""),
    "test_allowed_elsewhere": ("failure", RACE),
    "test_budget": ("skipped", "checked until here: endless was stopped after 0.05 s"),
    "test_budget_and_race": ("failure", RACE),
    "test_unchecked": ("", ""),
    "test_fixture": ("error", RACE),
    "test_xfail": ("skipped", ""),
    "test_process": ("failure", RACE),
    "test_launches": ("", ""),
    "test_torch": ("", ""),
}


def outcomes(path) -> dict[str, tuple[str, str]]:
    """What JUnit's file has of each test: how it ended, "" if well, and the text."""
    found = {}
    for case in ElementTree.parse(path).iter("testcase"):
        children = [child for child in case if child.tag in ("failure", "error", "skipped")]
        text = "".join(f"{c.get('message')}\n{c.text}" for c in children)
        found[case.get("name")] = (children[0].tag if children else "", text)
    return found


@pytest.fixture
def suite(tmp_path, fork_server):
    """suite(text, *options): pytest of a file. Workers of xdist have the path of a Python that was
    started anew.
    """

    def run(text: str, *options: str):
        (tmp_path / "test_it.py").write_text(text)
        (tmp_path / "pytest.ini").write_text("[pytest]\n")
        anew = "2" in options
        command = (*PLUGIN, *options, "test_it.py")
        return fork_server.run(*command, cwd=tmp_path, env=ENVIRONMENT, anew=anew)

    return run


@pytest.mark.parametrize("processes", ("0", "2"))
def test_a_finding_is_that_of_its_test(suite, tmp_path, processes):
    files = ("--junitxml", "j.xml", "--b200-report", "r.json")
    (tmp_path / "conftest.py").write_text(CONFTEST)
    head, end = ANEW, WAITED_FOR
    if processes == "0":
        head, end = f"{HEADER}\nassert torch.cuda.is_available()", IMPORTED
    done = suite(f"{head}\n{TESTS}{end}", "--b200", "-n", processes, *files)
    assert done.returncode == 1, done.stdout + done.stderr
    if processes != "0":  # who gives tests to workers has not waited for torch
        assert (tmp_path / "imported").read_text() == "False"
    found = outcomes(tmp_path / "j.xml")
    assert {name: how for name, (how, _) in found.items()} == {
        n: h for n, (h, _) in EXPECTED.items()
    }
    for name, (_, words) in EXPECTED.items():
        assert words in found[name][1], (name, found[name])
        assert found[name][1].count(RACE) <= 2 and "b200/chip" not in found[name][1]
    assert "mine" in found["test_race_and_failure"][1]
    report = json.loads((tmp_path / "r.json").read_text())
    names = {x["test"].rpartition("::")[2] for x in report["findings"]}
    failing = {n for n, (how, _) in EXPECTED.items() if how in ("failure", "error")}
    assert names == failing - {"test_expected_and_not_found"}
    assert report["status"] == 1 and len(report["accepted"]) == 4
    assert [x["test"].rpartition("::")[2] for x in report["incomplete"]].count("test_budget") == 1


def test_without_the_option_nothing_changes(tmp_path):
    """The plugin is imported, and neither torch nor more of b200."""
    text = "import sys\ndef test(): assert not {'torch', 'b200.testing'} & set(sys.modules)\n"
    (tmp_path / "test_it.py").write_text(f"{text}def test_skipped(b200_gpu): pass\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, *PLUGIN, "-n", "0", "test_it.py"]
    done = subprocess.run(command, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 0 and "1 passed, 1 skipped" in done.stdout, done.stdout


def test_what_no_test_has_launched_fails_the_run(suite):
    done = suite(f"{HEADER}\nlaunch(RACE)\ndef test(): launch(CLEAN)\n", "--b200", "-n", "0")
    assert done.returncode == 1 and "1 passed" in done.stdout and RACE in done.stdout


def test_a_baseline_makes_it_green_and_says_what_it_hides(suite, tmp_path):
    text = f"{HEADER}\ndef test(): launch(RACE)\n"
    done = suite(text, "--b200", "-n", "0", "--b200-write-baseline", "b.json")
    assert done.returncode == 1 and "TO DO" in (tmp_path / "b.json").read_text()
    (tmp_path / "b.json").write_text((tmp_path / "b.json").read_text().replace("TO DO", "issue 7"))
    done = suite(text, "--b200", "-n", "0", "--b200-baseline", "b.json")
    assert done.returncode == 0 and "accepted: global at kernel.py:7" in done.stdout
    assert "issue 7" in done.stdout
    done = suite(
        text.replace("RACE)\n", "CLEAN)\n"), "--b200", "-n", "0", "--b200-baseline", "b.json"
    )
    assert (
        done.returncode == 0 and "the baseline is stale: nothing is found of global" in done.stdout
    )


@pytest.mark.parametrize("name, status", [("cl*", 0), ("missing", 1)])
def test_a_kernel_that_is_expected(suite, name, status):
    text = f"{HEADER}\ndef test(): launch(CLEAN)\n"
    done = suite(text, "--b200", "-n", "0", "--b200-expect-kernel", name)
    assert done.returncode == status
    assert ("no launch of such a kernel" in done.stdout) == bool(status)


def test_strict(suite):
    text = f"{HEADER}\ndef test(): launch(CLEAN.replace('st.', 'ld.global.u32 %r5, [%rd1+252]; st.'))\n"
    assert suite(text, "--b200", "-n", "0").returncode == 0
    done = suite(text, "--b200", "-n", "0", "--b200-strict")
    assert done.returncode == 1 and "unwritten (note)" in done.stdout


def test_shards_are_all_tests_once(suite):
    text = "import pytest\n@pytest.mark.parametrize('n', range(9))\ndef test(n): print('ran', n)\n"
    found = [suite(text, "--b200", "-n", "0", "-s", "--b200-shard", f"{k}/3") for k in (1, 2, 3)]
    ran = [line for done in found for line in done.stdout.splitlines() if "ran" in line]
    assert sorted(line[-1] for line in ran) == list("012345678")


@pytest.mark.parametrize(
    "option, said",
    [
        (("--b200-shard", "4/3"), "--b200-shard: expected K/N with 1 <= K <= N, got 4/3"),
        (("--b200-baseline", "no.json"), "--b200-baseline: no.json is no baseline"),
        (("--b200-schedule", "backwards"), "--b200-schedule: a schedule is early, late"),
    ],
)
def test_wrong_options_are_a_line(suite, option, said):
    done = suite("def test(): pass", "--b200", "-n", "0", *option)
    assert done.returncode == 4 and said in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("processes", ("0", "1"))
def test_the_time_of_a_job_is_over(tmp_path, processes):
    """SIGTERM in a test that has a finding: JUnit's file and the report are there and have it."""
    ready = tmp_path / "ready"
    text = (
        f"{WITHOUT_TORCH}\ndef test(): launch(RACE); open({str(ready)!r}, 'w'); time.sleep(200)\n"
    )
    (tmp_path / "test_it.py").write_text(text)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    process = subprocess.Popen(
        [sys.executable, *PLUGIN, "--b200", "-n", processes, "--junitxml=j.xml", "--b200-report=r.json"],
        cwd=tmp_path,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    until = time.monotonic() + 400  # on a busy machine
    while not ready.exists() and process.poll() is None and time.monotonic() < until:
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=60)
    report = json.loads((tmp_path / "r.json").read_text())
    assert (process.returncode, report["status"], report["ended"]) == (143, 143, "SIGTERM"), out
    assert [x["test"] for x in report["findings"]] == ["test_it.py::test"] and RACE in out
    ElementTree.parse(tmp_path / "j.xml")
    if processes == "0":
        assert RACE in outcomes(tmp_path / "j.xml")["test"][1]


def test_a_worker_of_b200_run(tmp_path, fork_server):
    """`b200 run -m pytest -n 1`: what its worker finds is the run's, each with its test."""
    (tmp_path / "test_it.py").write_text(
        f"{WITHOUT_TORCH}\ndef test_a(): launch(RACE)\ndef test_b(): launch(CLEAN)\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    command = ("-m", "b200", "run", "--report", "r.json", *PLUGIN, "-n", "1")
    done = fork_server.run(*command, cwd=tmp_path, env=ENVIRONMENT, anew=True)
    report = json.loads((tmp_path / "r.json").read_text())
    assert done.returncode == 1 and "2 passed" in done.stdout, done.stdout
    assert [x["test"] for x in report["findings"]] == ["test_it.py::test_a"]
    assert report["launches"] == 2
