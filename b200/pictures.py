"""Figures as files: PNG, SVG, PDF by matplotlib, or an HTML page without outside resources, in
which the figure's parts say more under the mouse.

matplotlib is imported when a figure is made; everything else works without it.
"""

from __future__ import annotations

import html
import importlib.util
import io
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg", ".pdf", ".html")
DPI = 150  # of PNG
SVG = "http://www.w3.org/2000/svg"
_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>{title}</title>
<style>
body {{ font-family: sans-serif; margin: 2em; }} svg {{ max-width: 100%; height: auto; }}
pre {{ background: #f4f4f4; padding: 1em; white-space: pre-wrap; }}
</style>
<h1>{title}</h1>
{figure}
<pre>{text}</pre>
</html>
"""


class NoPicture(Exception):
    """A picture cannot be made; str() says why in one line."""


def check(path: Path) -> None:
    """Raise NoPicture if a figure could not be written to `path`."""
    if path.suffix not in SUFFIXES:
        raise NoPicture(f"{path}: a picture's name ends in one of {', '.join(SUFFIXES)}")
    if importlib.util.find_spec("matplotlib") is None:
        raise NoPicture("pictures need matplotlib: run `python -m pip install '.[plot]'`")


def load() -> None:
    """Import what lists the machine's fonts, by a program where it is the first time there."""
    importlib.import_module("matplotlib.font_manager")


def new(width: float, height: float) -> Figure:
    """An empty figure of this many inches. Raises NoPicture without matplotlib."""
    check(Path("figure.png"))
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def set_title(axes: Any, title: str, path: Path) -> str:
    """Give axes a title of one or more lines. Returns its first line, the heading of an HTML page,
    where the figure does not repeat it.
    """
    heading, _, rest = title.partition("\n")
    shown = rest if path.suffix == ".html" and rest else title
    axes.set_title(shown, fontsize=10, loc="left", wrap=True)
    return heading


def save(
    figure: Figure,
    path: Path,
    title: str,
    text: str = "",
    hints: Mapping[str, Sequence[str]] | None = None,
) -> None:
    """Write the figure in the format that the name of `path` ends in.

    title, text, hints: of an HTML page: its heading, what stands under the figure, and by the gid
    of an artist what each of its shapes says under the mouse. Raises NoPicture.
    """
    check(path)
    if path.suffix != ".html":
        data = _bytes(figure, path.suffix[1:])
    else:
        drawn = svg(figure, hints)
        page = _PAGE.format(title=html.escape(title), figure=drawn, text=html.escape(text))
        data = page.encode()
    try:
        path.write_bytes(data)
    except OSError as error:
        raise NoPicture(f"{path} cannot be written: {error.strerror}") from None


def svg(figure: Figure, hints: Mapping[str, Sequence[str]] | None = None) -> str:
    """The figure as an <svg> for a page; hints: as `save` takes them."""
    return _with_hints(_bytes(figure, "svg"), hints or {})


def _bytes(figure: Figure, kind: str) -> bytes:
    """A file of this kind; text stays text, and the same figure gives the same bytes."""
    import matplotlib

    undated = {
        "svg": dict.fromkeys(("Creator", "Date", "Format", "Type")),
        "pdf": {"CreationDate": None},
    }
    buffer = io.BytesIO()
    plain: Any = matplotlib  # which leaves the types of its functions open
    open_figure: Any = figure
    with plain.rc_context({"svg.fonttype": "none", "svg.hashsalt": "b200"}):
        open_figure.savefig(buffer, format=kind, dpi=DPI, metadata=undated.get(kind))
    return buffer.getvalue()


def _with_hints(svg: bytes, hints: Mapping[str, Sequence[str]]) -> str:
    """The SVG with a <title> in each shape of the groups that `hints` names."""
    ElementTree.register_namespace("", SVG)
    ElementTree.register_namespace("xlink", "http://www.w3.org/1999/xlink")
    root = ElementTree.fromstring(svg)
    for group in root.iter(f"{{{SVG}}}g"):
        said = hints.get(group.get("id", ""))
        if not said:
            continue
        in_defs = {e for defs in group.iter(f"{{{SVG}}}defs") for e in defs.iter()}
        shapes = [e for e in group.iter() if e.tag in (f"{{{SVG}}}path", f"{{{SVG}}}use")]
        for shape, words in zip([s for s in shapes if s not in in_defs], said):
            ElementTree.SubElement(shape, f"{{{SVG}}}title").text = words
    return ElementTree.tostring(root, encoding="unicode")
