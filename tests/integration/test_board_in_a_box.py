"""``tools/board-in-a-box``: edgert's way from clone to results on emulated boards, and what ends it early."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from edgert.board.detect import detect
from edgert.errors import DeviceError
from tests.helpers.command import ROOT
from tests.helpers.waiting import wait_until
from tools.box import identity, main, system, ubuntu
from tools.box.box import INSIDE, TIMED_OUT, Box, Step, judge, outcome
from tools.box.walk import log, steps

pytestmark = pytest.mark.box
ORIN = identity.IDENTITIES["orin-nx-16gb"]


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", main.NAMES)
def test_from_clone_to_results(name: str, tmp_path: Path) -> None:
    native = ubuntu.UBUNTUS.get(name)
    try:
        system.check(Path(os.environ.get("EDGERT_BOX") or tmp_path), emulated=native is None)
        if native is None:
            system.emulator()
        else:
            ubuntu.control_groups()
    except DeviceError as error:
        pytest.skip(str(error))
    command = [str(ROOT / "tools/board-in-a-box"), name, "--log", str(tmp_path / "log.md")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=7000)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    text = (tmp_path / "log.md").read_text()
    way = ubuntu.steps(native) if native else steps(identity.IDENTITIES[name])
    assert all(f". {step.title}\n" in text for step in way)


@pytest.mark.parametrize("name", identity.IDENTITIES)
def test_an_identity_is_recognized_bare_and_with_its_device_tree_hidden(name: str, tmp_path: Path) -> None:
    one = identity.IDENTITIES[name]
    identity.write(one, tmp_path)
    for folder, known_by in ((identity.BARE, "its device tree"), (identity.HIDDEN, "its chip, cores and memory")):
        shutil.rmtree(tmp_path / "proc")
        shutil.copytree(tmp_path / folder.strip("/") / "proc", tmp_path / "proc")
        machine = detect(tmp_path)
        assert (machine.name, machine.jetpack, machine.mode) == (one.board, one.jetpack, one.mode)
        assert machine.known_by == known_by


def test_another_package_of_keys_than_the_known_one_is_refused(tmp_path: Path) -> None:
    package = tmp_path / system._UBUNTU_KEYS[0]
    package.parent.mkdir(parents=True)
    package.write_bytes(b"other keys")
    here = Path("/") / system._KEYRING
    if here.exists():
        pytest.skip("this machine has the keys of Ubuntu's archive")
    with pytest.raises(DeviceError, match="is another package"):
        system._ubuntu_keyring(tmp_path, tmp_path.as_uri())
    package.unlink()
    with pytest.raises(DeviceError, match="cannot be had"):
        system._ubuntu_keyring(tmp_path, tmp_path.as_uri())


@pytest.mark.parametrize("one", ubuntu.UBUNTUS.values(), ids=ubuntu.UBUNTUS)
def test_an_ubuntu_goes_the_way_of_the_readme_and_of_the_page_on_services(one: ubuntu.Ubuntu) -> None:
    way = ubuntu.steps(one)
    typed = [step.command for step in way]
    assert typed[1:3] == ["make demo", "scripts/setup-jetson --no-pycuda"]
    last = -1
    for line in (
        "scripts/setup-jetson --system",
        "useradd",
        "edgert@.service /etc/systemd/system/",
        "/etc/edgert/dock.yaml",
    ):
        assert typed[3].index(line) > last
        last = typed[3].index(line)
    assert "systemctl daemon-reload && systemctl enable --now edgert@dock" in typed[4]
    denied = any("Operation not permitted" in pattern for pattern in way[-1].expects)
    assert denied == (one.systemd < 253)


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="namespaces need root")
def test_what_runs_in_a_box_ends_with_the_script_however_that_ends(tmp_path: Path) -> None:
    words = Box(tmp_path, tmp_path, tmp_path).command(["true"])
    beat, space = tmp_path / "beat", words[: words.index(str(INSIDE))]
    inside = [*space, "sh", "-c", f"while :; do date +%N >{beat}; sleep 0.05; done"]
    script = subprocess.Popen([sys.executable, "-c", f"import subprocess; subprocess.run({inside})"])
    wait_until(beat.exists)
    script.kill()
    script.wait()
    time.sleep(0.5)
    last = beat.read_text()
    time.sleep(0.5)
    assert beat.read_text() == last


def test_a_board_that_there_is_no_box_for(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main.options(["nano"])
    assert "no box for 'nano': there are orin-nx-16gb" in capsys.readouterr().err


def test_a_step_is_judged_by_its_exit_code_and_what_it_printed() -> None:
    step = Step("a title", "echo 6 frames; exit 3", ("6 frames",), code=3)
    done = outcome(step, ["sh", "-c", step.command])
    assert (done.code, done.wrong) == (3, "")
    assert judge(step, 0, "6 frames") == "exit code 0 instead of 3"
    assert judge(step, 3, "5 frames") == "nothing printed matches '6 frames'"
    assert judge(step, TIMED_OUT, "") == "not done after 1800 s"
    assert "[orin] 1. a title\n$ echo 6 frames; exit 3\n6 frames\n(exit code 3, " in log({"orin": [done]})


def test_steps_name_the_board_that_they_are_for() -> None:
    assert any("Jetson Orin NX 16GB" in pattern.replace("\\", "") for step in steps(ORIN) for pattern in step.expects)
