"""A release rolled out by Ansible to boards behind SSH servers on loopback; a board that cannot run it keeps its own.

``ansible-playbook`` is a program that the tests start. The boards run the real ``edgert``; systemd is a script.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from edgert.bundle.bundle import save_bundle, sign_bundle
from edgert.exporter.fleet import export_fleet, read_releases
from tests.helpers.bundles import MEMBERS, manifest_of
from tests.helpers.signing import key, signers
from tests.helpers.ssh_fleet import FleetBoard, SshServers, wait_until_ready

pytest.importorskip("asyncssh", reason="pip install -e '.[fleet-test]'")
PLAYBOOK = shutil.which("ansible-playbook") or shutil.which("ansible-playbook", path=str(Path(sys.executable).parent))
"""Another one on the path, such as an older version, goes first."""
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(PLAYBOOK is None, reason="there is no ansible-playbook: pip install -e '.[fleet-test]'"),
]
PIPELINE = """\
name: dock
stages:
  cam: {{source: "{source}", fps: 5, realtime: true}}
  page: {{sink: http, from: cam, port: "${{EDGERT_PORT:-8080}}"}}
"""
BEFORE, AFTER = PIPELINE.format(source="synthetic:noise"), PIPELINE.format(source="${CAM:-synthetic:noise}")
NAMES = ("canary", "second", "third", "fourth", "dead", "full", "other", "blind")
"""A board whose disk is full, one of another kind, and one whose camera of the new release is not there."""
FULL_BYTES = 64 << 10


def bundle(path: Path, text: str) -> Path:
    members = {**MEMBERS, "pipeline.yaml": text.encode()}
    save_bundle(path, manifest_of(members, board="host", mode="", tensorrt="", engines=["onnxruntime"]), members)
    return path


class Fleet:
    def __init__(self, folder: Path, names: tuple[str, ...]) -> None:
        self.folder = folder
        self.key = key(folder)
        kinds = {"other": "thor-t5000", "third": "thor-t5000"}
        self.boards = {name: FleetBoard(name, folder / name, kinds.get(name, "")) for name in names}
        self.before = bundle(folder / "before.edgert", BEFORE)
        self.after = bundle(folder / "dock.edgert", AFTER)
        for one in (self.before, self.after):
            sign_bundle(one, self.key)
        self.old, self.new = (read_releases([one])[0].digest for one in (self.before, self.after))
        self.ssh = Path(tempfile.mkdtemp(prefix="ssh"))  # a path of a socket is short

    def set_up(self) -> None:
        for board in self.boards.values():
            board.set_up()
        if "full" in self.boards:
            disk = self.boards["full"].folder / "srv"
            mount = ["mount", "-t", "tmpfs", "-o", f"size={FULL_BYTES}", "tmpfs", str(disk)]
            if subprocess.run(mount, capture_output=True, check=False).returncode:
                pytest.skip("a small disk is a tmpfs, which only root may mount")
        if "blind" in self.boards:
            (self.boards["blind"].folder / "etc" / "dock.env").write_text("CAM=rtsp://127.0.0.1:1/none\n")
        for board in self.boards.values():
            board.begin_with(self.before, self.old)
        if "full" in self.boards:
            disk = self.boards["full"].folder / "srv"
            (disk / "recordings").write_bytes(bytes(shutil.disk_usage(disk).free))
        wait_until_ready(list(self.boards.values()))

    def close(self) -> None:
        for board in self.boards.values():
            board.end()
        if "full" in self.boards:
            subprocess.run(["umount", str(self.boards["full"].folder / "srv")], check=False)
        shutil.rmtree(self.ssh, ignore_errors=True)

    def roll_out(
        self, release: Path, serial: list[int | str], limit: str = "all", damaged_at: int = -1, **variables: object
    ) -> tuple[int, str]:
        """Export a release, and roll it out; return Ansible's exit code and what it printed."""
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        export_fleet([release], "ansible", folder)
        shutil.copy(signers(self.folder, self.key), folder / "allowed_signers")
        (made,) = yaml.safe_load((folder / "roles/edgert/defaults/main.yaml").read_text())["edgert_releases"].values()
        if damaged_at >= 0:
            (exported,) = (folder / "roles/edgert/files").glob("*.edgert")
            content = bytearray(exported.read_bytes())
            content[damaged_at] ^= 1
            exported.write_bytes(content)
        hosts = {
            name: {
                **board.variables,
                "edgert_releases": {"host": {**made, "ready": f"http://127.0.0.1:{board.page_port}/readyz"}},
            }
            for name, board in self.boards.items()
        }
        if "third" in hosts:
            hosts["third"]["edgert_board"] = "host"  # it is another kind, and takes this bundle all the same
        common = {
            "ansible_ssh_private_key_file": str(self.key),
            "ansible_python_interpreter": sys.executable,
            "ansible_user": "tester",
            "ansible_ssh_common_args": "-F none -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null",
            "edgert_become": False,
            "edgert_signers": str(folder / "allowed_signers"),
            "edgert_serial": serial,
            "edgert_ready_s": 8,
            "edgert_watch_s": 1,
            **variables,
        }
        (folder / "inventory.yaml").write_text(
            yaml.safe_dump({"all": {"hosts": hosts, "vars": common}}, sort_keys=False)
        )
        environment = {
            **os.environ,
            "ANSIBLE_HOME": str(self.ssh),
            "ANSIBLE_LOCAL_TEMP": str(self.ssh / "tmp"),
            "ANSIBLE_SSH_CONTROL_PATH_DIR": str(self.ssh / "cp"),
            "ANSIBLE_SSH_ARGS": "-o ControlMaster=auto -o ControlPersist=30s",
            "ANSIBLE_PIPELINING": "1",
            "ANSIBLE_SSH_TRANSFER_METHOD": "piped",
            "ANSIBLE_FORKS": "8",
            "ANSIBLE_TIMEOUT": "60",
            "ANSIBLE_NOCOLOR": "1",
            "LC_ALL": "C.UTF-8",
        }
        assert PLAYBOOK is not None
        done = subprocess.run(
            [PLAYBOOK, "-i", "inventory.yaml", "--limit", limit, "rollout.yaml"],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr


@pytest.fixture
def fleet(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Fleet]:
    made = Fleet(tmp_path, request.param)
    try:
        made.set_up()
        alive = [board for name, board in made.boards.items() if name != "dead"]
        with SshServers(alive, tmp_path / "key.pub"):
            yield made
    finally:
        made.close()


def recap(text: str) -> dict[str, dict[str, int]]:
    lines = re.findall(r"^(\w+) +: (ok=.*)$", text, re.MULTILINE)
    return {host: {name: int(count) for name, count in re.findall(r"(\w+)=(\d+)", line)} for host, line in lines}


def reasons(text: str) -> dict[str, str]:
    task = text.rpartition("Count the board as failed]")[2]
    return {host: json.loads(said)["msg"] for host, said in re.findall(r"fatal: \[(\w+)\]: FAILED! => (\{.*\})", task)}


@pytest.mark.parametrize("fleet", [NAMES], indirect=True, ids=["eight"])
def test_eight_boards_of_which_four_can_be_updated(fleet: Fleet) -> None:
    boards = fleet.boards
    code, text = fleet.roll_out(fleet.after, [1, "100%"], edgert_max_fail=99)
    assert code != 0, text
    updated = ["canary", "second", "third", "fourth"]
    assert {name: board.release for name, board in boards.items()} == {
        name: fleet.new if name in updated else fleet.old for name in NAMES
    }, text
    assert {name: board.readiness()[0] for name, board in boards.items()} == dict.fromkeys(NAMES, 200), text
    counts = recap(text)
    assert {name for name in NAMES if counts[name]["failed"] or counts[name]["unreachable"]} == {*NAMES} - {*updated}
    assert counts["dead"]["unreachable"] == 1
    why = reasons(text)
    assert "No space left on device" in why["full"]
    assert "there is no bundle for thor-t5000" in why["other"]
    assert why["blind"].startswith("Wait until it is ready")
    for name in ("full", "other", "dead"):  # as they were: not so much as restarted
        assert [call.split()[0] for call in boards[name].calls] == ["start"], boards[name].calls
    assert why["blind"].endswith("the release before is ready again")
    restarts = [call for call in boards["blind"].calls if "restart" in call]
    assert restarts == ["--no-block restart edgert@dock.service"] * 2

    # back, by the folder of the release before
    code, text = fleet.roll_out(fleet.before, [1, "100%"], "canary,second")
    assert code == 0, text
    assert [boards[name].release for name in updated] == [fleet.old, fleet.old, fleet.new, fleet.new]
    assert [boards[name].readiness()[0] for name in updated] == [200] * 4
    left = [one.name for one in (boards["canary"].link.parent / "releases").iterdir()]
    assert sorted(left) == sorted([fleet.old, fleet.new])


@pytest.mark.parametrize("fleet", [("blind", "second", "third")], indirect=True, ids=["three"])
def test_where_the_first_board_goes_back_the_others_are_not_touched(fleet: Fleet) -> None:
    code, text = fleet.roll_out(fleet.after, [1, "100%"])
    assert code != 0 and "NO MORE HOSTS LEFT" in text, text
    assert {board.release for board in fleet.boards.values()} == {fleet.old}
    assert {board.readiness()[0] for board in fleet.boards.values()} == {200}
    assert {len(fleet.boards[name].calls) for name in ("second", "third")} == {1}, "what set them up"


@pytest.mark.parametrize("fleet", [("canary", "second")], indirect=True, ids=["two"])
def test_a_changed_byte_and_a_wrong_key_start_nowhere(fleet: Fleet) -> None:
    resigned = bundle(fleet.folder / "resigned.edgert", AFTER)
    sign_bundle(resigned, key(fleet.folder, "stranger"))
    unsigned = bundle(fleet.folder / "unsigned.edgert", AFTER)
    middle = fleet.after.stat().st_size // 2
    for release, damaged_at, why in (
        (fleet.after, middle, "is damaged"),
        (resigned, -1, "which is none of"),
        (unsigned, -1, "it is not signed"),
    ):
        code, text = fleet.roll_out(release, [1, "100%"], damaged_at=damaged_at)
        assert code != 0 and why in reasons(text)["canary"] and "NO MORE HOSTS LEFT" in text, text
        for board in fleet.boards.values():
            assert board.release == fleet.old and board.readiness()[0] == 200
            assert [call.split()[0] for call in board.calls] == ["start"], board.calls
    board = fleet.boards["canary"]  # which knows by now who may sign; not even what got there in another way starts
    damaged = board.folder / "damaged.edgert"
    content = bytearray(fleet.after.read_bytes())
    content[middle] ^= 1
    damaged.write_bytes(content)
    for path, why in ((damaged, "is damaged"), (resigned, "is refused"), (unsigned, "is refused")):
        done = subprocess.run(
            [board.folder / "bin" / "edgert", "run", str(path), "-q"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 1 and why in done.stderr


@pytest.mark.parametrize("fleet", [("canary",)], indirect=True, ids=["one"])
def test_a_board_that_once_restarted_does_not_hold_up_the_same_release(fleet: Fleet) -> None:
    """A release is rolled out again for the boards that were away, and months later to go back."""
    canary = fleet.boards["canary"]
    code, text = fleet.roll_out(fleet.after, ["100%"])
    assert code == 0 and canary.release == fleet.new, text
    (canary.folder / "restarts").write_text("2\n")
    code, text = fleet.roll_out(fleet.after, ["100%"])
    assert code == 0 and recap(text)["canary"]["changed"] == 0, text


@pytest.mark.parametrize("fleet", [("canary", "blind")], indirect=True, ids=["two"])
def test_a_rollout_that_was_interrupted_after_its_switch_is_done_again(fleet: Fleet) -> None:
    for board in fleet.boards.values():  # a link to the new release, and the old one runs
        (board.link.parent / "releases" / fleet.new).mkdir()
        board.link.unlink()
        board.link.symlink_to(f"releases/{fleet.new}")
    code, text = fleet.roll_out(fleet.after, [1, "100%"])
    assert code != 0 and set(reasons(text)) == {"blind"}, text
    assert (fleet.boards["blind"].release, fleet.boards["canary"].release) == (fleet.old, fleet.new), text
    assert all(board.readiness()[0] == 200 for board in fleet.boards.values()), text
    assert all("restart" in " ".join(board.calls) for board in fleet.boards.values()), text
