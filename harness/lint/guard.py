"""kernelguard's own verdict, where it is installed: what kernelbot asks before a benchmark, a
profile and a ranked run.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from b200.records import as_object
from harness.lint.submission import Found, Submission

SECONDS = 300  # kernelbot's own limit


def verdict(submission: Submission) -> Iterator[Found]:
    if not submission.text:
        return
    command = _command()
    if not command:
        yield Found("kernelguard is not asked: `python -m pip install kernelguard`", grade="offer")
        return
    try:
        result = _ask(command, submission.text)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        said = " ".join(str(error).split())
        yield Found(f"kernelguard gave no answer: {said}", grade="note")
        return
    patterns = sorted({str(item.get("pattern")) for item in result.get("matched_patterns", ())})
    matched = f" ({', '.join(patterns)})" if patterns else ""
    if result.get("should_filter"):
        reason = result.get("filter_reason") or result["classification"]
        yield Found(f"kernelguard filters it: {reason}{matched}")
    elif result["classification"] == "suspicious":
        yield Found(f"kernelguard calls it suspicious, and lets it pass{matched}", grade="note")


def _command() -> list[str]:
    if importlib.util.find_spec("kernelguard"):
        return [sys.executable, "-m", "kernelguard", "--api-mode"]
    found = next(filter(None, map(shutil.which, ("kernelguard", "kguard"))), None)
    return [found, "--api-mode"] if found else []


def _ask(command: list[str], text: str) -> dict[str, Any]:
    """Its answer. Raises SubprocessError, OSError, or ValueError for none."""
    done = subprocess.run(
        command, input=text, capture_output=True, text=True, timeout=SECONDS, check=True
    )
    lines = done.stdout.split("\n")
    answers = [line for line in lines if line.strip()]
    if not answers:
        raise ValueError("it printed nothing")
    found: Any = json.loads(answers[-1])
    answer = as_object(found)
    if "classification" not in answer:
        raise ValueError("it printed no verdict")
    return answer
