"""The picture of the README: `python -m lab picture [--write FILE]`.

On the left the timeline of a CTA of docs/examples/gemm_mended.py, modelled; on the right the map of
what is wrong when its epilogue stores half of the columns. On a white ground, so that it can be
read on a dark page as well. Takes matplotlib and half a minute.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from b200.command_line import Parser

ROOT = Path(__file__).resolve().parents[2]
KERNEL = ROOT / "docs" / "examples" / "gemm_mended.py"
PICTURE = ROOT / "docs" / "picture.png"
CASE = "m: 256; n: 384; k: 1024; l: 1"
HALF = (  # of the columns of a tile are loaded from tensor memory and stored
    ("tcgen05.Repetition.x128", "tcgen05.Repetition.x64"),
    ("acc[(None, None), 0, 0], TILE[:2]", "acc[(None, None), 0, 0], (128, 64)"),
    ("cute.local_tile(gC, TILE[:2]", "cute.local_tile(gC, (128, 64)"),
)
GAP = 30  # pixels between the two
WIDEST = 1600  # pixels of the picture
COLOURS = 160  # of its palette, which keeps it small


def with_bug(text: str) -> str:
    """The kernel's source with the bug."""
    for right, wrong in HALF:
        if text.count(right) != 1:
            raise ValueError(f"{KERNEL.name} should have {right!r} once, has {text.count(right)}")
        text = text.replace(right, wrong)
    return text


def draw(mode: str, submission: Path, path: Path) -> None:
    """Have eval.py draw. Raises CalledProcessError if it does not."""
    command = [sys.executable, str(ROOT / "eval.py"), mode, "gemm", "--case", CASE]
    command += ["--submission", str(submission), "--device", "emulator", "--plot", str(path)]
    done = subprocess.run(command, capture_output=True, text=True)
    if not path.is_file():
        raise subprocess.CalledProcessError(done.returncode, command, done.stdout, done.stderr)


def beside(left: Path, right: Path, target: Path) -> None:
    """Two pictures side by side, equally high, on a white ground."""
    from PIL import Image

    first, second = (Image.open(path).convert("RGB") for path in (left, right))
    second = second.resize((second.width * first.height // second.height, first.height))
    both = Image.new("RGB", (first.width + GAP + second.width, first.height), "white")
    both.paste(first, (0, 0))
    both.paste(second, (first.width + GAP, 0))
    both.thumbnail((WIDEST, WIDEST))
    both.quantize(COLOURS).save(target, optimize=True)


def main(argv: Sequence[str]) -> int:
    parser = Parser(prog="python -m lab picture", description=__doc__)
    parser.add_argument("--write", type=Path, default=PICTURE, metavar="FILE", help="a PNG")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wrong = folder / "gemm.py"
        wrong.write_text(with_bug(KERNEL.read_text()))
        timeline, where = folder / "timeline.png", folder / "map.png"
        draw("profile", KERNEL, timeline)
        draw("diff", wrong, where)
        beside(timeline, where, options.write)
    print(f"wrote {options.write}, {options.write.stat().st_size / 1024:.0f} KB")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
