"""A report as SARIF 2.1.0 (OASIS, 2020), as GitHub's code scanning takes it: a result a finding,
with its rule, the line of the user's file, and a fingerprint that stays when other lines move.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from b200.checker.finding import ERROR, NOTE, PAGE
from b200.reports import rules

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
LEVELS = {ERROR: "error", NOTE: "note"}  # portability: warning
ROOT_ID = "SRCROOT"


def of(document: dict[str, Any], root: Path) -> dict[str, Any]:
    """A report as a SARIF log. root: the folder that paths are relative to, of the repository."""
    findings = [*document["findings"], *document["accepted"]]
    names = list(dict.fromkeys(finding["rule"] for finding in findings))
    run = {
        "tool": {
            "driver": {
                "name": "b200",
                "version": document["tool"]["version"],
                "informationUri": "https://docs.nvidia.com/cuda/parallel-thread-execution/",
                "rules": list(map(_rule, names)),
            }
        },
        "columnKind": "utf16CodeUnits",
        "originalUriBaseIds": {ROOT_ID: {"uri": root.resolve().as_uri() + "/"}},
        "invocations": [_invocation(document)],
        "results": [
            _result(finding, names.index(finding["rule"]), root, _file_of(finding, document))
            for finding in findings
        ],
    }
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def _rule(name: str) -> dict[str, Any]:
    """A rule with its help: what the page says of it."""
    rule = rules.all_rules().get(name) or rules.all_rules()[name.partition("/")[0]]
    parts = [f"On the chip: {rule.chip}."] if rule.chip else []
    parts += [f"Mend: {rule.mend}."] if rule.mend else []
    parts.append(f"Explained in {PAGE}#{rule.kind}.")
    said = rules.all_rules()[rule.kind].says
    return {
        "id": name,
        "name": "".join(word.capitalize() for word in name.replace("/", "-").split("-")),
        "shortDescription": {"text": f"{rule.kind}: {rule.says if rule.mend else said}"},
        "fullDescription": {"text": said},
        "help": {"text": " ".join(parts), "markdown": "\n\n".join(parts)},
        "properties": {"tags": ["cuda", rule.kind]},
    }


def _invocation(document: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {
        # Whether the tool itself came to its end; what it has found is in the results.
        "executionSuccessful": document["status"] is not None,
        "toolExecutionNotifications": [
            {"level": "warning", "message": {"text": f"{row['kernel']}: {row['why']}"}}
            for row in document["incomplete"]
        ],
    }
    if document["status"] is not None:
        found["exitCode"] = document["status"]
    return found


def _file_of(finding: dict[str, Any], document: dict[str, Any]) -> str:
    """The file to name where no line is known: of the test, or the program."""
    test = finding["test"].partition("::")[0]
    files = [name for name in (test, *document["program"]) if name and os.path.isfile(name)]
    return files[0] if files else "unknown"


def _result(finding: dict[str, Any], rule: int, root: Path, program: str) -> dict[str, Any]:
    """A finding. program: the file where it is said that no line is known."""
    lines = [finding["diagnosis"], *finding["details"]]
    in_kernel = f"kernel {finding['kernel']}, grid {tuple(finding['grid'])}"
    lines.append(f"{in_kernel}, test {finding['test']}" if finding["test"] else in_kernel)
    result: dict[str, Any] = {
        "ruleId": finding["rule"],
        "ruleIndex": rule,
        "level": LEVELS.get(finding["severity"], "warning"),
        "message": {"text": "\n".join(lines)},
        "partialFingerprints": {"b200/v1": _fingerprint(finding)},
        "properties": {
            name: finding[name]
            for name in ("kernel", "grid", "cluster", "cta", "launch", "test", "schedule", "times")
            if finding[name] not in (None, "")
        },
    }
    place = finding["place"]
    result["locations"] = [_location(place["file"] or program, place["line"], root)]
    if others := _others(finding["accesses"], root):
        result["relatedLocations"] = others
    if reason := finding.get("reason"):
        result["suppressions"] = [{"kind": "external", "justification": reason}]
    return result


def _others(accesses: Iterable[dict[str, Any]], root: Path) -> list[dict[str, Any]]:
    """The accesses of a finding, each with what it is."""
    found: list[dict[str, Any]] = []
    for number, access in enumerate(accesses):
        file, _, line = access["loc"].rpartition(":")
        text = f"{access['role']}: {access['what']}" if access["what"] else access["role"]
        where = _location(file, int(line), root) | {"id": number}
        found.append(where | {"message": {"text": text}})
    return found


def _location(file: str, line: int, root: Path) -> dict[str, Any]:
    path = Path(os.path.abspath(file))
    artifact = {"uri": path.as_uri()}
    if path.is_relative_to(root.resolve()):
        below = path.relative_to(root.resolve())
        artifact = {"uri": below.as_posix(), "uriBaseId": ROOT_ID}
    return {
        "physicalLocation": {"artifactLocation": artifact, "region": {"startLine": max(line, 1)}}
    }


def _fingerprint(finding: dict[str, Any]) -> str:
    """Of what stays when lines above it come or go."""
    place = finding["place"]
    same = (finding["rule"], finding["kernel"], Path(place["file"]).name, place["code"])
    text = json.dumps([*same, "" if place["code"] else place["line"]])
    return hashlib.sha256(text.encode()).hexdigest()[:32]
