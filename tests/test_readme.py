"""What README and docs tell to type exists: modules, files, options; the snippet runs."""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import re
import shlex

import pytest

import eval as eval_py
from lab.commands import COMMANDS
from lab.tables import catalogue, figures
from tests import ROOT

FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
PAGES = [page for page in figures.pages() if not figures.history(page)]
COMMAND_PAGE = ROOT / "docs" / "reference" / "cli.md"
NOT_OURS = ("pip", "pytest", "ruff")
WRITTEN = {"survey.py": ("-m", "lab", "survey")}  # a program -> the command that writes it
EXTRA = ("ruff", "pyright")  # of the extra `test`; nothing but these commands needs them
SUBCOMMANDS = {
    "b200": ("run", "exec", "report", "info"),
    "hopper": ("run", "pack", "pipeline"),
    "lab": tuple(COMMANDS),
}
OWN_PATH = re.compile(
    r"(?:b200|harness|hopper|lab|tests|docs|\.ci)/[\w./-]*\w|[\w-]+/[\w/-]+\.(?:py|md|json|cu)"
)


def commands() -> list[str]:
    """Every `python ...` command of README, docs and the list of figures."""
    found = {}
    for page in PAGES:
        text = page.read_text()
        for language, code in FENCE.findall(text):
            if not language:
                lines = [re.split(r"\s{2,}|\s#\s", line)[0] for line in code.splitlines()]
                found |= {line.removeprefix("$ "): None for line in lines}
        spans = re.findall(r"`(?:[A-Z_]+=\S+ )*(python [^`]+)`", FENCE.sub("", text))
        found |= {re.sub(r"\s+", " ", span): None for span in spans}
    for table in catalogue.TABLES.values():
        found |= {part: None for part in table.command.split("; ")}
    parts = [part for line in found for part in line.split(" && ")]
    return sorted({part for part in parts if part.startswith("python ")})


def program(words: list[str]) -> tuple[list[str], list[str]]:
    """(program with its subcommands, the rest) of a command without its `python`."""
    start = 2 if words[0] == "-m" else 1
    start += words[0] == "eval.py" and words[1] in eval_py.COMMANDS
    for name, known in SUBCOMMANDS.items():
        if words[:2] == ["-m", name]:
            second = words[2] if len(words) > 2 else ""
            start += (second in known) + (second in ("calibrate", "h200", "packs"))
    return words[:start], words[start:]


# Prints the --help of each program that stdin lists; one process, since they import the same.
HELP = """
import contextlib, io, json, runpy, sys
texts = []
for called in json.load(sys.stdin):
    module, *rest = called[1:] if called[0] == "-m" else called
    sys.argv, text = [module, *rest, "--help"], io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
        if called[0] == "-m":
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(module, run_name="__main__")
    texts.append(text.getvalue())
json.dump(texts, sys.stdout)
"""


@pytest.fixture(scope="module")
def usages(fork_server, tmp_path_factory) -> dict[tuple[str, ...], str]:
    """Program -> its --help, of each that a command gives options to."""
    programs = {("eval.py",), ("eval.py", "qualify"), ("-m", "b200", "run")}
    for command in commands():
        called, options = asked(command)
        programs |= {called} if options else set()
    asking = tmp_path_factory.mktemp("usages") / "programs.json"
    asking.write_text(json.dumps(list(programs)))
    done = fork_server.run("-c", HELP, files={0: asking})
    assert done.returncode == 0, done.stderr
    return dict(zip(programs, json.loads(done.stdout)))


def asked(command: str) -> tuple[tuple[str, ...], set[str]]:
    """(program, the options it is given) of a command; none of pip's, pytest's and ruff's."""
    called, rest = program(words_of(command))
    options = {word.split("=")[0] for word in rest if re.match(r"--?[a-z]", word)}
    found = tuple("tma" if word == "NAME" else word for word in called)
    return found, set() if called[-1] in NOT_OURS else options


def words_of(command: str) -> list[str]:
    """Its words after `python`, up to what stands for more or for another, or is another command."""
    words = shlex.split(command.split("  #")[0])[1:]
    ends = (i for i, word in enumerate(words) if word[0] in "[|>" or word in ("...", "--"))
    return words[: next(ends, None)]


def without_help(usage: str) -> list[str]:
    """Options and arguments of a --help that say nothing of themselves."""
    lines = usage.splitlines()
    listed = [line.endswith(":") and not line.startswith((" ", "usage")) for line in lines]
    first = max(i for i, line in enumerate(lines) if "--help" in line)
    start = listed.index(True) if True in listed[:first] else 0
    pairs = zip(lines[start:], [*lines[start + 1 :], ""])
    entry = re.compile(r"  (?:-|[A-Z{a-z]\S* *$|[A-Z{a-z]\S*  )")
    return [
        line.strip()
        for line, below in pairs
        if entry.match(line) and not re.search(r"\S  +\S", line) and not below.startswith(" " * 10)
    ]


def test_what_has_no_help_is_found():
    parser = argparse.ArgumentParser(prog="p")
    parser.add_argument("--told", help="what it does")
    parser.add_argument("--a-very-long-option", metavar="VALUE", help="what it does")
    parser.add_argument("place", help="where")
    assert without_help(parser.format_help()) == []
    parser.add_argument("--silent")
    parser.add_argument("nothing")
    assert without_help(parser.format_help()) == ["nothing", "--silent SILENT"]


def test_every_option_says_what_it_is_for(usages):
    found = {" ".join(called): without_help(text) for called, text in usages.items()}
    assert len(found) >= 20
    assert {called: silent for called, silent in found.items() if silent} == {}


@pytest.mark.parametrize("command", commands())
def test_command_exists(command, usages):
    called, options = asked(command)
    if called[1:2] == ("pip",):
        # find_spec("pip") would turn setuptools' distutils off in this process
        assert importlib.metadata.version("pip"), command
    elif called[0] == "-m":
        assert importlib.util.find_spec(called[1]) or called[1] in EXTRA, command
    elif called[0] in WRITTEN:
        assert f"(default {called[0]})" in usages[WRITTEN[called[0]]], command
    else:
        assert (ROOT / called[0]).is_file(), command
    for option in options:
        assert re.search(rf"(?<![\w-]){option}(?![\w-])", usages[called]), f"no {option}"


def test_the_commands_of_the_first_screen_are_among_them():
    found = commands()
    for command in ("python eval.py test", "python -m pytest", "python -m b200 run SCRIPT.py"):
        assert command in found


def test_two_commands_do_all_the_set_up():
    """.ci/run takes them from the README."""
    lines = (ROOT / "README.md").read_text().splitlines()
    assert sum(line.startswith("python -m pip install") for line in lines) == 2


def test_options_of_the_readme_are_all_there(usages):
    """Every --option that README and the page of commands name is one of eval.py, of a command of
    its own, or of `b200`."""
    pages = "".join(path.read_text() for path in (ROOT / "README.md", COMMAND_PAGE))
    text = re.sub(r"python -m lab[^`\n]*", "", pages)
    ours = [t for called, t in usages.items() if "eval.py" in called or "b200" in called]
    known = "".join(ours)
    for option in sorted(set(re.findall(r"(?<![\w-])--[a-z][\w-]*", text))):
        assert re.search(rf"{option}(?![\w-])", known), option


def test_the_snippet_runs(fork_server):
    """As it stands, in the checkout, in a process of its own."""
    (snippet,) = (c for lang, c in FENCE.findall((ROOT / "README.md").read_text()) if lang)
    done = fork_server.run("-c", snippet)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("torch.Size([128, 256, 1]) (")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_a_page_names_exist(page):
    text = page.read_text()
    spans = re.findall(r"`([^`\n]+)`", FENCE.sub("", text)) + re.findall(r"\[([\w/., ]+)\]", text)
    for span in spans:
        for path in OWN_PATH.findall(span):
            beside = [ROOT / path, ROOT / "b200" / path, ROOT / "docs" / path]
            assert any(p.exists() for p in beside), f"{page.name}: {path}"
