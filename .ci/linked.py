"""linked.py FROM TO: what pip has put into one environment's site-packages, and what is not of one
Python (wheels `py3-none` of a platform: CUDA's libraries, 3 GB), into another's as hard links.

pip finds it installed there, and keeps it where it is the version that is asked for.
"""

import os
import sys
from importlib.metadata import distributions
from pathlib import Path

source, target = map(Path, sys.argv[1:])
for found in distributions(path=[str(source)]):
    lines = (found.read_text("WHEEL") or "").splitlines()
    tags = [line.split()[1] for line in lines if line.startswith("Tag:")]
    files = found.files or []
    of_any_python = tags and all(tag.startswith("py3-none-manylinux") for tag in tags)
    if of_any_python and not any(".." in file.parts for file in files):
        for file in files:
            place = target / file
            place.parent.mkdir(parents=True, exist_ok=True)
            os.link(source / file, place)
