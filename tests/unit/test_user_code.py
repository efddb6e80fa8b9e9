"""What a module of the user's holds is told from its text; nothing of it is run."""

from pathlib import Path

import pytest

from edgert import user_code
from edgert.errors import ConfigError
from edgert.installation import data_folder
from edgert.user_code import check_object, load_module, registered_operators

MODULE = """
raise SystemExit("this must not be run")
import json as form
if True:
    def function(result, *, limit, unit="px"): ...
else:
    other = 3
class Counter:
    def process(self, result): ...
@wrapped
def decorated(): ...
"""


def written(folder: Path, text: str = MODULE, name: str = "mine.py") -> Path:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return folder


@pytest.mark.parametrize("name", ["function", "other", "Counter", "Counter.process", "form", "decorated"])
def test_names_that_the_text_binds_are_there(tmp_path: Path, name: str) -> None:
    check_object(f"mine:{name}", "p.yaml:3", written(tmp_path))


@pytest.mark.parametrize(
    ("spec", "what", "why"),
    [
        ("mine:functoin", "'mine:functoin' does not exist", "'mine' has no 'functoin'; did you mean 'function'?"),
        ("absent_module:f", "there is no module 'absent_module'", "and the installed packages"),
        ("pack.absent:f", "there is no module 'pack.absent'", "and the installed packages"),
        ("mine.py:f", "'mine.py' is a file, not a module", ""),
        ("broken:f", "module 'broken' does not parse", "SyntaxError"),
    ],
)
def test_what_is_not_there_is_told_with_its_place(tmp_path: Path, spec: str, what: str, why: str) -> None:
    written(written(written(tmp_path), "def f(:", "broken.py"), "", "pack/__init__.py")
    with pytest.raises(ConfigError) as caught:
        check_object(spec, "p.yaml:3", tmp_path)
    assert caught.value.what == what and why in caught.value.why and caught.value.where == "p.yaml:3"


def test_a_module_of_a_package_is_found_without_importing_the_package(tmp_path: Path) -> None:
    written(tmp_path, "raise SystemExit", "pack/__init__.py")
    check_object("pack.inner:f", "", written(tmp_path, "def f(): ...", "pack/inner.py"))


@pytest.mark.parametrize("text", ["from numpy import *", "def __getattr__(name): ..."])
def test_names_that_come_from_elsewhere_are_taken_to_be_there(tmp_path: Path, text: str) -> None:
    check_object("mine:anything", "", written(tmp_path, text))


def test_modules_without_a_text_are_taken_to_hold_it() -> None:
    check_object("math:sqrt", "", None)


def test_operators_are_read_off_their_decorators(tmp_path: Path) -> None:
    text = 'raise SystemExit\n@edgert.op("demo::A", cuda=K)\ndef a(x): ...\n@op("demo::B")\ndef b(x): ...\n'
    assert registered_operators(written(tmp_path, text) / "mine.py", "") == {"demo::A", "demo::B"}
    assert registered_operators(written(tmp_path, "@op(NAME)\ndef a(x): ...\n") / "mine.py", "") is None
    with pytest.raises(ConfigError, match="cannot read"):
        registered_operators(tmp_path / "absent.py", "p.yaml:3")
    with pytest.raises(ConfigError, match="cannot read"):
        registered_operators(tmp_path / f"{'long' * 100}.py", "p.yaml:3")


@pytest.mark.parametrize("text", [f"x = {'-' * 100_000}1", f"x = {'1 + ' * 9000}1", f"x = y{'.z' * 9000}(1)"])
def test_a_text_that_is_nested_too_deeply_is_refused_or_read(tmp_path: Path, text: str) -> None:
    for read in (
        lambda: check_object("mine:x", "p.yaml:3", written(tmp_path, text)),
        lambda: registered_operators(tmp_path / "mine.py", "p.yaml:3"),
    ):
        try:
            read()  # as Python 3.10 and 3.13 do, whose parsers take more levels
        except ConfigError as error:
            assert "does not parse" in error.what


def test_a_long_sum_and_a_long_chain_of_names_are_read(tmp_path: Path) -> None:
    folder = written(tmp_path, f"x = {'1 + ' * 900}1\ny = op{'.z' * 900}(1)\n")
    check_object("mine:y", "p.yaml:3", folder)
    assert registered_operators(folder / "mine.py", "p.yaml:3") == frozenset()


def test_only_code_of_the_users_own_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The images of the demo are edgert's; a module of that name elsewhere, or another one named there, is not."""
    named = list[str]()
    monkeypatch.setattr(user_code, "before_import", lambda name, where: named.append(name))
    load_module("conveyor", "p.yaml:3", data_folder("pipelines"))
    assert not named
    load_module("json", "p.yaml:3", data_folder("pipelines"))
    load_module("mine_alone", "p.yaml:3", written(tmp_path, "x = 1\n", "mine_alone.py"))
    assert named == ["json", "mine_alone"]
