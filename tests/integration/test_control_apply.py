"""``edgert ctl apply``: a plan first, then all of it or nothing; and budgets that change while they are kept."""

import json
import threading
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

import edgert
from edgert import Pipeline
from edgert.control import changing
from edgert.errors import BudgetError, ConfigError, EdgertError, StageError
from tests.helpers.errors import raises
from tests.helpers.waiting import wait_until
from tests.integration.test_control import FRAME, STAGES, Seen, Submitters, pipeline_of, state_of

ZONES = {"half": [[0, 0], [1, 0], [1, 1]]}

OWN = """
class Good:
    def process(self, result): return result
class Odd(Good):
    def __init__(self): raise ValueError("Odd")
class Closed(Good):
    def open(self): raise ValueError("Closed")
"""


def changed(*sources: str, **stages: Any) -> dict[str, Any]:
    made = deepcopy(pipeline_of(*sources))
    for name, keys in stages.items():
        made["stages"].setdefault(name, {}).update(keys)
    return made


def effects(answer: dict[str, Any]) -> dict[str, str]:
    return {change["key"]: change["effect"] for change in answer["changes"]}


def applied(pipeline: Pipeline, wanted: dict[str, Any]) -> dict[str, Any]:
    return pipeline.control.apply(wanted, pipeline.control.apply(wanted)["plan"])


def test_a_plan_says_what_each_change_takes_and_carrying_it_out_makes_all_of_them() -> None:
    seen = Seen()
    with edgert.Pipeline(pipeline_of("a", "b"), callbacks={"both": seen}) as pipeline:
        pipeline.start()
        before = state_of(pipeline)
        wanted = changed(
            "a", "c", find={"every": 2}, count={"zones": ZONES | {"other": [[0, 0], [0, 1], [1, 1]]}},
            track={"match": 0.7}, draw={"draw": ["labels"]}, a={"fps": 500},
        )  # fmt: skip
        wanted["models"]["parts"]["task"]["score"] = 0.5
        plan = pipeline.control.apply(wanted)
        assert effects(plan) == {
            "models.parts.task.score": "live",
            "stages.a.fps": "live",
            "stages.b": "removes",
            "stages.find.from": "live",
            "stages.find.every": "live",
            "stages.track.match": "restarts the stage",
            "stages.count.zones": "restarts the stage",
            "stages.draw.draw": "restarts the stage",
            "stages.c": "adds",
        }
        assert plan["possible"] and not plan["applied"] and state_of(pipeline) == before
        assert {"key": "stages.find.every", "effect": "live", "was": 1, "now": 2} in plan["changes"]
        assert pipeline.control.apply(wanted, plan["plan"])["applied"]
        assert pipeline.control.apply(wanted)["changes"] == []
        shown = pipeline.control.show()
        assert [*shown["sources"]] == ["a", "c"] and shown["live"]["models.parts.task.score"] == 0.5
        for index in range(20):
            pipeline.submit(FRAME, stage="c", timestamp_ns=index * 20_000_000, timeout=5.0)
        wait_until(lambda: seen.numbers["c"] == list(range(20)))
        with raises(StageError, "is stale", says="has changed since"):
            pipeline.control.apply(wanted, plan["plan"])


def test_a_plan_is_stale_once_the_pipeline_or_the_file_changed() -> None:
    with edgert.Pipeline(pipeline_of("a", "b"), callbacks={"both": Seen()}) as pipeline:
        wanted = changed("a", "b", find={"every": 2})
        plan = pipeline.control.apply(wanted)["plan"]
        other = changed("a", "b", find={"every": 3})
        with pytest.raises(StageError, match="stale"):
            pipeline.control.apply(other, plan)
        pipeline.control.set("models.parts.task.limit", 7)
        with pytest.raises(StageError, match="stale"):
            pipeline.control.apply(wanted, plan)
        assert pipeline.file.config.stages["find"].every == 1  # type: ignore[union-attr]
        assert applied(pipeline, wanted)["applied"]
        limit = pipeline.control.show()["live"]["models.parts.task.limit"]
        assert limit == 300  # as the file has it


@pytest.mark.parametrize(
    ("wanted", "key", "why"),
    [
        (changed("a", "b", find={"queue": 3}), "stages.find.queue", "the model would be loaded again"),
        (changed("a", "b", draw={"queue": 3}), "stages.draw.queue", "its queue and its thread exist already"),
        (changed("a", "b", more={"sink": "null", "from": "a"}), "stages.more", "only sources are added live"),
        (changed("a", "b", draw={"from": "track"}), "stages.draw.from", "it would listen to other stages"),
        (changed("a", "b") | {"watchdog": "5s"}, "watchdog", "it applies from the start of a run"),
        (
            changed("a", "b") | {"models": {"parts": pipeline_of()["models"]["parts"] | {"replicas": 1}}},
            "models.parts.replicas",
            "the model would be loaded again",
        ),
    ],
)
def test_what_needs_a_restart_is_refused_as_a_whole(wanted: dict[str, Any], key: str, why: str) -> None:
    wanted = deepcopy(wanted)
    wanted["stages"]["find"]["every"] = 4
    with edgert.Pipeline(pipeline_of("a", "b"), callbacks={"both": Seen()}) as pipeline:
        before = state_of(pipeline)
        plan = pipeline.control.apply(wanted)
        assert not plan["possible"] and effects(plan)[key] == "needs a restart"
        with raises(StageError, says=(f"{key} cannot change", why)):
            pipeline.control.apply(wanted, plan["plan"])
        assert state_of(pipeline) == before


def test_a_step_that_fails_takes_the_others_back(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Seen()
    with edgert.Pipeline(pipeline_of("a", "b"), callbacks={"both": seen}) as pipeline:
        pipeline.start()
        wanted = changed("a", "b", "c", find={"every": 3}, draw={"draw": ["labels"]}, a={"fps": 5})
        wanted["stages"]["find"]["from"] = ["a", "b", "c"]
        wanted["stages"]["c"] = {"source": "api"}
        file, live = pipeline.file, pipeline.control.show()["live"]
        assign = changing._set_stage_key

        def fail(run: Any, name: str, key: str, value: Any) -> None:
            if key == "every" and value == 3:
                raise StageError("a step failed")
            assign(run, name, key, value)

        monkeypatch.setattr(changing, "_set_stage_key", fail)
        with pytest.raises(StageError, match="a step failed"):
            applied(pipeline, wanted)
        monkeypatch.undo()
        shown = pipeline.control.show()
        assert pipeline.file == file and [*shown["sources"]] == ["a", "b"] and shown["live"] == live
        assert {task.name.partition(":")[0] for task in pipeline._assembly.graph.tasks} == {"a", "b", *STAGES}
        for index in range(10):
            pipeline.submit(FRAME, stage="a", timestamp_ns=index * 20_000_000, timeout=5.0)
        wait_until(lambda: seen.numbers["a"] == list(range(10)))
        monkeypatch.setattr(changing, "_set_stage_key", lambda run, name, key, value: 1 / (value not in (3, None)))
        with pytest.raises(StageError, match="the change failed") as caught:
            applied(pipeline, wanted)
        made, left = caught.value.why.split("; steps before it could not be undone: ")
        assert "ZeroDivisionError" in made and "ZeroDivisionError" in left and "restart" in caught.value.fix


@pytest.mark.parametrize(("name", "what"), [("Odd", "cannot make Odd for stage 'b'"), ("Closed", "the change failed")])
def test_own_code_that_fails_in_a_change_is_named_with_its_line(
    name: str, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    stages = {"a": {"source": "api"}, "b": {"python": "own:Good", "from": "a"}, "c": {"sink": "null", "from": "b"}}
    with edgert.Pipeline({"stages": stages}) as pipeline:
        pipeline.start()
        with raises(EdgertError, what, why=(f"ValueError: {name}", f" at {tmp_path}/own.py:")):
            applied(pipeline, {"stages": {**stages, "b": {"python": f"own:{name}", "from": "a"}}})
        assert pipeline.file.config.stages["b"].python == "own:Good"  # type: ignore[union-attr]


def test_a_source_is_opened_again_by_another_address_even_the_only_one(tmp_path: Path) -> None:
    text = """
stages:
  cam: {source: "SOURCE", size: 64x48, realtime: true, fps: 50}
  draw: {draw: [stats], from: cam}
  out: {sink: "null", from: draw}
"""
    path = tmp_path / "belt.yaml"
    path.write_text(text.replace("SOURCE", "synthetic:noise"))
    with edgert.Pipeline(path) as pipeline:
        pipeline.start()
        path.write_text(text.replace("SOURCE", "synthetic:noise").replace("64x48", "32x24"))
        plan = pipeline.control.apply(path)
        assert effects(plan) == {"stages.cam.size": "opens the source again"}
        assert pipeline.control.apply(path, plan["plan"])["applied"]
        reader = pipeline.results("draw", timeout=10.0)
        wait_until(lambda: next(reader).frame.width == 32)
        with pytest.raises(EdgertError):
            wrong = text.replace("SOURCE", str(tmp_path / "none.mp4"))
            applied(pipeline, {"stages": yaml.safe_load(wrong)["stages"]})
        assert next(pipeline.results("draw", timeout=10.0)).frame.width == 32
        assert pipeline.running


def test_a_file_with_a_mistake_or_none_is_an_error_with_its_line(tmp_path: Path) -> None:
    with edgert.Pipeline(pipeline_of("a"), callbacks={"both": Seen()}) as pipeline:
        before = state_of(pipeline)
        path = tmp_path / "wrong.yaml"
        path.write_text("stages:\n  a: {source: api}\n  find: {infer: prts, from: a}\n")
        with pytest.raises(ConfigError, match="prts") as caught:
            pipeline.control.apply(path)
        assert caught.value.where.startswith("the new file:3")
        for broken in ("", "[1]", "stages: [", "a: &a [*a, *a]"):
            path.write_text(broken)
            with pytest.raises(ConfigError):
                pipeline.control.apply(path)
        with pytest.raises(ConfigError, match="cannot read"):
            pipeline.control.apply(tmp_path / "none.yaml")
        assert state_of(pipeline) == before


def test_set_of_the_start_holds_for_the_new_file_and_secrets_are_not_in_a_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "s3cret-of-a-camera")
    text = 'stages:\n  a: {source: "python:mine:images", fps: 5}\n  out: {sink: "null", from: a}\n'
    path = tmp_path / "belt.yaml"
    path.write_text(text)
    with edgert.Pipeline(path, overrides=["stages.a.source=synthetic:noise", "stages.a.size=64x48"]) as pipeline:
        assert pipeline.control.apply(path)["changes"] == []
        path.write_text(text + '  hook: {sink: webhook, server: "http://127.0.0.1:9/${SECRET}", from: a}\n')
        assert "s3cret" not in json.dumps(pipeline.control.apply(path))


@pytest.fixture
def budgeted() -> Any:
    planned = {**pipeline_of("a", "b"), "budgets": {"cpu": 1.5, "latency": "2s", "when_exceeded": "degrade"}}
    with edgert.Pipeline(planned, callbacks={"both": Seen()}) as pipeline:
        pipeline.start()
        yield pipeline


def test_budgets_change_while_they_are_kept(budgeted: Pipeline) -> None:
    def budgets() -> Mapping[str, Any]:
        return budgeted.summary().budgets

    wait_until(lambda: budgets()["governor"]["seconds"])
    began = sum(budgets()["governor"]["seconds"].values())
    budgeted.control.pause("a")
    assert budgeted.control.set("budgets.cpu", 0.7) == {"key": "budgets.cpu", "was": 1.5, "now": 0.7}
    assert budgets()["used"]["limit"] == 0.7 and sum(budgets()["governor"]["seconds"].values()) >= began
    assert budgeted.control.show()["sources"]["a"]["state"] == "paused"
    budgeted.control.resume("a")
    budgeted.control.set("budgets.when_exceeded", "warn")
    for name in "ab":
        limiter = budgeted._assembly.ends[name].execution.limiter
        assert limiter is not None and limiter.bucket is None and limiter.share == 1.0
    before = state_of(budgeted)
    with pytest.raises(ConfigError, match="one of them out"):
        budgeted.control.set("budgets.power", "5W")
    with pytest.raises(ConfigError):
        budgeted.control.set("budgets.latency", "-1s")
    assert state_of(budgeted) == before
    applied(budgeted, pipeline_of("a", "b"))
    assert budgeted.summary().budgets == {}
    budgeted.control.set("budgets.latency", "1s")
    wait_until(lambda: budgets()["governor"]["seconds"])


def test_a_run_without_budgets_is_given_some_and_they_go_again(caplog: pytest.LogCaptureFixture) -> None:
    def governors() -> int:
        return sum(thread.name == "edgert:governor" for thread in threading.enumerate())

    seen = Seen()
    with edgert.Pipeline(pipeline_of("a", "b"), callbacks={"both": seen}) as pipeline:
        assert pipeline.control.set("budgets.latency", "2s")["now"] == "2s"
        assert governors() == 0 and pipeline.summary().budgets["governor"]
        pipeline.start()
        assert governors() == 1
        for power in ("500W", "600W", None):
            pipeline.control.set("budgets.power", power)
        assert caplog.text.count("no power sensor") == str(pipeline.summary().budgets).count("no power sensor") <= 1
        assert pipeline.control.set("budgets.latency", "") == {"key": "budgets.latency", "was": "2s", "now": None}
        assert governors() == 0 and pipeline.summary().budgets == {}
    with edgert.Pipeline(pipeline_of("a", "b"), callbacks={"both": seen}) as pipeline:
        pipeline.start()
        before = state_of(pipeline)
        with pytest.raises(BudgetError, match="no setting keeps the budgets"):
            applied(pipeline, {**pipeline_of("a", "b"), "budgets": NEVER})
        with pytest.raises(BudgetError, match="the pipeline needs up to"):
            pipeline.control.set("budgets.memory", "1MiB")
        assert state_of(pipeline) == before and governors() == 0 and pipeline.summary().budgets == {}
        with Submitters(pipeline, ("a", "b")) as submitters:
            for _ in range(3):
                pipeline.control.set("budgets.when_exceeded", "degrade")
                pipeline.control.set("budgets.cpu", 0.9)
                wait_until(lambda: pipeline.summary().budgets["governor"]["seconds"])
                assert governors() == 1 and pipeline.summary().budgets["used"]["limit"] == 0.9
                pipeline.control.set("budgets.cpu", None)
                limiters = [pipeline._assembly.ends[name].execution.limiter for name in "ab"]
                assert all(one is not None and (one.share, one.bucket) == (1.0, None) for one in limiters)
                assert governors() == 0 and pipeline.summary().budgets == {}
        wait_until(lambda: all(seen.numbers[name] for name in "ab"))
    assert submitters.counts["a"] and governors() == 0


NEVER = {"latency": "1us", "when_exceeded": "degrade"}


def test_budgets_follow_sources_that_come_and_go(budgeted: Pipeline) -> None:
    budgeted.control.add("c", "api")
    buckets = {budgeted._assembly.ends[name].execution.limiter.bucket for name in "abc"}  # type: ignore[union-attr]
    assert len(buckets) == 1 and None not in buckets
    budgeted.control.remove("a")
    budgeted.submit(FRAME, stage="c", timeout=5.0)
    assert sum(thread.name == "edgert:governor" for thread in threading.enumerate()) == 1


def test_what_memory_has_no_room_for_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    roomy = {**pipeline_of("a", "b"), "budgets": {"memory": "8GiB"}}
    with edgert.Pipeline(roomy, callbacks={"both": Seen()}) as pipeline:
        pipeline.start()
        needed = pipeline.summary().budgets["memory"]["most_bytes"]
        with pytest.raises(BudgetError, match="the pipeline needs up to"):
            pipeline.control.set("budgets.memory", "1MiB")
        pipeline.control.set("budgets.memory", f"{needed + 2**20}B")
        before = state_of(pipeline)
        with pytest.raises(BudgetError, match="the budget has"):
            pipeline.control.add("c", "api")
        assert state_of(pipeline) == before
        pipeline.control.remove("b")
        pipeline.control.add("c", "api")
