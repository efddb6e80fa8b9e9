"""Registries: edgert's own kinds, those of other packages, and every way in which one can be wrong."""

from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

import pytest

from edgert.backend import backend
from edgert.board import detect
from edgert.config import SinkStage, SourceStage, TaskConfig, load_pipeline
from edgert.diagnosis import extensions
from edgert.diagnosis.probe import Evidence
from edgert.errors import ConfigError
from edgert.kinds import DECODERS, REGISTRIES, SINKS, Registry
from edgert.runtime import Detections
from edgert.stages.context import Context, make_stage
from edgert.stages.decode.detection import Detector
from edgert.stages.decode.guess import guess
from edgert.stages.decode.kinds import decoder_for
from edgert.stages.source.kinds import is_live, source_for
from edgert.stages.track import Track
from tests.helpers.errors import Exactly, raises
from tests.helpers.frames import detections, frame_of, result_of
from tests.helpers.package import install

SINK = '''
from typing import ClassVar
from edgert.config import OutputPath, SinkStage

class Csv(SinkStage):
    """Comma-separated."""
    takes_images: ClassVar[bool] = False
    shows_images: ClassVar[bool] = False
    path: OutputPath
    delimiter: str = ","

    def make(self, name, context):
        raise AssertionError
'''


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of packages on the path."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    return folder


def pipeline(tmp_path: Path, sink: str) -> Path:
    path = tmp_path / "p.yaml"
    path.write_text(f"stages:\n  cam: {{source: synthetic:noise}}\n  out: {{{sink}, from: cam}}\n")
    return path


def refused(tmp_path: Path, sink: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load_pipeline(pipeline(tmp_path, sink))
    return caught.value


@pytest.mark.parametrize("registry", REGISTRIES, ids=lambda registry: registry.noun)
def test_every_own_kind_has_what_it_needs(registry: Registry) -> None:
    assert [name for name in registry.own if registry.missing(registry.get(name))] == []


def test_a_sink_of_another_package_has_its_keys(site: Path, tmp_path: Path) -> None:
    install(site, "edgert-csv", SINK, {"edgert.sinks": {"csv": "edgert_csv:Csv"}})
    stage = load_pipeline(pipeline(tmp_path, "sink: csv, path: a.csv, delimiter: ';'")).config.stages["out"]
    assert isinstance(stage, SinkStage) and type(stage).__name__ == "Csv" and stage.sink == "csv"
    assert stage.delimiter == ";" and not stage.takes_images  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("sink", "what", "where"),
    [
        ("sink: csv", "stages.out.path is missing", "stages.out.path"),
        ("sink: csv, path: a, delimter: ';'", "unknown key 'delimter'; did you mean 'delimiter'?", "delimter"),
        ("sink: csv, path: a, delimiter: 3", "stages.out.delimiter: cannot use 3", "stages.out.delimiter"),
    ],
)
def test_mistakes_in_its_keys_have_their_line(site: Path, tmp_path: Path, sink: str, what: str, where: str) -> None:
    install(site, "edgert-csv", SINK, {"edgert.sinks": {"csv": "edgert_csv:Csv"}})
    error = refused(tmp_path, sink)
    assert error.what == what and error.where.endswith(where) and "p.yaml:3" in error.where


def test_an_unknown_kind_names_those_of_packages(site: Path, tmp_path: Path) -> None:
    install(site, "edgert-csv", SINK, {"edgert.sinks": {"csv": "edgert_csv:Csv"}})
    error = refused(tmp_path, "sink: cvs, path: a")
    assert error.why.endswith("ros2 or csv; did you mean 'csv'?")


def test_two_packages_with_one_name_are_both_named(site: Path, tmp_path: Path) -> None:
    install(site, "edgert-csv", SINK, {"edgert.sinks": {"csv": "edgert_csv:Csv"}})
    install(site, "other-csv", SINK, {"edgert.sinks": {"csv": "other_csv:Csv"}})
    error = refused(tmp_path, "sink: csv, path: a")
    assert error.what == "sink 'csv' is claimed by 2 packages: edgert-csv 1.0 and other-csv 1.0"
    assert error.where.endswith("p.yaml:3 stages.out.sink")


def test_a_package_cannot_take_a_name_of_edgert(site: Path, tmp_path: Path) -> None:
    install(site, "other-jsonl", SINK, {"edgert.sinks": {"jsonl": "other_jsonl:Csv"}})
    assert "edgert and other-jsonl 1.0" in refused(tmp_path, "sink: jsonl, path: a").what


@pytest.mark.parametrize(
    ("code", "target", "why"),
    [
        ("import nowhere_at_all", "bad:Csv", "ModuleNotFoundError: No module named 'nowhere_at_all'"),
        ("1 / 0", "bad:Csv", "ZeroDivisionError"),
        (SINK, "bad:Cvs", "no attribute 'Cvs'"),
        ("def Csv(): pass", "bad:Csv", "bad:Csv is not a class"),
        ("import numpy; Csv = numpy.arange(3)", "bad:Csv", "bad:Csv is not a class"),
        ("class Csv: pass", "bad:Csv", "has no takes_images: ClassVar[bool]"),
        (SINK.replace("takes_images", "takes_pixels"), "bad:Csv", "has no takes_images: ClassVar[bool]"),
        (SINK.replace("def make", "def male"), "bad:Csv", "has no method make"),
        (
            SINK.replace("(SinkStage)", "").replace("path: O", "model_validate = print; path: O"),
            "bad:Csv",
            "derive from",
        ),
    ],
)
def test_a_kind_that_cannot_be_used_is_refused_at_once(
    site: Path, tmp_path: Path, code: str, target: str, why: str
) -> None:
    install(site, "bad", code, {"edgert.sinks": {"csv": target}})
    error = refused(tmp_path, "sink: csv, path: a")
    assert why in error.why and error.fix and error.where.endswith("stages.out.sink")


def test_a_name_that_no_file_could_tell_from_a_path_is_refused(site: Path) -> None:
    install(site, "edgert-c", SINK, {"edgert.sinks": {"c": "edgert_c:Csv"}})
    with pytest.raises(ConfigError, match="cannot be used"):
        SINKS.get("c")


class TestDoctor:
    def shown(self, tmp_path: Path) -> tuple[str, str, str]:
        found = extensions(Evidence(tmp_path, detect(tmp_path), {}))
        return found.state, found.detail, found.fix

    def test_nothing_is_installed(self, tmp_path: Path) -> None:
        assert self.shown(tmp_path)[0] == "optional"

    def test_what_packages_add(self, site: Path, tmp_path: Path) -> None:
        install(site, "edgert-csv", SINK, {"edgert.sinks": {"csv": "edgert_csv:Csv"}})
        assert self.shown(tmp_path) == ("yes", "sink csv of edgert-csv 1.0", "")

    def test_what_cannot_be_used_and_why(self, site: Path, tmp_path: Path) -> None:
        install(site, "edgert-csv", SINK, {"edgert.sinks": {"csv": "edgert_csv:Csv"}})
        install(site, "other-csv", "import nowhere_at_all", {"edgert.sinks": {"tsv": "other_csv:Csv"}})
        state, detail, fix = self.shown(tmp_path)
        assert state == "optional" and "csv of edgert-csv 1.0;" in detail and fix == "update or uninstall other-csv 1.0"
        assert "tsv of other-csv 1.0, unusable: other_csv:Csv: ModuleNotFoundError" in detail

    def test_names_that_are_claimed_twice(self, site: Path, tmp_path: Path) -> None:
        install(site, "edgert-csv", SINK, {"edgert.sinks": {"csv": "edgert_csv:Csv"}})
        install(site, "other-csv", SINK, {"edgert.sinks": {"csv": "other_csv:Csv"}})
        assert "claimed by 2 packages" in self.shown(tmp_path)[1]


HEAD = '''
from dataclasses import dataclass
from typing import ClassVar
from edgert.stages.decode.guess import Fit

@dataclass(frozen=True)
class Rows:
    """Rows of seven."""
    uncertain: ClassVar[tuple[str, ...]] = ()
    offset: int = 0

    @classmethod
    def fits(cls, look):
        if look.table and look.table[1] == 7:
            yield Fit("rows of seven", 9)

    def class_count(self, shapes, network):
        return None

    def read(self, outputs, network, score):
        raise AssertionError
'''


def task(tmp_path: Path, text: str) -> TaskConfig:
    path = tmp_path / "p.yaml"
    path.write_text(
        f"models:\n  m:\n    onnx: m.onnx\n    task: {{{text}}}\n"
        "stages:\n  cam: {source: synthetic:noise}\n  find: {infer: m, from: cam}\n"
    )
    return load_pipeline(path).config.models["m"].task


class TestDecoders:
    def test_one_of_another_package_is_made_with_its_options(self, site: Path, tmp_path: Path) -> None:
        install(site, "edgert-rows", HEAD, {"edgert.decoders": {"detect.rows": "edgert_rows:Rows"}})
        found = decoder_for(task(tmp_path, "detect: rows, options: {offset: 3}, score: 0.5"), ())
        assert isinstance(found, Detector) and found.score == 0.5
        assert type(found.head).__name__ == "Rows" and found.head.offset == 3  # type: ignore[attr-defined]
        with pytest.raises(ConfigError, match="decoder 'rows' has no option 'ofset'; did you mean 'offset'"):
            decoder_for(task(tmp_path, "detect: rows, options: {ofset: 3}"), ())

    def test_it_is_guessed_like_edgert_s_own(self, site: Path) -> None:
        install(site, "edgert-rows", HEAD, {"edgert.decoders": {"detect.rows": "edgert_rows:Rows"}})
        assert next(str(found) for found in guess([(50, 7)], [], (3, 64, 64), None)) == "detect: rows"

    @pytest.mark.parametrize(
        ("code", "why"),
        [
            (HEAD.replace("def fits", "def suits"), "edgert_rows:Rows has no method fits"),
            (HEAD.replace("uncertain", "unsure"), "edgert_rows:Rows has no uncertain: ClassVar[tuple]"),
            ("import nowhere_at_all", "ModuleNotFoundError"),
        ],
    )
    def test_half_a_decoder_is_refused_when_the_file_is_read(
        self, site: Path, tmp_path: Path, code: str, why: str
    ) -> None:
        install(site, "edgert-rows", code, {"edgert.decoders": {"detect.rows": "edgert_rows:Rows"}})
        with pytest.raises(ConfigError) as caught:
            task(tmp_path, "detect: rows")
        assert why in caught.value.why and caught.value.where.endswith("p.yaml:4 models.m.task.detect")

    def test_a_decoder_serves_its_own_task(self, site: Path, tmp_path: Path) -> None:
        install(site, "edgert-rows", HEAD, {"edgert.decoders": {"detect.rows": "edgert_rows:Rows"}})
        with pytest.raises(ConfigError) as caught:
            task(tmp_path, "keypoints: rows")
        assert (
            caught.value.why
            == "expected yolo-pose, yolov7-pose, heatmap, simcc, movenet, trt-pose, landmarks or keypoint-rcnn"
        )

    def test_two_of_one_name_are_an_error(self, site: Path, tmp_path: Path) -> None:
        install(site, "edgert-rows", HEAD, {"edgert.decoders": {"detect.yolox": "edgert_rows:Rows"}})
        with pytest.raises(ConfigError, match="is claimed by 2 packages: edgert and edgert-rows"):
            task(tmp_path, "detect: yolox")

    def test_doctor_sees_a_name_without_its_task(self, site: Path, tmp_path: Path) -> None:
        install(site, "edgert-rows", HEAD, {"edgert.decoders": {"rows": "edgert_rows:Rows"}})
        found = extensions(Evidence(tmp_path, detect(tmp_path), {}))
        assert found.state == "optional" and "rows of edgert-rows 1.0, unusable: its name is not one of" in found.detail


@pytest.mark.parametrize("registry", DECODERS.values(), ids=lambda registry: registry.task)
def test_every_decoder_is_a_frozen_dataclass(registry: Registry) -> None:
    for name in registry.own:
        kind = registry.get(name)
        assert is_dataclass(kind) and kind.__dataclass_params__.frozen, name  # type: ignore[attr-defined]


TRACKER = """
import numpy as np
from edgert.config import PackageStage, TrackStage

class Counted(TrackStage):
    first: int = 1

    def make(self, name, context):
        return Counter(self.first)

class Counter:
    def __init__(self, first):
        self.next = first

    def update(self, boxes, scores, classes):
        ids = np.arange(self.next, self.next + len(scores))
        self.next += len(scores)
        return ids

class Every(PackageStage):
    takes_images = False
    n: int = 2

    def make(self, name, context):
        return Thinned(self.n)

class Thinned:
    def __init__(self, n):
        self.n = n

    def open(self): pass

    def process(self, result):
        return result if result.frame.index % self.n == 0 else None

    def close(self): pass
"""
POINTS = {"edgert.trackers": {"counted": "mine:Counted"}, "edgert.stages": {"every": "mine:Every"}}


class TestTrackersStagesAndBackends:
    def stage(self, tmp_path: Path, text: str) -> Any:
        path = tmp_path / "p.yaml"
        before = "  cam: {source: synthetic:noise}\n  find: {python: 'm:f', from: cam}\n"
        path.write_text(f"stages:\n{before}  x: {{{text}, from: find}}\n")
        return load_pipeline(path).config.stages["x"]

    def test_a_tracker_of_another_package_numbers_objects(self, site: Path, tmp_path: Path) -> None:
        install(site, "mine", TRACKER, POINTS)
        stage = Track("x", self.stage(tmp_path, "track: counted, first: 7"), Context())
        result = result_of(outputs={"find": detections((0, 0, 9, 9), (3, 3, 6, 6))})
        found = stage.process(result).outputs["x"]
        assert isinstance(found, Detections) and found.ids is not None and found.ids.tolist() == [7, 8]

    def test_a_stage_of_another_package_is_made_with_its_keys(self, site: Path, tmp_path: Path) -> None:
        install(site, "mine", TRACKER, POINTS)
        stage = make_stage(self.stage(tmp_path, "stage: every, n: 3"), "x", Context())
        kept = [n for n in range(7) if stage.process(result_of(frame_of(index=n)))]
        assert kept == [0, 3, 6]

    def test_without_packages_there_are_own_ones_alone(self, tmp_path: Path) -> None:
        with raises(ConfigError, why=Exactly("expected zones, events, privacy, motion or distance")):
            self.stage(tmp_path, "stage: every")
        with raises(ConfigError, why=Exactly("expected bytetrack or botsort; did you mean 'bytetrack'?")):
            self.stage(tmp_path, "track: bytrack")

    def test_a_backend_of_another_package(self, site: Path, tmp_path: Path) -> None:
        code = "class Mine:\n    name = 'mine'\n    def compile(self, model, options): raise AssertionError\n"
        install(site, "mine", code, {"edgert.backends": {"mine": "mine:Mine"}})
        assert backend("mine").name == "mine"
        path = tmp_path / "p.yaml"
        path.write_text(
            "models: {m: {onnx: m.onnx, backend: mine, task: {embed: l2}}}\n"
            "stages: {cam: {source: synthetic:noise}, find: {infer: m, from: cam}}\n"
        )
        assert load_pipeline(path).config.models["m"].backend == "mine"
        path.write_text(path.read_text().replace("backend: mine", "backend: mien"))
        with pytest.raises(ConfigError) as caught:
            load_pipeline(path)
        assert caught.value.why.endswith("null or mine; did you mean 'mine'?")


SOURCE = """
class Gige:
    unused = {"loop": "it has no end"}

    @staticmethod
    def is_live(config):
        return True

    @staticmethod
    def make(name, config, context):
        return name, config.source, config.options
"""


class TestSources:
    def source(self, **keys: Any) -> Any:
        return source_for("cam", SourceStage.model_validate(keys))

    def test_one_of_another_package_has_its_scheme(self, site: Path) -> None:
        install(site, "edgert-gige", SOURCE, {"edgert.sources": {"gige": "edgert_gige:Gige"}})
        found = self.source(source="gige:10.0.0.7", options={"packet": 9000})
        assert found == ("cam", "gige:10.0.0.7", {"packet": 9000})
        assert is_live(SourceStage(source="gige:10.0.0.7"))

    def test_a_key_that_means_nothing_to_it_is_refused(self, site: Path) -> None:
        install(site, "edgert-gige", SOURCE, {"edgert.sources": {"gige": "edgert_gige:Gige"}})
        with raises(ConfigError, "loop: has no meaning for gige", why=Exactly("it has no end")):
            self.source(source="gige:10.0.0.7", loop=True)

    def test_options_are_not_for_edgert_s_own(self) -> None:
        with pytest.raises(ConfigError, match="options: has no meaning for synthetic"):
            self.source(source="synthetic:noise", options={"a": 1})

    def test_an_unknown_scheme_names_those_of_packages(self, site: Path) -> None:
        install(site, "edgert-gige", SOURCE, {"edgert.sources": {"gige": "edgert_gige:Gige"}})
        with pytest.raises(ConfigError, match="did you mean 'gige'"):
            self.source(source="gigee:10.0.0.7")

    def test_a_scheme_of_edgert_cannot_be_taken(self, site: Path) -> None:
        install(site, "edgert-gige", SOURCE, {"edgert.sources": {"rtsp": "edgert_gige:Gige"}})
        with pytest.raises(ConfigError, match="'rtsp' is claimed by 2 packages"):
            self.source(source="rtsp://cam/live")

    def test_half_a_source_is_refused(self, site: Path) -> None:
        code = SOURCE.replace("unused", "unsued")
        install(site, "edgert-gige", code, {"edgert.sources": {"gige": "edgert_gige:Gige"}})
        with raises(ConfigError, why="has no unused: ClassVar[dict]"):
            self.source(source="gige:10.0.0.7")
