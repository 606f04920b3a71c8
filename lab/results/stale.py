"""Which files of docs/results are of other sources than today's."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from harness import digest
from lab.results.files import FILES, RESULTS, ROOT, STEPS, File, today
from lab.tables import markdown

EXAMPLES = ("", "docs/examples/", "docs/examples/steps/")  # where a submission of a row may be


def made_by(path: Path) -> list[dict[str, Any]]:
    """What made a file: one entry, or one a row; {} for a row of which nothing says it."""
    text = path.read_text()
    if path.suffix == ".jsonl":
        rows = [json.loads(line) for line in text.splitlines()]
    else:
        whole = json.loads(text)
        rows = [whole] if "made_by" in whole else whole.get("kernels", [whole])
    return [row.get("made_by", {}) | _submission(row) for row in rows]


def _submission(row: Mapping[str, Any]) -> dict[str, str]:
    """`file` of a row that is of a submission of its own."""
    return {"file": row["submission"]} if "submission" in row else {}


def changed(made: Mapping[str, Any], file: File, root: Path = ROOT) -> list[str]:
    """The digests in which a row and today's sources differ. A row that has none of a kind that it
    depends on counts as different.
    """
    current = today(root)
    if "file" in made:
        current["submission"] = lambda: _digest_of(made["file"], made, root)
    return [name for name in file.depends if made.get(name) != current[name]()]


def _digest_of(name: str, made: Mapping[str, Any], root: Path) -> str:
    """Of the submission that a row names: as it was if it is not of this checkout."""
    known = {Path(step).name for step in STEPS} | {"submission.py"}
    places = [root / folder / name for folder in EXAMPLES] if name in known else []
    found = [place for place in places if place.is_file()]
    return digest.of_file(found[0]) if found else made.get("submission", "")


def stale(name: str, root: Path = ROOT) -> list[str]:
    """The parts of the sources that have changed since a file of docs/results was made."""
    rows = made_by(root / RESULTS / name)
    distinct = {json.dumps(made, sort_keys=True): made for made in rows}
    found = {part for made in distinct.values() for part in changed(made, FILES[name], root)}
    return [part for part in FILES[name].depends if part in found]


def problems(root: Path = ROOT) -> list[str]:
    """What is wrong with the files under `root`, a line each: no word on what made one, or a stale
    one that can be made again here.
    """
    return list(_problems(root))


def _problems(root: Path) -> Iterator[str]:
    for path in sorted((root / RESULTS).iterdir()):
        where = f"{RESULTS}/{path.name}"
        if path.name not in FILES:
            yield f"{where}: lab/results/files.py does not say what it depends on"
        elif not all(made_by(path)):
            yield f"{where}: nothing says what made it (made_by)"
        elif FILES[path.name].here and (parts := stale(path.name, root)):
            yield f"{where} is stale: {', '.join(parts)} (python -m lab remake)"


def table(root: Path = ROOT) -> str:
    """A row a file: what made it, how it is made again, and whether sources have changed since."""
    rows = [
        (f"`{name}`", _maker(name, root), _again(FILES[name]), _state(name, root))
        for name in sorted(FILES)
        if (root / RESULTS / name).is_file()
    ]
    return markdown.table(("file", "made by", "to make it again", "sources since"), rows)


def _maker(name: str, root: Path) -> str:
    rows = made_by(root / RESULTS / name)
    parts = [dict.fromkeys(str(row[key]) for row in rows if row.get(key)) for key in SAID]
    said = [SAID[key].format(", ".join(found)) for key, found in zip(SAID, parts) if found]
    return "; ".join(said) or "the sources of today"


SAID = {
    "by": "{}",
    "device": "{}",
    "sources": "kernels of {}",
    "dsl": "DSL {}",
    "commit": "sources of {}",
}


def _again(file: File) -> str:
    if file.needs:
        return f"needs {file.needs}"
    return "`python -m lab remake`" + (", named: it takes hours" if file.slow else "")


def _state(name: str, root: Path) -> str:
    if not FILES[name].depends:
        return "measured" if made_by(root / RESULTS / name)[0].get("device") else "by hand"
    parts = stale(name, root)
    return f"stale: {', '.join(parts)}" if parts else "the same"
