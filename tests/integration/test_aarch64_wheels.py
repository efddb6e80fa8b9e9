"""Everything that edgert needs on a board is there as a wheel: on a board, nothing is compiled but PyCUDA.

pip resolves for the board's Python and C library, and downloads metadata only. It reads conditions like
``python_version < '3.11'`` for the Python that runs it.
"""

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.command import ROOT

pytestmark = pytest.mark.slow
tomllib = pytest.importorskip("tomllib", reason="reading pyproject.toml needs Python 3.11 or newer")
EXTRAS = ("plan", "nvml", "dask", "openvino")
TAG = re.compile(r"-(?P<python>[^-]+)-(?P<abi>[^-]+)-(?P<platforms>[^-]+)\.whl$")


def same(name: str) -> str:
    """Return a package's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


@dataclass(frozen=True)
class System:
    """What a system has: its Python, and the minor version of its C library, 2.35 for Ubuntu 22.04."""

    name: str
    python: str
    glibc: int

    @property
    def platforms(self) -> list[str]:
        """The newest first, as pip prefers them; a wheel for an older C library runs on a newer one (PEP 600)."""
        return [*(f"manylinux_2_{minor}_aarch64" for minor in range(self.glibc, 16, -1)), "manylinux2014_aarch64"]

    def resolved(self, requirements: Sequence[str], folder: Path) -> dict[str, str]:
        """Package → the wheel that a board would get. Raises CalledProcessError where there is none."""
        report = folder / "report.json"
        options = ["--dry-run", "--quiet", "--ignore-installed", "--only-binary=:all:", "--report", str(report)]
        options += ["--target", str(folder / "never"), "--python-version", self.python, "--implementation", "cp"]
        for abi in (f"cp{self.python.replace('.', '')}", "abi3", "none"):
            options += ["--abi", abi]
        for platform in self.platforms:
            options += ["--platform", platform]
        command = [sys.executable, "-m", "pip", "install", *options, *requirements]
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=280)
        found: list[dict[str, Any]] = json.loads(report.read_text())["install"]
        return {item["metadata"]["name"]: item["download_info"]["url"] for item in found}


SYSTEMS = (System("JetPack 6", "3.10", 35), System("JetPack 7", "3.12", 39), System("Debian 13", "3.13", 41))


@pytest.fixture(scope="module", autouse=True)
def index(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Skips where no package index answers: a package of plain Python is always there."""
    try:
        SYSTEMS[0].resolved(["packaging"], tmp_path_factory.mktemp("probe"))
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        pytest.skip(f"no package index can be reached: {error}")


@pytest.mark.parametrize("system", SYSTEMS, ids=lambda system: system.name)
def test_every_dependency_is_a_wheel_that_runs_there(system: System, tmp_path: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"]]
    for extra in EXTRAS:
        wanted += project["optional-dependencies"][extra]
    try:
        wheels = system.resolved(wanted, tmp_path)
    except subprocess.CalledProcessError as error:
        pytest.fail(f"{system.name}, Python {system.python}: {error.stderr.strip()}")
    names = {re.split(r"[<>=;\[ ]", one, maxsplit=1)[0] for one in wanted}
    assert {same(name) for name in names} <= {same(name) for name in wheels}
    for name, wheel in wheels.items():
        match = TAG.search(wheel)
        assert match is not None, f"{name} would be compiled: {wheel}"
        platforms = set(match["platforms"].split("."))
        assert platforms & {"any", *system.platforms}, f"{name} does not run on {system.name}: {wheel}"
