"""``edgert boards`` as a user types it."""

import json
from pathlib import Path

from edgert.board.record import board_names, load_board
from tests.helpers.command import in_process


def test_all_boards_and_what_they_can_do(tmp_path: Path) -> None:
    done = in_process("boards", "--json", "boards.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = {line.split()[0]: line for line in done.stdout.splitlines() if line}
    assert set(board_names()) <= set(rows)
    row = rows["orin-nx-16gb"]
    for text in ("tegra234", "16 GiB", "102.4", "8 @ 918", "30.1", "2 × 10.1", "5, 6, 7", "Jetson Orin NX 16GB"):
        assert text in row
    assert "12 @ ~1520" in rows["thor-t4000"]
    sheets = json.loads((tmp_path / "boards.json").read_text(encoding="utf-8"))
    assert [sheet["name"] for sheet in sheets] == list(board_names())
    assert all(mode["source"].startswith("https://") for sheet in sheets for mode in sheet["modes"])


def test_one_board_with_its_modes_and_sources(tmp_path: Path) -> None:
    done = in_process("boards", "orin-nx-16gb-super", "--sources", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    modes = [line for line in done.stdout.splitlines() if line.startswith("15W ")]
    assert "4 @ 612" in modes[0] and "614.4 + 115" in modes[0] and "10.1 + 1.88" in modes[0]
    assert "40W *" in done.stdout and "* boots into this one." in done.stdout
    assert "modes.15W.second_dla_mhz" in done.stdout and "dla.max_mhz" in done.stdout
    sources = [line.split()[1] for line in done.stdout.splitlines() if line.split()[1:2] and "://" in line]
    assert len(sources) == len(set(sources)) > 4
    assert all(source.startswith("https://") and "…" not in source for source in sources)
    assert "match.p3767-0002" in done.stdout and "word=" not in done.stdout


def test_a_board_of_ones_own_begins_with_a_copy(tmp_path: Path) -> None:
    copy = in_process("boards", "agx-orin-64gb", "--yaml", cwd=tmp_path)
    assert copy.returncode == 0
    own = tmp_path / "rover.yaml"
    own.write_text(copy.stdout, encoding="utf-8")
    done = in_process("boards", "rover.yaml", cwd=tmp_path)
    assert done.returncode == 1 and "name: rover" in done.stderr
    own.write_text(copy.stdout.replace("name: agx-orin-64gb", "name: rover"), encoding="utf-8")
    assert load_board(own).name == "rover"
    done = in_process("boards", "./rover.yaml", "--json", "-", cwd=tmp_path)
    assert json.loads(done.stdout)["name"] == "rover" and "MODE_50W" in done.stderr


def test_an_unknown_board_and_wrong_use(tmp_path: Path) -> None:
    done = in_process("boards", "orin-nano-8g", cwd=tmp_path)
    assert done.returncode == 1 and "did you mean 'orin-nano-8gb'?" in done.stderr and "Traceback" not in done.stderr
    done = in_process("boards", "--sources", cwd=tmp_path)
    assert done.returncode == 2 and "name a board" in done.stderr
