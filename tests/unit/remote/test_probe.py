"""The board at the other end: what its doctor says, and whether it fits."""

import json
from typing import Any

import pytest

from edgert._version import __version__
from edgert.config import load_pipeline
from edgert.errors import ArtifactError, ConfigError, DeviceError
from edgert.remote.link import Link
from edgert.remote.probe import RemoteBoard, check_space, check_target, pycuda_note, read_doctor, remote_target
from tests.helpers.command import ROOT
from tests.helpers.errors import Exactly, raises

LINK = Link("u@jetson", ("edgert",))
TRT = ("tensorrt", "onnxruntime")


def there(**changes: Any) -> RemoteBoard:
    known = RemoteBoard("orin-nx-16gb", "15W", "6.2", "10.3.0", "", "/home/u/.cache/edgert", 10 * 2**30)
    return RemoteBoard(**{**{name: getattr(known, name) for name in RemoteBoard.__slots__}, **changes})


def doctor(machine: dict[str, Any] | None = None, **states: str) -> str:
    """The JSON of a Jetson's doctor."""
    known = {"edgert": __version__, "board": "orin-nx-16gb", "mode": "15W", "jetpack": "6.2"}
    found = {"TensorRT": "yes", **states}
    findings = [
        {"name": name, "state": state, "detail": "10.3.0.30", "fix": "mend it"} for name, state in found.items()
    ]
    machine_found = {**known, "cache": "/c", "free_bytes": 5, **(machine or {})}
    return json.dumps({"ok": True, "machine": machine_found, "findings": findings}, indent=2)


def test_a_doctor_is_read_after_what_a_login_shell_prints() -> None:
    found = read_doctor("Welcome {to} the board\n" + doctor(), LINK)
    assert found == RemoteBoard("orin-nx-16gb", "15W", "6.2", "10.3.0", "", "/c", 5)
    assert str(there()) == "orin-nx-16gb, JetPack 6.2, 15W, TensorRT 10.3.0, 10.0 GiB free"


def test_a_board_without_pycuda_compiles_and_is_not_said_to_check() -> None:
    """An environment that was made without scripts/setup-jetson, such as from the wheel alone."""
    found = read_doctor(doctor(pycuda="optional"), LINK)
    assert found.pycuda_fix and not read_doctor(doctor(pycuda="yes"), LINK).pycuda_fix
    said = pycuda_note(found, "jetson", TRT)
    parts = ("PyCUDA is not installed on jetson", "not checked, timed or run", "scripts/setup-jetson")
    assert all(part in said for part in parts)
    assert pycuda_note(found, "jetson", ("onnxruntime",)) == "" == pycuda_note(there(), "jetson", TRT)


def test_the_page_and_the_error_lead_to_a_board_with_pycuda() -> None:
    page = (ROOT / "docs" / "remote.md").read_text()
    assert "scripts/setup-jetson" in page and "--remote-edgert edgert/.venv/bin/edgert" in page


def test_another_version_is_refused() -> None:
    with pytest.raises(DeviceError, match=r"u@jetson has edgert 0\.0\.1, this is edgert") as caught:
        read_doctor(doctor({"edgert": "0.0.1"}), LINK)
    assert f"dist/edgert-{__version__}-py3-none-any.whl" in caught.value.fix


def test_a_version_that_does_not_say_which_it_is_is_refused() -> None:
    with pytest.raises(DeviceError, match="u@jetson has edgert of an earlier version"):
        read_doctor('{"ok": true, "findings": []}', LINK)


def test_an_edgert_that_cannot_run_is_refused_with_its_own_fix() -> None:
    with raises(DeviceError, "edgert cannot run on u@jetson", why=Exactly("PyAV: 10.3.0.30"), fix=Exactly("mend it")):
        read_doctor(doctor(PyAV="no"), LINK)


def test_a_doctor_that_says_nothing_is_told_with_what_it_said_instead() -> None:
    with pytest.raises(DeviceError, match="edgert does not work on u@jetson") as caught:
        read_doctor("", LINK, "Traceback\nImportError: libcudart.so")
    assert caught.value.why == "ImportError: libcudart.so" and caught.value.fix == "ssh u@jetson edgert doctor"


@pytest.mark.parametrize("findings", [None, [], [5], {"a": 1}, [{"state": "no"}]])
def test_a_doctor_of_another_shape_is_no_doctor(findings: Any) -> None:
    for text in (json.dumps({**json.loads(doctor()), "findings": findings}), '{"machine": 5}', doctor({"cache": None})):
        with pytest.raises(DeviceError, match="edgert does not work on u@jetson"):
            read_doctor(text, LINK)


def test_a_bundle_for_the_board_that_is_there_fits() -> None:
    check_target(there(), "jetson", "orin-nx-16gb", TRT, "10.3.0")
    check_target(there(tensorrt=""), "jetson", "host", ("onnxruntime",), "")
    check_target(there(tensorrt=""), "jetson", "orin-nx-16gb", ("onnxruntime",), "10.3.0")


@pytest.mark.parametrize(("name", "what"), [("host", "is not a Jetson"), ("agx-orin-64gb", "is agx-orin-64gb")])
def test_a_bundle_for_another_board_is_refused(name: str, what: str) -> None:
    with raises(ConfigError, f"built for orin-nx-16gb, and jetson {what}", fix=f"--board {name}"):
        check_target(there(name=name), "jetson", "orin-nx-16gb", TRT, "10.3.0")


def test_a_board_without_tensorrt_is_refused() -> None:
    with raises(DeviceError, "TensorRT is not installed on jetson", why="nvidia-jetpack", fix="edgert doctor"):
        check_target(
            there(tensorrt="", tensorrt_fix="sudo apt install nvidia-jetpack"), "jetson", "orin-nx-16gb", TRT, "10.3.0"
        )


def test_a_bundle_for_another_kind_of_tensorrt_is_refused() -> None:
    with raises(ConfigError, r"built for TensorRT 11\.4\.0, and jetson has 10\.3\.0", fix="without --trt"):
        check_target(there(), "jetson", "orin-nx-16gb", TRT, "11.4.0")


def test_a_disk_without_room_is_refused_before_anything_is_sent() -> None:
    check_space(there(), "jetson", 2**30)
    with raises(ArtifactError, "the disk of jetson is full", why="10.0 GiB are free, 12.1 GiB are needed"):
        check_space(there(), "jetson", 3 * 2**30)


PIPELINE = "name: a\nboard: {board}\nmodels: {{}}\nstages: {{cam: {{source: api}}, out: {{sink: 'null', from: cam}}}}\n"


@pytest.mark.parametrize(
    ("file_board", "options", "wanted"),
    [
        ("auto", (None, None, None), ("orin-nx-16gb", "15W", "10.3.0")),
        ("auto", ("host", None, None), ("host", "", "")),
        ("auto", ("orin-nx-16gb", "10W", "10.7"), ("orin-nx-16gb", "10W", "10.7.0")),
        ("orin-nx-16gb", (None, None, None), ("orin-nx-16gb", "15W", "10.3.0")),
    ],
)
def test_a_pipeline_is_built_for_what_is_there_unless_it_says_otherwise(
    tmp_path: Any, file_board: str, options: tuple[str | None, ...], wanted: tuple[str, ...]
) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(PIPELINE.format(board=file_board))
    target = remote_target(load_pipeline(path), there(), *options)
    assert (target.name, target.mode, target.tensorrt) == wanted


def test_a_mode_that_edgert_does_not_know_is_not_asked_for(tmp_path: Any) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(PIPELINE.format(board="auto"))
    assert remote_target(load_pipeline(path), there(mode="MY_OWN"), None, None, None).mode != "MY_OWN"
