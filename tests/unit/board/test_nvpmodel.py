"""The power mode of a Jetson, read from its files by name."""

from pathlib import Path

import pytest

from edgert.board.nvpmodel import current_mode, power_modes
from edgert.board.record import boards
from edgert.errors import DeviceError
from tests.unit.board.tree import nvpmodel, nvpmodel_conf, write

NAMES = ("MAXN", "10W", "15W", "25W")


def test_the_mode_is_the_name_that_its_number_has_in_this_file(tmp_path: Path) -> None:
    nvpmodel(tmp_path, NAMES, current=2)
    assert current_mode(tmp_path) == "15W"
    nvpmodel(tmp_path, ("15W", "25W", "MAXN_SUPER"), current=2)  # 0 is not the fastest on every board
    assert current_mode(tmp_path) == "MAXN_SUPER"


@pytest.mark.parametrize("status", ["pmode:0002", "pmode:0002 fmode:quiet", "pmode:2\n", "fmode:cool pmode:0002\n"])
def test_what_status_files_of_all_releases_say(tmp_path: Path, status: str) -> None:
    nvpmodel(tmp_path, NAMES)
    write(tmp_path, "var/lib/nvpmodel/status", status)
    assert current_mode(tmp_path) == "15W"


def test_modes_by_number(tmp_path: Path) -> None:
    nvpmodel(tmp_path, NAMES, default=3)
    found = power_modes(tmp_path)
    assert found is not None and found.path == "/etc/nvpmodel.conf"
    assert found.names == {0: "MAXN", 1: "10W", 2: "15W", 3: "25W"}


def test_the_link_leads_within_the_root(tmp_path: Path) -> None:
    write(tmp_path, "etc/nvpmodel/nvpmodel_p3767_0000.conf", nvpmodel_conf(NAMES))
    write(tmp_path, "etc/nvpmodel/nvpmodel_p3767_0003.conf", nvpmodel_conf(("15W", "7W")))
    write(tmp_path, "var/lib/nvpmodel/status", "pmode:0001")
    link = tmp_path / "etc/nvpmodel.conf"
    for target in ("/etc/nvpmodel/nvpmodel_p3767_0003.conf", "nvpmodel/nvpmodel_p3767_0003.conf"):
        link.symlink_to(target)
        assert current_mode(tmp_path) == "7W"
        link.unlink()
    assert power_modes(tmp_path) is None  # one of two, and no telling which


def test_the_only_file_is_taken_where_the_link_is_missing(tmp_path: Path) -> None:
    write(tmp_path, "etc/nvpmodel/nvpmodel_t186.conf", nvpmodel_conf(("MAXN", "MAXQ")))
    write(tmp_path, "var/lib/nvpmodel/status", "pmode:0001")
    assert current_mode(tmp_path) == "MAXQ"


def test_a_machine_without_nvpmodel_has_no_mode(tmp_path: Path) -> None:
    assert current_mode(tmp_path) == "" and power_modes(tmp_path) is None
    nvpmodel(tmp_path, NAMES, current=None)
    assert current_mode(tmp_path) == ""
    assert current_mode(tmp_path / "none") == ""


@pytest.mark.parametrize(
    ("text", "why", "line"),
    [
        ("", "defines no POWER_MODEL", ""),
        ("# < POWER_MODEL ID=0 NAME=MAXN >\n", "defines no POWER_MODEL", ""),
        ("< POWER_MODEL ID=0 >\n", "has no ID=NUMBER and NAME=NAME", ":1"),
        ("\n< POWER_MODEL ID=zero NAME=MAXN >\n", "has no ID=NUMBER", ":2"),
        ("< POWER_MODEL ID=0 NAME=A >\n< POWER_MODEL ID=0 NAME=B >", "ID=0 NAME=B >' has no", ":2"),
        ("< POWER_MODEL ID=0 NAME=A >\n< POWER_MODEL ID=1 NAME=A >", "ID=1 NAME=A >' has no", ":2"),
        ("\x00\xff<>", "defines no POWER_MODEL", ""),
    ],
)
def test_a_damaged_file_is_told_with_its_line(tmp_path: Path, text: str, why: str, line: str) -> None:
    write(tmp_path, "etc/nvpmodel.conf", text)
    with pytest.raises(DeviceError) as caught:
        power_modes(tmp_path)
    assert caught.value.what == "cannot parse /etc/nvpmodel.conf"
    assert why in caught.value.why and caught.value.where == f"/etc/nvpmodel.conf{line}"
    assert "nvidia-l4t-nvpmodel" in caught.value.fix


@pytest.mark.parametrize("status", ["", "pmode:", "pmode:two", "mode 2"])
def test_a_damaged_status_is_told(tmp_path: Path, status: str) -> None:
    nvpmodel(tmp_path, NAMES)
    write(tmp_path, "var/lib/nvpmodel/status", status)
    with pytest.raises(DeviceError, match="/var/lib/nvpmodel/status does not name the power mode"):
        current_mode(tmp_path)


def test_a_number_that_the_file_does_not_have(tmp_path: Path) -> None:
    nvpmodel(tmp_path, NAMES, current=9)
    with pytest.raises(DeviceError) as caught:
        current_mode(tmp_path)
    assert "no power mode 9 in /etc/nvpmodel.conf" in caught.value.what and "2: 15W" in caught.value.why


def test_a_folder_in_its_place_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "etc/nvpmodel.conf").mkdir(parents=True)
    write(tmp_path, "var/lib/nvpmodel/status", "pmode:0001")
    with pytest.raises(DeviceError, match="cannot read"):
        current_mode(tmp_path)


def test_every_mode_of_every_board_is_found_again_by_name(tmp_path: Path) -> None:
    for board in boards():
        names = tuple(mode.name for mode in board.modes)
        for number, mode in enumerate(board.modes):
            nvpmodel(tmp_path, names, current=number)
            assert board.mode(current_mode(tmp_path)) is mode
