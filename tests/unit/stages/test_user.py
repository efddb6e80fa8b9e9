"""Finding the user's own code."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from edgert.errors import ConfigError
from edgert.user_code import load_object

WHERE = "p.yaml:9 stages.own.python"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    (tmp_path / "edgert_test_user.py").write_text("VALUE = 3\nclass Box:\n    @staticmethod\n    def f(): return 7\n")
    return tmp_path


def test_a_member_of_a_class_beside_the_pipeline_file(folder: Path) -> None:
    before = list(sys.path)
    found = load_object("edgert_test_user:Box.f", WHERE, folder)
    assert callable(found) and found() == 7
    assert sys.path == before


def test_an_installed_module() -> None:
    import json

    assert load_object("json:dumps", WHERE) is json.dumps


def test_the_path_is_restored_after_a_failure(folder: Path) -> None:
    before = list(sys.path)
    with pytest.raises(ConfigError):
        load_object("edgert_test_absent:f", WHERE, folder)
    assert sys.path == before


@pytest.mark.parametrize(
    ("spec", "what", "why"),
    [
        ("edgert_test_user", "names no function", ""),
        ("edgert_test_user.py:Box.f", "'edgert_test_user.py' is a file, not a module", ""),
        ("edgert_test_absent:f", "there is no module 'edgert_test_absent'", "looked in"),
        ("edgert_test_user:Bax.f", "'edgert_test_user:Bax.f' does not exist", "did you mean 'Box'?"),
        ("edgert_test_user:VALUE", "cannot be called", "it is a int"),
    ],
)
def test_what_cannot_be_found_is_named(folder: Path, spec: str, what: str, why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_object(spec, WHERE, folder)
    assert what in caught.value.what and why in caught.value.why and caught.value.where == WHERE


@pytest.mark.parametrize(
    ("code", "what", "why"),
    [
        ("import edgert_test_missing_package", "needs 'edgert_test_missing_package', which is not installed", ""),
        ("def f(:", "fails when it is imported", "SyntaxError"),
        ("1 / 0", "fails when it is imported", "ZeroDivisionError: division by zero"),
    ],
)
def test_a_module_that_does_not_import(folder: Path, code: str, what: str, why: str) -> None:
    (folder / "edgert_test_broken.py").write_text(code)
    with pytest.raises(ConfigError) as caught:
        load_object("edgert_test_broken:f", WHERE, folder)
    assert what in caught.value.what and why in caught.value.why
    assert caught.value.__cause__ is not None


def test_a_second_module_of_one_name_is_refused(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    load_object("edgert_test_user:Box", WHERE, folder)
    other = tmp_path_factory.mktemp("other")
    (other / "edgert_test_user.py").write_text("def f(): pass\n")
    with pytest.raises(ConfigError, match="'edgert_test_user' is already another one") as caught:
        load_object("edgert_test_user:f", WHERE, other)
    assert "rename" in caught.value.fix
    assert callable(load_object("edgert_test_user:Box", WHERE, folder))
