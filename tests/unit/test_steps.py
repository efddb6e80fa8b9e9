"""Steps: done once for equal facts, told as they happen, never taken from a damaged cache."""

import json
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from edgert.errors import ArtifactError, BuildError
from edgert.reporter import Progress
from edgert.steps import Product, Report, Runner, Step, StepCache, Stopped, run_in_parallel


class Shop:
    """A runner with what it told, and steps that count how often they are made."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.events: list[Progress] = []
        self.made: list[str] = []
        self.runner = Runner(StepCache(folder), self.events.append)

    def do(self, facts: object, content: bytes = b"made", name: str = "load", **more: object) -> Product:
        def make(report: Report) -> Mapping[str, bytes]:
            self.made.append(name)
            report.note("working")
            report.progress(1, 1)
            return {"file": content}

        return self.runner.do(Step(name, "parts", 1, facts, make, **more))  # type: ignore[arg-type]

    @property
    def states(self) -> list[str]:
        return [event.state for event in self.events]


def test_a_step_is_done_once_for_equal_facts(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    first = shop.do({"a": 1}, promise=lambda files: f"{len(files)} file")
    again = Shop(tmp_path)
    second = again.do({"a": 1})
    assert shop.states == ["started", "note", "progress", "done"]
    assert again.states == ["started", "cached"] and not again.made
    assert (second.files, second.summary, second.digest) == ({"file": b"made"}, "1 file", first.digest)


def test_other_facts_recipes_and_names_are_other_steps(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    for facts in ({"a": 1}, {"a": 2}, {"a": "1"}, [1], [[1]]):
        shop.do(facts)
    shop.do([1], name="other")
    assert len(shop.made) == 6
    keys = {Step("load", model, recipe, [1], lambda report: {}).key for model in "ab" for recipe in (1, 2)}
    assert len(keys) == 2  # the model's name makes no difference


def test_a_damaged_product_is_made_again_and_said(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.do([1])
    (entry,) = tmp_path.glob("*.bin")
    content = bytearray(entry.read_bytes())
    for place in (0, len(content) // 2, len(content) - 1):
        damaged = bytes(content[:place]) + bytes([content[place] ^ 1]) + bytes(content[place + 1 :])
        entry.write_bytes(damaged)
        again = Shop(tmp_path)
        assert again.do([1]).files == {"file": b"made"}
        assert again.states == ["started", "damaged", "note", "progress", "done"]
        assert "made afresh" in again.events[1].detail


def test_an_entry_under_a_true_name_that_is_no_product_is_made_again(tmp_path: Path) -> None:
    from edgert.files import FileStore

    shop = Shop(tmp_path / "cache")
    step = Step("load", "", 1, [1], lambda report: {"file": b"made"})
    FileStore(tmp_path / "cache").put(step.key, b"something else")
    assert shop.runner.do(step).files == {"file": b"made"}
    assert shop.states == ["started", "damaged", "done"]


def test_a_broken_promise_is_not_kept(tmp_path: Path) -> None:
    def broken(files: Mapping[str, bytes]) -> str:
        raise BuildError("outputs differ")

    shop = Shop(tmp_path)
    with pytest.raises(BuildError, match="outputs differ"):
        shop.do([1], promise=broken)
    assert shop.states[-1] == "failed" and shop.events[-1].detail == "outputs differ"
    assert not list(tmp_path.glob("*.bin"))
    shop.do([1])
    assert shop.states[-1] == "done"


def test_a_product_that_no_longer_holds_is_made_again(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.do([1])
    assert shop.do([1], b"new", holds=lambda product: product.files["file"] == b"new").files == {"file": b"new"}
    assert len(shop.made) == 2


def test_a_stop_ends_the_build_between_steps(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.do([1])
    shop.runner.stop.set()
    with pytest.raises(Stopped, match="stopped") as caught:
        shop.do([2])
    assert "cached" in caught.value.fix


def test_a_cache_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ArtifactError, match="cannot write to the cache"):
        Shop(tmp_path / "file" / "cache").do([1])


def test_products_without_the_file_asked_for(tmp_path: Path) -> None:
    assert Product({"a.json": b"[1]"}).json("a.json") == [1]
    for name, files in (("b.json", {}), ("a.json", {"a.json": b"["})):
        with pytest.raises(ArtifactError, match="left no"):
            Product(files).json(name)


def test_events_as_lines_leave_out_what_does_not_apply() -> None:
    assert Progress("load", "parts", "started").to_json() == {"step": "load", "model": "parts", "state": "started"}
    assert Progress("load", "parts", "done", 0.12345, "fine").to_json()["seconds"] == 0.1235
    assert Progress("calibrate", "parts", "progress", done=3, total=9).to_json()["total"] == 9


def test_events_are_read_from_what_another_process_told() -> None:
    reported = [Progress("load", "parts", "done", 0.25, "fine"), Progress("calibrate", "", "progress", done=3, total=9)]
    assert [Progress.from_json(json.loads(json.dumps(event.to_json()))) for event in reported] == reported
    assert Progress.from_json({"bundle": "a.edgert"}) is None
    assert Progress.from_json({"step": "load", "state": "unheard of"}) is None


def test_models_go_side_by_side_and_the_first_error_wins() -> None:
    stop, both = threading.Event(), threading.Barrier(2, timeout=10)

    def meet(name: str) -> str:
        both.wait()
        return name.upper()

    assert run_in_parallel(meet, ["a", "b"], 2, stop) == {"a": "A", "b": "B"}
    assert run_in_parallel(str.upper, ["a", "b"], 1, stop) == {"a": "A", "b": "B"}

    def fail(name: str) -> str:
        if name == "b":
            raise BuildError("b is broken")
        assert stop.wait(10)
        raise Stopped("the build was stopped")

    with pytest.raises(BuildError, match="b is broken"):
        run_in_parallel(fail, ["a", "b"], 2, stop)
