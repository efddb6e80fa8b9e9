"""Which TensorRT is taken, and the error where there is none."""

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from edgert.backend.tensorrt import library
from edgert.backend.tensorrt.library import Wanted, full_version, library_of, load, missing_error, release_of
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


class TestBuild:
    """Builds of one version do not open each other's engines."""

    def loaded(self, monkeypatch: pytest.MonkeyPatch, **numbers: int) -> None:
        """A libnvinfer.so.10 that is loaded, with functions for these parts of its version."""
        functions = {f"getInferLib{part}Version": lambda value=value: value for part, value in numbers.items()}

        def opened(name: str, mode: int) -> SimpleNamespace:
            assert (name, mode) == ("libnvinfer.so.10", os.RTLD_NOLOAD)
            return SimpleNamespace(**functions)

        monkeypatch.setattr(ctypes, "CDLL", opened)

    def installed(self, root: Path) -> Path:
        status = root / "var/lib/dpkg/status"
        status.parent.mkdir(parents=True)
        status.write_text("Package: libnvinfer10\nStatus: install ok installed\nVersion: 10.3.0.30-1+cuda12.5\n")
        return root

    def test_of_the_loaded_library(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        self.loaded(monkeypatch, Major=10, Minor=3, Patch=0, Build=26)
        made = library_of(module("tensorrt", "10.3.0"))
        assert full_version(made, self.installed(tmp_path)) == "10.3.0.26"

    def test_of_the_package_where_the_library_has_no_such_function(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        self.loaded(monkeypatch)
        assert full_version(library_of(module("tensorrt", "10.3.0")), self.installed(tmp_path)) == "10.3.0.30"

    def test_of_the_package_where_nothing_is_loaded(self, tmp_path: Path) -> None:
        assert full_version(library_of(module("tensorrt", "10.3.0")), self.installed(tmp_path)) == "10.3.0.30"

    @pytest.mark.parametrize("version", ["10.7.0", "10.13.3.9", "8.6.2"])
    def test_another_version_that_is_installed_beside_it(self, version: str, tmp_path: Path) -> None:
        assert full_version(library_of(module("tensorrt", version)), self.installed(tmp_path)) == version

    def test_rtx_has_the_build_in_its_version(self, tmp_path: Path) -> None:
        assert full_version(library_of(module("tensorrt_rtx", "1.7.1.116")), tmp_path) == "RTX 1.7.1.116"

    def test_in_the_process_that_loaded_it(self, tmp_path: Path) -> None:
        """The loader finds a library by its own name, wherever it was loaded from."""
        compiler = shutil.which("cc") or pytest.skip("there is no C compiler")
        parts = {"Major": 10, "Minor": 3, "Patch": 0, "Build": 30}
        source = tmp_path / "double.c"
        source.write_text("".join(f"int getInferLib{one}Version(void) {{ return {n}; }}\n" for one, n in parts.items()))
        file = tmp_path / "elsewhere.so"
        options = ["-shared", "-fPIC", "-Wl,-soname,libnvinfer.so.10", "-o", str(file), str(source)]
        subprocess.run([compiler, *options], check=True)
        code = (
            "import ctypes, sys; from edgert.backend.tensorrt.library import _loaded_version as found\n"
            "print(repr(found(10))); ctypes.CDLL(sys.argv[1]); print(found(10), repr(found(11)))"
        )
        run = subprocess.run([sys.executable, "-c", code, str(file)], capture_output=True, text=True, check=True)
        assert run.stdout.split() == ["''", "10.3.0.30", "''"]


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
    error = missing_error(ImportError("No module named 'tensorrt'"), jetson, "auto")
    assert error.where == "Orin NX Kit, JetPack 6.2" and "nvidia-jetpack" in error.fix and "6.2" in error.fix
    assert "never pip install" in error.fix
    assert "does not support Jetson" in missing_error(ImportError("x"), jetson, "tensorrt_rtx").fix
