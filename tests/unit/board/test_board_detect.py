"""Which board a device tree is."""

import shutil
from pathlib import Path

import pytest

from edgert.board import HOST, detect
from edgert.board.detect import is_jetson
from edgert.board.record import board_names
from edgert.errors import ConfigError
from tests.unit.board.tree import RELEASE, jetson, nvpmodel, write

AGX_XAVIER = ("nvidia,p2972-0000", "nvidia,jetson-xavier", "nvidia,tegra194")
XAVIER_NX = ("nvidia,p3509-0000+p3668-0001", "nvidia,tegra194")
THOR = ("nvidia,p3971-0089+p3834-0008", "nvidia,p3971-0089", "nvidia,tegra264")


@pytest.mark.parametrize(
    ("compatible", "memory_mib", "name"),
    [
        (("nvidia,p3768-0000+p3767-0000-super", "nvidia,tegra234"), 15388, "orin-nx-16gb-super"),
        (("nvidia,p3768-0000+p3767-0000", "nvidia,tegra234"), 15388, "orin-nx-16gb"),
        (("nvidia,p3509-0000+p3767-0001", "nvidia,tegra234"), 7607, "orin-nx-8gb"),
        (("nvidia,p3768-0000+p3767-0005-super", "nvidia,tegra234"), 7607, "orin-nano-8gb-super"),
        (("nvidia,p3768-0000+p3767-0005", "nvidia,tegra234"), 7607, "orin-nano-8gb"),
        (("nvidia,p3768-0000+p3767-0003", "nvidia,tegra234"), 7607, "orin-nano-8gb"),
        (("nvidia,p3768-0000+p3767-0003-super", "nvidia,tegra234"), 7607, "orin-nano-8gb-super"),
        (("nvidia,p3768-0000+p3767-0004", "nvidia,tegra234"), 3900, "orin-nano-4gb"),
        (("nvidia,p3768-0000+p3767-0004-super", "nvidia,tegra234"), 3900, "orin-nano-4gb-super"),
        (("nvidia,p3768-0000+p3767-0001", "nvidia,tegra234"), 7607, "orin-nx-8gb"),
        (("nvidia,p3768-0000+p3767-0001-super", "nvidia,tegra234"), 7607, "orin-nx-8gb-super"),
        (("nvidia,p3509-0000+p3767-0000", "nvidia,tegra234"), 15388, "orin-nx-16gb"),  # on a carrier of Xavier NX
        (("nvidia,p3768-0000+p3767-0002", "nvidia,tegra234"), 15388, "orin-nx-16gb"),  # another Orin NX
        (("nvidia,p3768-0000+p3767-0002-super", "nvidia,tegra234"), 15388, "orin-nx-16gb-super"),
        (("nvidia,p3737-0000+p3701-0005", "nvidia,tegra234"), 62817, "agx-orin-64gb"),
        (("nvidia,p3737-0000+p3701-0000", "nvidia,tegra234"), 30697, "agx-orin-64gb"),  # the 32 GB kit has its chip
        (("nvidia,p3737-0000+p3701-0004", "nvidia,tegra234"), 30697, "agx-orin-32gb"),
        (("acme,carrier", "nvidia,p3701-0004", "nvidia,tegra234"), 30697, "agx-orin-32gb"),
        (AGX_XAVIER, 31927, "agx-xavier-32gb"),
        (AGX_XAVIER, 63500, "agx-xavier-64gb"),
        (AGX_XAVIER, 15700, "agx-xavier-32gb"),  # the early 16 GB module
        (("nvidia,p3737-0000+p3701-0008", "nvidia,tegra234"), 62817, "agx-orin-64gb"),  # industrial
        (("nvidia,p3740-0002+p3701-0002", "nvidia,tegra234"), 62817, "agx-orin-64gb"),  # IGX
        (("nvidia,p3449-0000+p3668-0000", "nvidia,tegra194"), 7765, "xavier-nx-8gb"),
        (XAVIER_NX, 7765, "xavier-nx-8gb"),
        (XAVIER_NX, 15820, "xavier-nx-16gb"),
        (("nvidia,p2771-0000", "nvidia,jetson-tx2", "nvidia,tegra186"), 7852, "jetson-tx2-8gb"),
        (("nvidia,p3450-0000", "nvidia,jetson-nano", "nvidia,tegra210"), 3964, "jetson-nano-4gb"),
        (THOR, 125772, "thor-t5000"),
        (("nvidia,p4071-0000+p3834-0008", "nvidia,tegra264"), 125772, "thor-t5000"),
        (("nvidia,p4071-0000+p3834-0000", "nvidia,tegra264"), 62000, "thor-t4000"),
        (("acme,carrier", "nvidia,tegra264"), 62000, "thor-t4000"),
    ],
)
def test_board(tmp_path: Path, compatible: tuple[str, ...], memory_mib: int, name: str) -> None:
    machine = detect(jetson(tmp_path, compatible, memory_mib))
    assert machine.name == name
    assert machine.board is not None and machine.board.name == name


def test_no_board_is_left_out() -> None:
    cases = next(mark for mark in test_board.pytestmark if mark.name == "parametrize").args[1]  # type: ignore[attr-defined]
    assert {name for _, _, name in cases} == set(board_names())


@pytest.mark.parametrize(
    ("word", "name"), [("p3701-0008", "Jetson AGX Orin Industrial"), ("p3701-0002", "IGX Orin"), ("p3701-0005", "")]
)
def test_a_module_that_is_taken_for_another_is_known_by_its_name(tmp_path: Path, word: str, name: str) -> None:
    found = detect(jetson(tmp_path, (f"nvidia,p3737-0000+{word}", "nvidia,tegra234"), 62817))
    assert (found.variant.name if found.variant else "") == name
    assert found.board is not None and found.board.dla.cores == 2 and not found.why_no_dla


NANO, NX = "nvidia,p3768-0000+p3767-0005", "nvidia,p3768-0000+p3767-0000"


@pytest.mark.parametrize(
    ("compatible", "memory_mib", "modes", "name", "chosen"),
    [
        (NX, 15388, ("10W", "15W", "25W", "40W"), "orin-nx-16gb-super", True),
        (NX, 15388, ("MAXN_SUPER", "10W", "15W", "25W", "40W"), "orin-nx-16gb-super", True),
        (NX, 15388, ("MAXN", "10W", "15W", "25W"), "orin-nx-16gb", False),
        (f"{NX}-super", 15388, ("MAXN", "10W", "15W", "25W"), "orin-nx-16gb", True),
        (NX, 15388, ("MY_OWN",), "orin-nx-16gb", False),
        (f"{NX}-super", 15388, ("15W",), "orin-nx-16gb-super", False),
        (NANO, 7607, ("15W", "25W", "MAXN_SUPER"), "orin-nano-8gb-super", True),
        (NANO, 7607, ("15W", "7W"), "orin-nano-8gb", False),
        (f"{NANO}-super", 7607, ("15W", "7W"), "orin-nano-8gb-super", False),
    ],
)
def test_power_modes_choose_between_plain_and_super(
    tmp_path: Path, compatible: str, memory_mib: int, modes: tuple[str, ...], name: str, chosen: bool
) -> None:
    found = detect(nvpmodel(jetson(tmp_path, (compatible, "nvidia,tegra234"), memory_mib), modes))
    assert (found.name, found.known_by) == (name, f"its device tree{' and power modes' if chosen else ''}")


def test_a_damaged_file_of_power_modes_chooses_nothing(tmp_path: Path) -> None:
    nvpmodel(jetson(tmp_path, (NX, "nvidia,tegra234")), ("40W",), default=7)
    assert detect(tmp_path).name == "orin-nx-16gb"


def test_the_power_mode_is_known_by_its_name(tmp_path: Path) -> None:
    nvpmodel(jetson(tmp_path), ("MAXN_SUPER", "10W", "15W", "25W", "40W"), current=2)
    machine = detect(tmp_path)
    assert machine.mode == "15W" and not machine.mode_trouble
    assert machine.board is not None and machine.board.mode(machine.mode).sms == 4


def test_a_damaged_power_mode_does_not_hide_the_board(tmp_path: Path) -> None:
    nvpmodel(jetson(tmp_path), ("MAXN",), current=3)
    machine = detect(tmp_path)
    assert machine.name == "orin-nx-16gb-super" and machine.mode == ""
    assert machine.mode_trouble == "no power mode 3 in /etc/nvpmodel.conf: it has 0: MAXN"


def test_a_host_has_no_power_mode(tmp_path: Path) -> None:
    machine = detect(nvpmodel(tmp_path, ("MAXN",)))
    assert (machine.name, machine.mode, machine.mode_trouble) == (HOST, "", "")


def test_everything_about_a_jetson(tmp_path: Path) -> None:
    machine = detect(jetson(tmp_path, cores="0-3", present="0-7"))
    assert machine.is_jetson
    assert machine.model == "NVIDIA Jetson Orin NX Engineering Reference Developer Kit"
    assert machine.compatible[0] == "nvidia,p3768-0000+p3767-0000-super"
    assert (machine.l4t, machine.jetpack) == ("36.4.3", "6.2")
    assert (machine.cpu, machine.cores, machine.cores_present) == ("Cortex-A78AE", 4, 8)
    assert machine.memory_bytes == 15388 * 2**20


def test_super_firmware_without_a_file_of_its_own_is_still_the_module(tmp_path: Path) -> None:
    machine = detect(jetson(tmp_path, ("nvidia,p3737-0000+p3701-0005-super", "nvidia,tegra234"), 62817))
    assert machine.name == "agx-orin-64gb"


def test_a_jetson_without_a_board_file(tmp_path: Path) -> None:
    machine = detect(jetson(tmp_path, ("nvidia,p9999-0000", "nvidia,tegra999")))
    assert (machine.name, machine.board, machine.is_jetson) == ("jetson", None, True)


def container(root: Path, soc_id: str, present: str, memory_mib: int, machine: str = "", release: str = "") -> Path:
    """What Docker leaves of a Jetson: no device tree, and the release file only where somebody mounts it."""
    jetson(root, memory_mib=memory_mib, present=present, release=release)
    shutil.rmtree(root / "proc/device-tree")
    write(root, "sys/devices/soc0/family", "Tegra\n")
    write(root, "sys/devices/soc0/soc_id", f"{soc_id}\n")
    write(root, "sys/devices/soc0/machine", f"{machine}\n")
    return root


CONTAINERS = {  # number of the chip, cores, memory, what soc0 calls the machine → board
    "orin-nx-16gb": ("35", "0-7", 15388, "NVIDIA Jetson Orin NX Engineering Reference Developer Kit"),
    "orin-nx-16gb-super": ("35", "0-7", 15388, "NVIDIA Jetson Orin NX Engineering Reference Developer Kit Super"),
    "orin-nx-8gb": ("35", "0-5", 7337, "NVIDIA Orin NX Developer Kit"),
    "agx-orin-64gb": ("35", "0-11", 62817, ""),
    "agx-orin-32gb": ("35", "0-7", 30697, ""),
    "thor-t5000": ("38", "0-13", 125000, "a maker's own carrier"),
    "xavier-nx-8gb": ("25", "0-5", 6860, ""),
    "jetson-nano-4gb": ("33", "0-3", 3956, ""),
    "orin-nano-8gb-super": ("35", "0-5", 7607, "NVIDIA Jetson Orin Nano Engineering Reference Developer Kit Super"),
}


@pytest.mark.parametrize("name", CONTAINERS)
@pytest.mark.parametrize("release", ["", RELEASE])
def test_a_container_that_hides_the_device_tree_still_shows_the_board(tmp_path: Path, name: str, release: str) -> None:
    soc_id, present, memory_mib, machine = CONTAINERS[name]
    found = detect(container(tmp_path, soc_id, present, memory_mib, machine, release))
    assert (found.name, found.known_by, found.model) == (name, "its chip, cores and memory", machine)
    assert found.jetpack == ("6.2" if release else "") and is_jetson(tmp_path)


def test_a_container_that_hides_that_too_is_an_unknown_jetson_by_its_release_file(tmp_path: Path) -> None:
    write(tmp_path, "etc/nv_tegra_release", "# R36 (release), REVISION: 4.7, GCID: 1, BOARD: generic")
    machine = detect(tmp_path)
    assert (machine.name, machine.board, machine.jetpack, machine.known_by) == ("jetson", None, "6.2.1", "")


def test_two_modules_with_the_same_chip_cores_and_memory_are_not_guessed_at(tmp_path: Path) -> None:
    """Orin NX 8GB has a DLA, Orin Nano 8GB has none; a maker's carrier does not say which it carries."""
    assert detect(container(tmp_path, "35", "0-5", 7607, "Dock controller 3")).name == "jetson"


def test_the_environment_names_the_board_of_any_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGERT_BOARD", "orin-nx-16gb")
    machine = detect(tmp_path)
    assert machine.is_jetson and (machine.name, machine.known_by) == ("orin-nx-16gb", "EDGERT_BOARD")
    monkeypatch.setenv("EDGERT_BOARD", "orin-nx-15gb")
    with pytest.raises(ConfigError, match="no board 'orin-nx-15gb'") as caught:
        detect(tmp_path)
    assert caught.value.where == "EDGERT_BOARD" and "edgert boards" in caught.value.fix
    monkeypatch.setenv("EDGERT_BOARD", "")
    assert detect(tmp_path).name == HOST


def test_a_chip_of_another_maker_with_such_a_number_is_no_jetson(tmp_path: Path) -> None:
    write(tmp_path, "sys/devices/soc0/family", "Snapdragon\n")
    write(tmp_path, "sys/devices/soc0/soc_id", "35\n")
    assert detect(tmp_path).name == HOST and not is_jetson(tmp_path)


def test_another_arm_board_is_a_host(tmp_path: Path) -> None:
    write(tmp_path, "proc/device-tree/compatible", "raspberrypi,5-model-b\0brcm,bcm2712\0")
    write(tmp_path, "proc/device-tree/model", "Raspberry Pi 5 Model B Rev 1.0\0")
    machine = detect(tmp_path)
    assert (machine.name, machine.is_jetson, machine.model) == (HOST, False, "Raspberry Pi 5 Model B Rev 1.0")


def test_an_empty_tree_is_a_host_of_which_nothing_is_known(tmp_path: Path) -> None:
    machine = detect(tmp_path)
    assert (machine.name, machine.l4t, machine.jetpack, machine.memory_bytes) == (HOST, "", "", 0)
    assert machine.cores >= 1 and machine.cpu
