"""L4T and JetPack."""

from pathlib import Path

import pytest

from edgert.board.detect import jetpack_of, l4t_version
from tests.unit.board.tree import write

STATUS = """Package: nvidia-l4t-configs
Version: 1.0.0-1

Package: nvidia-l4t-core
Status: install ok installed
Version: 36.4.7-20250918154033
Description: NVIDIA Core Package

Package: zlib1g
Version: 1:1.2.11
"""


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("# R32 (release), REVISION: 7.1, GCID: 29818004, BOARD: t210ref, EABI: aarch64", "32.7.1"),
        ("# R35 (release), REVISION: 4.1, GCID: 33958178, BOARD: t186ref, EABI: aarch64", "35.4.1"),
        ("# R36 (release), REVISION: 5.2, GCID: 123", "36.5.2"),
        ("# R38 (release), REVISION: 4.0, GCID: 43443517, BOARD: generic, EABI: aarch64", "38.4.0"),
        ("# R39 (release), REVISION: 2.1", "39.2.1"),
        ("something else", ""),
    ],
)
def test_release_file(tmp_path: Path, text: str, version: str) -> None:
    write(tmp_path, "etc/nv_tegra_release", text)
    assert l4t_version(tmp_path) == version


def test_package_where_the_file_is_missing(tmp_path: Path) -> None:
    write(tmp_path, "var/lib/dpkg/status", STATUS)
    assert l4t_version(tmp_path) == "36.4.7"


def test_neither(tmp_path: Path) -> None:
    write(tmp_path, "var/lib/dpkg/status", "Package: zlib1g\nVersion: 1:1.2.11\n")
    assert l4t_version(tmp_path) == ""
    assert l4t_version(tmp_path / "none") == ""


@pytest.mark.parametrize(
    ("l4t", "jetpack"),
    [
        ("36.4.3", "6.2"),
        ("36.4.7", "6.2.1"),
        ("36.4.9", "6.2.1 or later"),
        ("36.5.0", "6.2.2"),
        ("36.5.2", "6.2.2 or later"),
        ("36.10.1", "6.2.2 or later"),
        ("36.2.0", "6.x"),
        ("38.3.0", "7.0 or later"),
        ("39.0.0", "7.1 or later"),
        ("39.2.1", "7.2 or later"),
        ("38.2.1", "7.0"),
        ("39.2.0", "7.2"),
        ("35.4.1", "5.1.2"),
        ("99.0.0", ""),
        ("", ""),
    ],
)
def test_jetpack(l4t: str, jetpack: str) -> None:
    assert jetpack_of(l4t) == jetpack
