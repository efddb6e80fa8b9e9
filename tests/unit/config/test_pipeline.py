import os
from itertools import pairwise
from pathlib import Path

import jsonschema
import pytest
import yaml
from pydantic import ValidationError

from edgert.config import (
    CropConfig,
    CropStage,
    InferStage,
    SinkStage,
    SourceStage,
    TrackStage,
    json_schema,
    load_pipeline,
)
from edgert.installation import data_folder
from edgert.stages.kinds import Video
from tests.helpers.pipeline_text import MINIMAL, WHOLE, pipeline, refused, schema_validator

SHIPPED = sorted(data_folder("pipelines").glob("*.yaml"))


def stages(text: str) -> str:
    return f"stages:\n  cam: {{source: a.mp4}}\n  x: {text}\n"


def model(text: str) -> str:
    return f"models:\n  m: {text}\n{MINIMAL}"


def detector(text: str) -> str:
    return model(f"{{onnx: a, task: {{detect: yolox}}, {text}}}")


def test_a_whole_file(tmp_path: Path) -> None:
    config = pipeline(tmp_path, WHOLE).config
    assert (config.schema_version, config.name, config.board) == (1, "dock-watch", "auto")
    assert (config.budgets.power, config.budgets.memory, config.budgets.latency) == (15.0, 1610612736, 0.06)
    camera, find, read = config.stages["camera"], config.stages["find"], config.stages["read"]
    assert isinstance(camera, SourceStage) and (camera.size, camera.fps) == ((1280, 720), 30)
    assert isinstance(find, InferStage) and find.inputs == ("camera",)
    assert isinstance(read, InferStage) and read.crop == CropConfig(classes=("car", "3"), limit=8)
    part = config.stages["part"]
    assert isinstance(part, CropStage) and part.crop == (0, 0, 0.5, 1)
    assert isinstance(config.stages["track"], TrackStage)
    nothing = config.stages["nothing"]
    assert isinstance(nothing, SinkStage) and nothing.sink == "null"
    assert config.models["parts"].input.std == (255.0,)


def test_a_pipeline_without_a_name_has_that_of_its_file(tmp_path: Path) -> None:
    assert pipeline(tmp_path).config.name == "p"
    assert pipeline(tmp_path, MINIMAL, "name=yard").config.name == "yard"
    strange = tmp_path / os.fsdecode(b"caf\xe9.v2.yaml")  # Latin-1, which is not UTF-8
    strange.write_text(MINIMAL)
    assert load_pipeline(strange).config.name == "caf?.v2"


def test_paths_are_relative_to_the_file_and_outputs_to_the_reader(tmp_path: Path) -> None:
    config = pipeline(tmp_path, WHOLE).config
    assert config.models["parts"].onnx == tmp_path / "assets/parts.onnx"
    assert config.models["plates"].onnx == Path("/models/plates.onnx")
    video = config.stages["video"]
    assert isinstance(video, Video) and video.path == Path("out/dock.mp4")


def test_a_checked_file_is_frozen(tmp_path: Path) -> None:
    config = pipeline(tmp_path, WHOLE).config
    with pytest.raises(ValidationError, match="frozen"):
        config.name = "other"


MISTAKES = [
    ("modles: {}\n" + MINIMAL, "unknown key 'modles'; did you mean 'models'?", ":1 modles"),
    (stages("{infer: m, form: cam}"), "unknown key 'form'; did you mean 'from'?", ":3 stages.x.form"),
    (stages("{sink: http, from: cam, prot: 80}"), "unknown key 'prot'; did you mean 'port'?", ":3 stages.x.prot"),
    (
        model("{onnx: a, task: {detect: yolox, scroe: 1}}"),
        "unknown key 'scroe'; did you mean 'score'?",
        ":2 models.m.task.scroe",
    ),
    (detector("input: {resise: none}"), "unknown key 'resise'; did you mean 'resize'?", ":2 models.m.input.resise"),
    (stages("{crop: {limti: 3}, from: cam}"), "unknown key 'limti'; did you mean 'limit'?", ":3 stages.x.crop.limti"),
    (stages("{sink: http, inputs: cam}"), "unknown key 'inputs'", ":3 stages.x.inputs"),
    ("schema_version: 1\n" + MINIMAL, "unknown key 'schema_version'; did you mean 'schema'?", ":1 schema_version"),
    ("schema: 2\n" + MINIMAL, "schema: cannot use 2", ":1 schema"),
    ("name: 5\n" + MINIMAL, "name: cannot use 5", ":1 name"),
    ("name: ''\n" + MINIMAL, "name: cannot use ''", ":1 name"),
    ("budgets: 15W\n" + MINIMAL, "budgets: cannot use '15W'", ":1 budgets"),
    ("budgets: {power: 15}\n" + MINIMAL, "budgets.power: cannot use 15", ":1 budgets.power"),
    ("budgets: {latency: 60}\n" + MINIMAL, "budgets.latency: cannot use 60", ":1 budgets.latency"),
    (
        detector("tensorrt: {optimization: 6}"),
        "models.m.tensorrt.optimization: cannot use 6",
        ":2 models.m.tensorrt.optimization",
    ),
    (
        detector("tensorrt: {worspace: 1MiB}"),
        "unknown key 'worspace'; did you mean 'workspace'?",
        ":2 models.m.tensorrt.worspace",
    ),
    ("stages: []\n", "stages: expected keys, each with a value", ":1 stages"),
    ("stages: {}\n", "stages: expected entries, at least 1; got 0", ":1 stages"),
    ("name: x\n", "stages is missing", ":1 stages"),
    (stages("{sink: jsonl, path: o}"), "stages.x.from is missing", ":3 stages.x.from"),
    (stages("{sink: jsonl, from: [], path: o}"), "stages.x.from: ", ":3 stages.x.from"),
    (stages("{sink: jsnl, from: cam}"), "stages.x.sink: cannot use 'jsnl'", ":3 stages.x.sink"),
    (stages("{track: sort, from: cam}"), "stages.x.track: cannot use 'sort'", ":3 stages.x.track"),
    (stages("{python: f, from: cam}"), "stages.x.python: cannot use 'f'", ":3 stages.x.python"),
    (stages("{source: b, fps: 0}"), "stages.x.fps: cannot use 0", ":3 stages.x.fps"),
    (stages("{source: b, size: 640}"), "stages.x.size: cannot use 640", ":3 stages.x.size"),
    (stages("{source: b, timeout: 5}"), "stages.x.timeout: cannot use 5", ":3 stages.x.timeout"),
    (stages("{source: b, queue: 0}"), "stages.x.queue: cannot use 0", ":3 stages.x.queue"),
    (stages("{source: b, loop: maybe}"), "stages.x.loop: cannot use 'maybe'", ":3 stages.x.loop"),
    (stages("{source: ''}"), "stages.x.source: cannot use ''", ":3 stages.x.source"),
    (stages("{crop: [10, 20, 300, 400], from: cam}"), "stages.x.crop: expected [x1, y1, x2, y2]", ":3 stages.x.crop"),
    (stages("{crop: [0, 0, 1], from: cam}"), "stages.x.crop: expected [x1, y1, x2, y2]", ":3 stages.x.crop"),
    (stages("{infer: m, from: cam, tiles: 2}"), "stages.x.tiles: ", ":3 stages.x.tiles"),
    (
        stages("{infer: m, from: cam, tiles: {grid: 2x2, overlp: 0.1}}"),
        "unknown key 'overlp'; did you mean 'overlap'?",
        ":3 stages.x.tiles",
    ),
    (
        stages("{infer: m, from: cam, tiles: {grid: 2x2, overlap: 0.7}}"),
        "stages.x.tiles.overlap: cannot use 0.7",
        ":3 stages.x.tiles",
    ),
    (stages("{crop: all, from: cam}"), "stages.x.crop: cannot use 'all'", ":3 stages.x.crop"),
    (stages("{infre: m, from: cam}"), "stages.x does nothing: no verb among its keys; did you mean 'infer'?", ":3"),
    (stages("{track: bytetrack, draw: boxes, from: cam}"), "stages.x has 2 verbs, track and draw", ":3 stages.x"),
    (stages("[cam]"), "stages.x expected a mapping with one of source", ":3 stages.x"),
    (stages(""), "stages.x expected a mapping with one of source", ":3 stages.x"),
    ("stages: {a b: {source: x}}\n", "stages.a b: cannot use 'a b'", ":1 stages.a b"),
    (model("{onnx: a}"), "models.m.task is missing", ":2 models.m.task"),
    (model("{task: {detect: yolox}}"), "models.m.onnx is missing", ":2 models.m.onnx"),
    (model("{onnx: 5, task: {detect: yolox}}"), "models.m.onnx: cannot use 5", ":2 models.m.onnx"),
    (model("{onnx: a, task: detect}"), "models.m.task expected a mapping with one of detect", ":2 models.m.task"),
    (model("{onnx: a, task: {detect: yolo99}}"), "models.m.task.detect: cannot use 'yolo99'", ":2 models.m.task"),
    (model("{onnx: a, task: {detect: yolox, score: 1.5}}"), "models.m.task.score: cannot use 1.5", ":2 models.m"),
    (
        detector("input: {shape: {N: [0, 1, 4]}}"),
        "models.m.input.shape.N: expected one size, or [smallest, usual, largest]",
        ":2 models.m.input.shape.N",
    ),
    (
        detector("input: {shape: {H: [320, 480]}}"),
        "models.m.input.shape.H: expected one size, or [smallest, usual, largest]",
        ":2 models.m.input.shape.H",
    ),
    (detector("input: {shape: {height: 480}}"), "unknown key 'height'", ":2 models.m.input.shape.height"),
    (detector("placement: dal"), "models.m.placement: cannot use 'dal'", ":2 models"),
    (detector("placement: {a: 3}"), "models.m.placement.a: cannot use 3", ":2 models"),
    (detector("threads: 0"), "models.m.threads: cannot use 0", ":2 models.m.threads"),
    (
        "engines: [tensort, onnxruntime]\n" + MINIMAL,
        "engines: unknown engine 'tensort'; did you mean 'tensorrt'?; known: tensorrt-dla, tensorrt",
        ":1 engines",
    ),
    ("engines: 3\n" + MINIMAL, "engines: cannot use 3", ":1 engines"),
    ("engines: []\n" + MINIMAL, "engines: no engine would run the models", ":1 engines"),
    ("engines: {tensorrt: 1}\n" + MINIMAL, "engines: expected a list of engines", ":1 engines"),
    (stages("{sink: http}"), "stages.x.from is missing", ":3 stages.x.from"),
]
"""A file, the beginning of what is said, and where: each is a mistake to the JSON schema, too."""
MISTAKES_TO_THE_LOADER = [
    ("budgets: {memory: 1.5G}\n" + MINIMAL, "budgets.memory: cannot use '1.5G'", ":1 budgets.memory"),
    (
        detector("tensorrt: {dla_sram: 1MB}"),
        "models.m.tensorrt.dla_sram: cannot use '1MB'",
        ":2 models.m.tensorrt.dla_sram",
    ),
    (stages("{sink: jsonl, from: cam}"), "stages.x.path is missing", ":3 stages.x.path"),
    (stages("{draw: boxen, from: cam}"), "stages.x: cannot draw 'boxen'", ":3 stages.x"),
    (stages("{source: b, fps: .nan}"), "stages.x.fps: cannot use nan", ":3 stages.x.fps"),
    (stages("{crop: [0.5, 0, 0.5, 1], from: cam}"), "stages.x.crop: expected", ":3 stages.x.crop"),
    (stages("{infer: m, from: cam, tiles: 2by2}"), "stages.x.tiles: cannot use '2by2'", ":3 stages.x.tiles"),
    (stages("{infer: m, from: cam, tiles: 1x1}"), "stages.x.tiles: cannot use '1x1'", ":3 stages.x.tiles"),
    (stages("{infer: m, from: cam, tiles: 2x2, crop: {}}"), "stages.x: tiles cannot go with crop", ":3 stages.x"),
    (
        "models: {m: {onnx: a, task: {classify: auto}}}\n" + stages("{infer: m, from: cam, tiles: 2x2}"),
        "stage 'x' cannot run 'm' on tiles",
        ":4 stages.x.tiles",
    ),
    (
        "models: {m: {onnx: a, task: {detect: yolov8-seg}}}\n" + stages("{infer: m, from: cam, tiles: 2x2}"),
        "stage 'x' cannot run 'm' on tiles",
        ":4 stages.x.tiles",
    ),
    (detector("input: {std: 0}"), "models.m.input: std is divided by", ":2 models.m"),
    (
        detector("input: {shape: {H: [640, 480, 320]}}"),
        "models.m.input.shape.H: expected [smallest, usual, largest] in that order",
        ":2 models.m.input.shape.H",
    ),
    (
        detector("input: {size: 640x480, shape: {H: 480}}"),
        "models.m.input: size and shape both set height or width",
        ":2 models.m.input",
    ),
    (
        detector("input: {shape: {N: 2}}, profiles: {a: {x: [1, 3, 8, 8]}}"),
        "models.m: profiles and input.shape both set the input's sizes",
        ":2 models.m",
    ),
    (detector("input: {mean: [1, 2]}"), "models.m.input: mean needs 1 or 3", ":2"),
    (detector("input: {mean: .inf}"), "models.m.input.mean: cannot use inf", ":2"),
    ("engines: [tensorrt, tensorrt]\n" + MINIMAL, "engines: an engine is listed twice: tensorrt", ":1 engines"),
]
"""As :data:`MISTAKES`, but the JSON schema cannot express what is wrong."""


@pytest.mark.parametrize(("text", "what", "where"), [*MISTAKES, *MISTAKES_TO_THE_LOADER])
def test_a_mistake_is_told_with_its_line(tmp_path: Path, text: str, what: str, where: str) -> None:
    error = refused(tmp_path, text)
    assert error.what.startswith(what), str(error)
    assert f"p.yaml{where}" in error.where
    assert not error.others, str(error)


def test_one_engine_is_a_chain_too(tmp_path: Path) -> None:
    for text, chain in (("engines: tensorrt\n", ("tensorrt",)), ("engines: [tensorrt]\n", ("tensorrt",)), ("", ())):
        assert pipeline(tmp_path, text + MINIMAL).config.engines == chain


def test_mistakes_of_several_sections_are_told_at_once(tmp_path: Path) -> None:
    error = refused(tmp_path, "budgets: {power: 15}\nstages: {cam: {source: a, fps: -1}, b: {sorce: x}}\n")
    assert [error.where.split(" ")[1], *(other.where.split(" ")[1] for other in error.others)] == [
        "budgets.power",
        "stages.cam.fps",
        "stages.b",
    ]


class TestFlow:
    @pytest.mark.parametrize(
        ("text", "what"),
        [
            (
                stages("{sink: http, from: cma}"),
                "stage 'x' listens to 'cma', which is not a stage; did you mean 'cam'?",
            ),
            (stages("{python: 'm:f', from: x}"), "stages form a cycle: x → x"),
            (stages("{sink: http, from: [cam, cam]}"), "stage 'x' listens to one stage twice"),
            (stages("{infer: m, from: cam}"), "stage 'x' runs model 'm', which is not among models"),
            (stages("{crop: {limit: 3}, from: cam}"), "stage 'x' crops detections, but no stage before it detects"),
            (stages("{infer: m, crop: {limit: 3}, from: cam}"), "stage 'x' runs model 'm'"),
            (
                "stages: {a: {sink: http, from: b}, b: {sink: http, from: a}}\n",
                "stage 'a' listens to 'b', which is a sink",
            ),
        ],
    )
    def test_what_cannot_flow(self, tmp_path: Path, text: str, what: str) -> None:
        error = refused(tmp_path, text)
        assert error.what.startswith(what)
        assert "stages." in error.where

    def test_a_cycle_is_drawn(self, tmp_path: Path) -> None:
        text = "stages:\n  s: {source: a}\n  a: {python: 'm:f', from: [s, c]}\n  b: {python: 'm:f', from: a}\n"
        error = refused(tmp_path, text + "  c: {python: 'm:f', from: b}\n")
        ring = error.what.removeprefix("stages form a cycle: ").split(" → ")
        assert ring[0] == ring[-1] and sorted(ring[1:]) == ["a", "b", "c"]
        listens = {"a": "c", "b": "a", "c": "b"}
        assert all(listens[after] == before for before, after in pairwise(ring))

    def test_a_source_is_needed(self, tmp_path: Path) -> None:
        assert "cycle" in refused(tmp_path, "stages: {a: {python: 'm:f', from: a}}\n").what

    def test_a_mapping_that_shares_a_name_is_refused_before_it_is_lost(self, tmp_path: Path) -> None:
        assert "'cam' is written twice" in refused(tmp_path, MINIMAL + "  cam: {source: b.mp4}\n").what

    @pytest.mark.parametrize("stage", ["{track: bytetrack, from: b}", "{crop: {limit: 3}, from: b}"])
    def test_what_has_no_boxes_is_not_tracked(self, tmp_path: Path, stage: str) -> None:
        text = "models:\n  roads: {onnx: m.onnx, task: {segment: argmax}}\n"
        text += "  poses: {onnx: m.onnx, task: {keypoints: heatmap}}\n"
        text += "stages:\n  cam: {source: a.mp4}\n  a: {infer: roads, from: cam}\n"
        error = refused(tmp_path, text + f"  b: {{python: 'm:f', from: cam}}\n  x: {stage.replace('b}', 'a}')}\n")
        assert "'x'" in error.what and "no stage before it detects anything" in error.what
        assert error.why == "'roads' is for segment" and "detect or keypoints" in error.fix
        for before in ("{python: 'm:f', from: cam}", "{infer: poses, from: a}"):
            pipeline(tmp_path, text + f"  b: {before}\n  x: {stage}\n")

    def test_crops_may_follow_a_users_stage(self, tmp_path: Path) -> None:
        text = stages("{python: 'm:f', from: cam}") + "  y: {crop: {limit: 2}, from: x}\n"
        assert isinstance(pipeline(tmp_path, text).config.stages["y"], CropStage)


class TestSchema:
    """What an editor says of a file must be what edgert says of it."""

    @pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
    def test_takes_what_is_shipped(self, path: Path) -> None:
        schema_validator().validate(yaml.safe_load(path.read_text()))

    @pytest.mark.parametrize("text", [MINIMAL, WHOLE])
    def test_takes_good_files(self, text: str) -> None:
        schema_validator().validate(yaml.safe_load(text))

    @pytest.mark.parametrize("text", [text for text, *_ in MISTAKES])
    def test_refuses_what_is_refused(self, text: str) -> None:
        with pytest.raises(jsonschema.ValidationError):
            schema_validator().validate(yaml.safe_load(text))

    def test_names_every_key_that_the_loader_knows(self) -> None:
        definitions = json_schema()["$defs"]
        assert set(definitions["SinkStage"]["properties"]) >= {"sink", "from", "path", "fps", "queue", "drop", "python"}
        assert "inputs" not in definitions["SinkStage"]["properties"]
        assert definitions["InferStage"]["required"] == ["from", "infer"]
