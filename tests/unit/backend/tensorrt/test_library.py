"""Which TensorRT is taken, and the error where there is none."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

from edgert.backend.tensorrt import library
from edgert.backend.tensorrt.library import Wanted, library_of, load, missing, release_of
from edgert.board import HOST, Machine
from edgert.errors import BuildError, DeviceError

NAMES = ("tensorrt", "tensorrt_rtx", "tensorrt_rtx_bindings")


@pytest.fixture(autouse=True)
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in NAMES:
        monkeypatch.setitem(sys.modules, name, None)
    load.cache_clear()
    yield
    load.cache_clear()


def module(name: str, version: str) -> ModuleType:
    made = ModuleType(name)
    made.__version__ = version  # type: ignore[attr-defined]
    return made


@pytest.mark.parametrize(
    ("version", "kind"), [("8.6.2", "weak"), ("10.3.0", "weak"), ("10.13.3.9", "weak"), ("11.4.1", "strong")]
)
def test_kinds(version: str, kind: str) -> None:
    made = library_of(module("tensorrt", version))
    assert (made.kind, made.title) == (kind, f"TensorRT {version}")


@pytest.mark.parametrize("name", ["tensorrt_rtx", "tensorrt_rtx_bindings"])
def test_rtx_by_either_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, name, module(name, "1.7.1.116"))
    assert load().title == "TensorRT-RTX 1.7.1.116" and load("tensorrt_rtx").kind == "rtx"


def test_tensorrt_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt_rtx", module("tensorrt_rtx", "1.7"))
    monkeypatch.setitem(sys.modules, "tensorrt", module("tensorrt", "10.3.0"))
    assert load().kind == "weak" and load("tensorrt_rtx").kind == "rtx"


@pytest.mark.parametrize("version", ["7.1.3", "8.5.2", "9.3.0", "unknown"])
def test_versions_that_cannot_be_used(version: str) -> None:
    with pytest.raises(BuildError, match=version):
        library_of(module("tensorrt", version))


def test_release() -> None:
    assert release_of("10.13.3.9") == (10, 13) and release_of("8.6.1") == (8, 6)


@pytest.mark.parametrize(("wanted", "fix"), [("auto", "pip install tensorrt;"), ("tensorrt_rtx", "tensorrt-rtx")])
def test_none_on_a_workstation(wanted: Wanted, fix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "detect", lambda: Machine(HOST, None, "", (), "", "", "cpu", 2, 2, 1))
    with pytest.raises(DeviceError, match="cannot be used here") as caught:
        load(wanted)
    assert fix in caught.value.fix and caught.value.where == HOST


def test_none_on_a_jetson() -> None:
    jetson = Machine("orin-nx-16gb", None, "Orin NX Kit", (), "36.4.3", "6.2", "cpu", 8, 8, 1)
    error = missing(ImportError("No module named 'tensorrt'"), jetson, "auto")
    assert error.where == "Orin NX Kit, JetPack 6.2" and "nvidia-jetpack" in error.fix and "6.2" in error.fix
    assert "never pip install" in error.fix
    assert "does not support Jetson" in missing(ImportError("x"), jetson, "tensorrt_rtx").fix
