"""python -m lab house: floors of a room, and circles."""

from __future__ import annotations

import pytest

from lab import house


def write(root, files: dict[str, str]):
    for name, text in files.items():
        path = root / "room" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_a_module_stands_on_what_it_imports(tmp_path):
    write(
        tmp_path,
        {
            "__init__": "from room.top import x",
            "top": "from room import middle\nimport room.low.stone",
            "middle": "def f():\n    from room.low import stone",
            "low/__init__": "",
            "low/stone": "if TYPE_CHECKING:\n    from room.top import x",
        },
    )
    floors = [["low", "low.stone"], ["middle"], ["top"], ["(the door)"]]
    assert house.floors("room", tmp_path) == floors
    assert house.drawing("room", tmp_path)[0] == "room: 5 modules on 4 floors, no circle"


def test_a_circle_is_named(tmp_path):
    write(tmp_path, {"a": "import room.b", "b": "from room import a"})
    with pytest.raises(house.CycleError):
        house.floors("room", tmp_path)


@pytest.mark.parametrize("room", house.ROOMS)
def test_the_rooms_of_the_house_have_floors(room, capsys):
    assert house.main([room]) == 0
    assert capsys.readouterr().out.startswith(f"{room}: ")


def test_a_room_that_is_not_there(capsys):
    with pytest.raises(SystemExit) as ended:
        house.main(["b200.attic"])
    assert ended.value.code == 2
    assert "b200.attic is no package of this checkout" in capsys.readouterr().err
