"""Hints to install something work wherever edgert came from; edgert itself is asked of no package index."""

from __future__ import annotations

from importlib import metadata

import pytest

from edgert import installation
from edgert.placement.integer import optional
from tests.helpers.command import ROOT

REQUIRES = [
    "numpy>=1.26",
    'scipy>=1.13; extra == "plan"',
    "PyNvVideoCodec>=2; (platform_machine == 'x86_64') and extra == 'nvdec'",
    "tensorflow>=2.16; extra == 'tensorflow'",
    "tf2onnx>=1.17; extra == 'tensorflow'",
]


def test_in_a_clone_it_is_the_clones_extra() -> None:
    assert installation.command("plan") == f"pip install -e '{ROOT}[plan]'"


@pytest.mark.parametrize(
    ("extra", "command"),
    [
        ("plan", "pip install 'scipy>=1.13'"),
        ("nvdec", "pip install 'PyNvVideoCodec>=2'"),
        ("tensorflow", "pip install 'tensorflow>=2.16' 'tf2onnx>=1.17'"),
    ],
)
def test_installed_from_a_wheel_it_is_what_the_extra_stands_for(
    extra: str, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installation, "checkout", lambda: None)
    monkeypatch.setattr(metadata, "requires", lambda _: REQUIRES)
    assert installation.command(extra) == command


def test_the_solver_says_how_to_get_scipy(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr("edgert.placement.integer.importlib.import_module", missing)
    with pytest.raises(Exception, match="placement needs SciPy") as caught:
        optional("sparse")
    assert installation.command("plan") in str(caught.value)
