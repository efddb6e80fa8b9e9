"""All probes together, and the processes that ask packages."""

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from edgert.board import detect
from edgert.diagnosis import PROBES, child, diagnose
from edgert.diagnosis.probe import Answer, Evidence, ask
from tests.unit.board.tree import jetson, write
from tests.unit.diagnosis.evidence import ABSENT, WORKING

pytestmark = pytest.mark.usefixtures("own_cache")


def _working(names: Iterable[str]) -> dict[str, Answer]:
    return {name: WORKING[name] for name in names}


def _nothing(names: Iterable[str]) -> dict[str, Answer]:
    return dict.fromkeys(names, ABSENT)


def test_a_jetson_with_everything(tmp_path: Path) -> None:
    found = diagnose(root=jetson(tmp_path), ask=_working)
    assert [finding.name for finding in found] == list(PROBES)
    assert not [finding for finding in found if finding.state == "no"]
    assert {finding.name: finding.state for finding in found}["DLA"] == "yes"


def test_a_machine_with_nothing(tmp_path: Path) -> None:
    found = diagnose(root=tmp_path, ask=_nothing)
    broken = {finding.name for finding in found if finding.state == "no"}
    assert broken == {"ONNX Runtime", "PyAV", "OpenCV"}
    assert all(finding.fix for finding in found if finding.state == "no")


def test_dla_is_asked_for_only_where_there_is_one(tmp_path: Path) -> None:
    asked: list[str] = []

    def note(names: Iterable[str]) -> dict[str, Answer]:
        asked.extend(names)
        return _nothing(names)

    diagnose(root=tmp_path, ask=note)
    assert "dla" not in asked
    diagnose(root=jetson(tmp_path), ask=note)
    assert "dla" in asked


def test_a_probe_that_fails_is_a_finding(tmp_path: Path) -> None:
    def forgetful(names: Iterable[str]) -> dict[str, Answer]:
        return {**_working(names), "onnxruntime": Answer({"version": "1"})}

    found = {finding.name: finding for finding in diagnose(root=tmp_path, ask=forgetful)}
    assert found["ONNX Runtime"].state == "no" and "KeyError: 'providers'" in found["ONNX Runtime"].detail
    assert found["OpenCV"].state == "yes"


def test_evidence_knows_a_gpu(tmp_path: Path) -> None:
    here = detect(tmp_path)
    assert Evidence(tmp_path, here, WORKING).has_gpu
    assert not Evidence(tmp_path, here, {"cuda": ABSENT}).has_gpu


def _program(tmp_path: Path, text: str) -> Path:
    write(tmp_path, "program.py", text)
    return tmp_path / "program.py"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("import os; os.abort()", "crashed when imported (SIGABRT)"),
        ("raise ImportError('libGL.so.1: cannot open')", "ImportError: libGL.so.1: cannot open"),
        ("raise SystemExit(3)", "failed with exit code 3"),
        ("", "ended without an answer"),
        ("import threading; threading.Event().wait(9)", "gave no answer in 0.2 s"),
    ],
)
def test_whatever_a_package_does_is_an_answer(tmp_path: Path, text: str, error: str) -> None:
    answer = ask("x", timeout_s=0.2 if "wait" in text else 20, program=_program(tmp_path, text))
    assert (answer.error, answer.works) == (error, False)


def test_an_interpreter_that_cannot_be_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "none"))
    assert ask("cv2").error.startswith("could not be asked")


def test_a_child_is_not_fooled_by_modules_beside_it_nor_by_what_packages_print(tmp_path: Path) -> None:
    write(tmp_path, "pycuda/__init__.py", "print('hello from an import')\nVERSION_TEXT = '9'\n")
    write(tmp_path, "pycuda/driver.py", "")
    command = [sys.executable, str(child.__file__), "pycuda"]
    done = subprocess.run(command, capture_output=True, text=True, env={"PYTHONPATH": str(tmp_path)})
    assert json.loads(done.stdout) == {"version": "9"}
    assert "hello from an import" in done.stderr


@pytest.mark.parametrize(
    ("packages", "version"),
    [
        (("tensorrt", "tensorrt_rtx"), "10.3.0"),
        (("tensorrt_rtx",), "RTX 1.7.0"),
        (("tensorrt_rtx_bindings",), "RTX 1.7.0"),
    ],
)
def test_tensorrt_is_asked_for_as_engines_look_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packages: tuple[str, ...], version: str
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(child, "find_spec", lambda name: name if name in packages else None)  # one may be installed
    for name in packages:
        rtx = "class ComputeCapability:\n    __members__ = {'NONE': 0, 'SM120': 1, 'SM86': 2}\n"
        write(tmp_path, f"{name}.py", f"__version__ = '1.7.0'\n{rtx}" if "rtx" in name else "__version__ = '10.3.0'\n")
        monkeypatch.delitem(sys.modules, name, raising=False)
    listed = {"capabilities": ["8.6", "12.0"]} if version.startswith("RTX") else {}
    assert child.answer("tensorrt") == {"version": version, **listed}
    for name in packages:
        sys.modules.pop(name, None)
