"""What boards' own files say, as it was published: power modes beside edgert's board files, and lines of releases."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from edgert.board.detect import detect, jetpack_of, l4t_version
from edgert.board.record import board
from edgert.board.sections import Mode
from tests.unit.board.tree import nvpmodel, write

ROOT = Path(__file__).parents[3]
DATA = ROOT / "tests/data/boards"
FILES: dict[str, Any] = json.loads((DATA / "power_modes.json").read_text(encoding="utf-8"))["files"]
LINES: dict[str, list[str]] = json.loads((DATA / "releases.json").read_text(encoding="utf-8"))["lines"]
MODES = [(name, mode) for name, one in FILES.items() for mode in one["modes"]]


def agrees(mode: Mode, key: str, published: float, scale: float, uncapped: int = -1) -> bool:
    """Whether a clock is the published one, or is left at the board's maximum in both."""
    if published == uncapped:
        return key in mode.uncapped
    return getattr(mode, key) == pytest.approx(published * scale)


@pytest.mark.parametrize(("file", "name"), MODES)
def test_a_power_mode_is_as_its_maker_wrote_it(file: str, name: str) -> None:
    published, record = FILES[file]["modes"][name], board(FILES[file]["board"])
    mode = record.mode(name)
    assert mode.cpu_cores == published["cores"]
    assert mode.sms == 2 * (8 - bin(published["tpc_mask"]).count("1"))
    assert agrees(mode, "cpu_mhz", published["cpu_khz"], 1e-3)
    assert agrees(mode, "gpu_mhz", published["gpu_hz"], 1e-6)
    assert agrees(mode, "emc_mhz", published["emc_hz"], 1e-6, uncapped=0)
    if record.dla.cores:
        assert agrees(mode, "dla_mhz", published["dla0_hz"], 1e-6)
    if record.dla.cores > 1 and published["dla1_hz"] != published["dla0_hz"]:
        assert mode.dla_clock_mhz(1) == pytest.approx(published["dla1_hz"] * 1e-6)


@pytest.mark.parametrize("file", FILES)
def test_names_numbers_and_the_default_are_read_as_written(file: str, tmp_path: Path) -> None:
    modes = FILES[file]["modes"]
    for number, name in enumerate(modes):
        assert modes[name]["number"] == number
        nvpmodel(tmp_path, tuple(modes), current=number, default=FILES[file]["default"])
        write(tmp_path, "etc/nv_tegra_release", next(iter(LINES)))
        assert detect(tmp_path).mode == name
    record = board(FILES[file]["board"])
    assert record.default_mode is not None and record.default_mode.name == list(modes)[FILES[file]["default"]]


@pytest.mark.parametrize("line", LINES)
def test_a_published_release_line_is_read_alike_by_edgert_and_by_setup_jetson(line: str, tmp_path: Path) -> None:
    version, jetpack = LINES[line]
    write(tmp_path, "etc/nv_tegra_release", f"{line}\n# KERNEL_VARIANT: oot\n")
    assert l4t_version(tmp_path) == version and jetpack_of(version) == jetpack
    expression = next(
        word.partition("'")[2].partition("'")[0]
        for word in (ROOT / "scripts/setup-jetson").read_text(encoding="utf-8").splitlines()
        if word.startswith("release=$(sed -nE '")
    )
    done = subprocess.run(
        ["sed", "-nE", expression, tmp_path / "etc/nv_tegra_release"], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == version
