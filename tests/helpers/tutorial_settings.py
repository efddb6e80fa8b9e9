"""What each tutorial of docs/ supposes to be there."""

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import cv2
import numpy as np
import pytest
import yaml

from pipelines.conveyor import Conveyor
from tests.helpers.command import ROOT
from tests.helpers.ros_bags import write_depth_bag
from tests.helpers.signing import key
from tests.helpers.ssh_fleet import FleetBoard, SshServers
from tests.helpers.tutorial import BESIDE_PYTHON, Setting


@contextmanager
def clone(folder: Path) -> Iterator[dict[str, str]]:
    shutil.copytree(ROOT / "pipelines", folder / "pipelines", ignore=shutil.ignore_patterns("__pycache__"))
    yield {}


@contextmanager
def model_and_photos(folder: Path) -> Iterator[dict[str, str]]:
    shutil.copy(ROOT / "pipelines/assets/parts.onnx", folder / "model.onnx")
    (folder / "photos").mkdir()
    image = np.empty((480, 640, 3), np.uint8)
    for seed in range(500, 508):
        Conveyor(640, 480, 30.0, seed).render(60, image)
        cv2.imwrite(str(folder / "photos" / f"{seed}.jpg"), image)
    yield {}


@contextmanager
def bag_of_a_robot(folder: Path) -> Iterator[dict[str, str]]:
    belt = Conveyor(640, 480, 30.0, 7)
    images = [np.empty((480, 640, 3), np.uint8) for _ in range(101)]
    for number, image in enumerate(images):
        belt.render(number, image)
    (folder / "run1").mkdir()
    write_depth_bag(folder / "run1" / "run1_0.db3", images)
    with clone(folder) as variables:
        yield variables


READY = (
    "{{{{ (lookup('ansible.builtin.file', playbook_dir ~ '/roles/edgert/defaults/main.yaml') | from_yaml)"
    ".edgert_releases | combine({{'host': {{'ready': 'http://127.0.0.1:{port}/readyz'}}}}, recursive=True) }}}}"
)
"""The exported releases, with the port of one of several boards of this machine."""


@contextmanager
def three_boards(folder: Path) -> Iterator[dict[str, str]]:
    pytest.importorskip("asyncssh", reason="pip install -e '.[fleet-test]'")
    if shutil.which("ansible-playbook", path=os.pathsep.join((BESIDE_PYTHON, os.environ["PATH"]))) is None:
        pytest.skip("there is no ansible-playbook: pip install -e '.[fleet-test]'")
    (folder / ".ssh").mkdir()
    login = key(folder / ".ssh", "id_ed25519")
    boards = [FleetBoard(f"dock{number}", folder / f"board{number}") for number in (1, 2, 3)]
    ssh = Path(tempfile.mkdtemp(prefix="ssh"))  # a path of a socket is short
    common = {
        "ansible_user": "tester",
        "ansible_ssh_private_key_file": str(login),
        "ansible_python_interpreter": sys.executable,
        "ansible_ssh_common_args": "-F none -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null",
        "edgert_become": False,
        "edgert_signers": "allowed_signers",
        "edgert_ready_s": 10,
        "edgert_watch_s": 1,
    }
    hosts = {one.name: {**one.variables, "edgert_releases": READY.format(port=one.page_port)} for one in boards}
    (folder / "rollout").mkdir()
    inventory = yaml.safe_dump({"all": {"hosts": hosts, "vars": common}}, sort_keys=False)
    (folder / "rollout/inventory.yaml").write_text(inventory)
    for board in boards:
        board.set_up()
        program = board.folder / "bin" / "edgert"  # boards have addresses of their own, these have ports
        port = f"sys.argv += ['--set', 'stages.page.port={board.page_port}'] * (sys.argv[1] == 'run')"
        program.write_text(program.read_text().replace("\nmain()", f"\n{port}\nmain()"))
    try:
        with clone(folder), SshServers(boards, login.with_suffix(".pub")):
            yield {
                "ANSIBLE_HOME": str(ssh),
                "ANSIBLE_LOCAL_TEMP": str(ssh / "tmp"),
                "ANSIBLE_SSH_CONTROL_PATH_DIR": str(ssh / "cp"),
                "ANSIBLE_PIPELINING": "1",
                "ANSIBLE_SSH_TRANSFER_METHOD": "piped",
                "ANSIBLE_TIMEOUT": "60",
                "ANSIBLE_NOCOLOR": "1",
                "LC_ALL": "C.UTF-8",
            }
    finally:
        for board in boards:
            board.end()
        shutil.rmtree(ssh, ignore_errors=True)


SETTINGS: Mapping[str, Setting] = {
    "field-failure": clone,
    "fleet-rollback": three_boards,
    "own-model-to-board": model_and_photos,
    "ros2-robot": bag_of_a_robot,
}
