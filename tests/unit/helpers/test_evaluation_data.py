"""The evaluation data: one door to it, closed unless EDGERT_DATA names a folder."""

import importlib
import re
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from tests.conftest import pytest_itemcollected
from tests.helpers import evaluation_data
from tests.helpers.command import ROOT

DOOR = ROOT / "tests/helpers/evaluation_data.py"
BESIDE_THE_CLONE = re.compile(r"""["'/](\.\./)*shared["'/ ]+/? ?["']?data\b""")


@pytest.fixture(autouse=True)
def _the_folder_of_this_session_comes_back(monkeypatch: pytest.MonkeyPatch) -> object:
    yield
    monkeypatch.undo()
    importlib.reload(evaluation_data)


def sources() -> list[Path]:
    """Return every Python file and script of the repository but this one and the door."""
    folders = ("tests", "scripts", "tools", "pipelines", "edgert", "dla")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()]
    return [path for path in files if path.suffix in ("", ".py") and path not in (DOOR, Path(__file__).resolve())]


def test_only_one_module_asks_where_the_data_are() -> None:
    asking = re.compile(r"""environ[^\n]*["']EDGERT_DATA["']|getenv\(["']EDGERT_DATA["']""")
    texts = {path: path.read_text(encoding="utf-8", errors="replace") for path in sources()}
    assert not [path for path, text in texts.items() if asking.search(text)]
    assert not [path for path, text in texts.items() if BESIDE_THE_CLONE.search(text)]
    assert BESIDE_THE_CLONE.search('ROOT / ".." / "shared" / "data"') and BESIDE_THE_CLONE.search('"../shared/data"')


def test_without_the_variable_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EDGERT_DATA", raising=False)
    importlib.reload(evaluation_data)
    with pytest.raises(pytest.skip.Exception, match=r"needs models/yolox\.onnx of .*; set EDGERT_DATA"):
        evaluation_data.data("models", "yolox.onnx")
    assert not (evaluation_data.FOLDER / "models").exists()


def test_with_the_variable_they_are_in_its_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    monkeypatch.setenv("EDGERT_DATA", str(tmp_path))
    importlib.reload(evaluation_data)
    assert evaluation_data.data("models") == tmp_path / "models"


def test_tests_that_can_open_them_are_marked() -> None:
    def marks(**module: object) -> list[str]:
        found, made = list[str](), ModuleType("made")
        vars(made).update(module)
        pytest_itemcollected(SimpleNamespace(module=made, add_marker=found.append))
        return found

    assert marks(data=evaluation_data.data) == ["data"]
    assert marks(data=Path("data"), json=importlib) == []
