"""What is known of a model before it runs: its file, files beside it, its family."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from pydantic import TypeAdapter

from edgert.config import InputConfig, ModelConfig, TaskConfig, load_pipeline
from edgert.config.model_section import value_of
from edgert.errors import ConfigError, ModelError
from edgert.graph import load
from edgert.stages.decode.kinds import labels_of
from edgert.wiring.exporter_metadata import DeclaredSettings as Declared, declared_settings
from edgert.wiring.inferred import infer
from edgert.wiring.known import FAMILIES
from edgert.wiring.prior import FAMILY, FILE, USUAL, declared_options, declared_task, named_family, prior_of
from edgert.wiring.settings import IMAGENET_MEAN, IMAGENET_STD, Setting, differs
from edgert.wiring.starter import starter
from tests.helpers.models import constant, node, save

YOLO = {"author": "Ultralytics"}
YOLOS = "Ultralytics YOLO (v8, 11, 12, 26)"
ULTRALYTICS = {"author": "Ultralytics", "task": "detect", "imgsz": "[320, 640]", "names": "{0: 'cat', 1: 'dog'}"}


def task(**keys: str) -> TaskConfig:
    made: TaskConfig = TypeAdapter(TaskConfig).validate_python(keys)
    return made


def saved(path: Path, shape: tuple[int | str, ...], out: tuple[int, ...], **metadata: str) -> Path:
    """A model of zeros with these outputs."""
    nodes = [
        node("ReduceMean", ["images"], ["one"], keepdims=0),
        node("ConstantOfShape", ["size"], ["zeros"]),
        node("Add", ["zeros", "one"], ["output0"]),
    ]
    return save(path, nodes, {"images": shape}, {"output0": out}, {"size": np.array(out)}, **metadata)


def test_every_family_has_a_source_and_an_input_that_can_be() -> None:
    for family in FAMILIES:
        assert family.source.startswith("https://"), family.name
        InputConfig.model_validate(family.input)
        for decoder in (*family.reads, *family.tasks.values()):
            verb, _, value = decoder.partition(": ")
            assert task(**{verb: value})
    assert len({family.name for family in FAMILIES}) == len(FAMILIES)


def test_a_starter_is_what_its_exporter_says(tmp_path: Path) -> None:
    path = saved(tmp_path / "m.onnx", ("b", 3, "h", "w"), (1, 6, 4200), **ULTRALYTICS)
    text = starter(path, directory=tmp_path).text
    for line in ("detect: yolov8", "size: 640x320", "resize: letterbox", "color: rgb", "std: 255", "cat, dog"):
        assert line in text, text
    assert "the metadata in the file name the task" in text and "add labels" not in text


@pytest.mark.parametrize(
    ("shape", "names", "written"),
    [
        ((1, 84, 8400), {}, "labels: coco"),
        ((1, 116, 8400), {}, ""),  # as many classes without masks are no 80
        ((1, 85, 8400), {}, ""),
        ((1, 84, 8400), {"names": str(dict(enumerate("ab" * 40)))}, ""),
        ((1, 1000), {}, "labels: imagenet"),
        ((1, 1001), {}, ""),
    ],
)
def test_classes_that_nobody_named_are_those_of_the_usual_data_set(
    tmp_path: Path, shape: tuple[int, ...], names: dict[str, str], written: str
) -> None:
    made = starter(saved(tmp_path / "m.onnx", (1, 3, 640, 640), shape, **names), directory=tmp_path)
    assert ("labels: " in made.text.partition("task:")[2].partition("#")[0]) is bool(written)
    assert written in made.text and ("classes are probably" in made.text) is bool(written)
    assert any(note.startswith(written) and "probably" in note for note in made.notes) or not written
    made.write(tmp_path / "p.yaml", force=False)  # which loads it


def test_an_oriented_head_is_read_as_its_exporter_says_and_not_as_classes(tmp_path: Path) -> None:
    path = saved(tmp_path / "m.onnx", (1, 3, 64, 64), (1, 7, 84), **{**ULTRALYTICS, "task": "obb"})
    assert "detect: yolov8-obb" in starter(path, directory=tmp_path).text


def test_metadata_that_contradict_the_graph_are_named_and_left_out(tmp_path: Path) -> None:
    path = saved(tmp_path / "m.onnx", (1, 3, 64, 64), (1, 6, 84), **{**ULTRALYTICS, "task": "segment"})
    made = starter(path, directory=tmp_path)
    assert "detect: yolov8" in made.text
    assert any("contradicts its outputs" in note for note in made.notes)


def test_a_model_of_integers_is_told_to_be_none_for_tensorrt(tmp_path: Path) -> None:
    path = saved(tmp_path / "m.onnx", (1, 3, 8, 8), (1, 5))
    model = onnx.load(path)
    node = onnx.NodeProto(op_type="DynamicQuantizeLinear", input=["images"], output=["q", "s", "z"])
    model.graph.node.insert(0, node)
    onnx.save(model, path)
    notes = starter(path, directory=tmp_path).notes
    assert any("TensorRT has no DynamicQuantizeLinear" in note and "float model is wanted" in note for note in notes)


@pytest.mark.parametrize("name", ["text_features", "prompt", "point_coords"])
def test_a_prompt_without_its_encoder_is_named(name: str, tmp_path: Path) -> None:
    path = saved(tmp_path / "m.onnx", (1, 3, 8, 8), (1, 5))
    model = onnx.load(path)
    prompt = model.graph.input.add()
    prompt.CopyFrom(model.graph.input[0])
    prompt.name = name
    del prompt.type.tensor_type.shape.dim[2:]
    onnx.save(model, path)
    with pytest.raises(ModelError, match=f"needs a prompt besides the image: input '{name}'") as caught:
        starter(path, directory=tmp_path)
    assert f"{name} [1, 3]" in caught.value.why and "set_classes" in caught.value.fix
    model.graph.input[1].name = "scale"
    onnx.save(model, path)
    with pytest.raises(ModelError, match="one image and nothing else"):
        starter(path, directory=tmp_path)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        (
            "preprocessor_config.json",
            json.dumps({"image_mean": [0.5] * 3, "image_std": [0.5] * 3, "size": {"height": 224, "width": 224}}),
            {"resize": "stretch", "color": "rgb", "mean": (127.5,) * 3, "std": (127.5,) * 3},
        ),
        (
            "inference.yml",
            "PreProcess:\n  transform_ops:\n  - DecodeImage: {img_mode: BGR}\n  - NormalizeImage:\n"
            "      {mean: [0.5, 0.5, 0.5], std: [0.5, 0.5, 0.5], scale: 1./255.}\n",
            {"color": "bgr", "mean": (127.5,) * 3, "std": (127.5,) * 3},
        ),
        (
            "infer_cfg.yml",
            "Preprocess:\n- {type: Resize, keep_ratio: false, target_size: [640, 640]}\n"
            "- {type: NormalizeImage, is_scale: true, norm_type: none, mean: [0, 0, 0], std: [1, 1, 1]}\n"
            "label_list: [a, b]\n",
            {"resize": "stretch", "color": "rgb", "mean": (0.0,), "std": (255.0,)},
        ),
        (
            "nvinfer_config.txt",
            "[property]\nnet-scale-factor=0.0039215697906911373\noffsets=0;0;0\nmodel-color-format=0\n",
            {"resize": "stretch", "color": "rgb", "mean": (0.0,) * 3, "std": (254.9999,)},
        ),
        (
            "inference_config.json",
            json.dumps(
                {
                    "network_input": {
                        "color_mode": "rgb",
                        "resize_mode": "letterbox",
                        "padding_value": 114,
                        "training_input_size": {"height": 8, "width": 8},
                        "scaling_factor": 255,
                        "normalization": [[0.5] * 3, [0.25] * 3],
                    }
                }
            ),
            {
                "resize": "letterbox",
                "anchor": "center",
                "pad": 114,
                "color": "rgb",
                "mean": (127.5,) * 3,
                "std": (63.75,) * 3,
            },
        ),
        (
            "inference_config.json",
            json.dumps({"network_input": {"color_mode": "bgr", "resize_mode": "fit-longer-edge"}}),
            {"color": "bgr", "mean": (0.0,), "std": (1.0,)},
        ),
        (
            "config.json",
            json.dumps({"pretrained_cfg": {"mean": [0.5] * 3, "std": [0.5] * 3, "crop_pct": 0.9}}),
            {"color": "rgb", "mean": (127.5,) * 3, "std": (127.5,) * 3, "resize": "center_crop", "crop": 0.9},
        ),
        (
            "config.json",
            json.dumps({"pretrained_cfg": {"mean": [0.5] * 3, "std": [0.5] * 3, "crop_mode": "squash"}}),
            {"color": "rgb", "mean": (127.5,) * 3, "std": (127.5,) * 3, "resize": "stretch"},
        ),
        ("config.json", json.dumps({"architectures": ["ViT"]}), {}),
        ("inference_config.json", "[]", {}),
        ("preprocessor_config.json", "{", {}),
        ("preprocessor_config.json", "[" * 100_000, {}),
        ("config.json", json.dumps({"pretrained_cfg": {"mean": [10**400], "std": [1.0]}}), {}),
        ("preprocessor_config.json", "[]", {}),
        ("inference.yml", "a: [", {}),
        ("inference.yml", "PreProcess: {transform_ops: [3, {NormalizeImage: 4}]}", {}),
        ("nvinfer_config.txt", "net-scale-factor=much", {}),
    ],
)
def test_files_beside_the_model_state_its_input(
    name: str, text: str, expected: dict[str, object], tmp_path: Path
) -> None:
    path = saved(tmp_path / "m.onnx", (1, 3, 8, 8), (1, 5))
    (tmp_path / name).write_text(text)
    declared = declared_settings(load(path))
    assert declared.input == expected
    prior = prior_of(declared, task(classify="auto"), ["images"], ["output0"])
    assert (prior.margin == FILE) == bool(expected)


@pytest.mark.parametrize(
    ("files", "names"),
    [
        ({"config.json": json.dumps({"id2label": {"1": "dog", "0": "cat"}})}, ("cat", "dog")),
        ({"inference_config.json": "{}", "class_names.txt": "cat\nbig dog\n"}, ("cat", "big dog")),
        ({"class_names.txt": "of\nanother\nmodel\n"}, ()),
        ({"config.json": json.dumps({"id2label": {"0": "cat", "5": "dog"}})}, ()),
        ({"config.json": "{"}, ()),
    ],
)
def test_names_of_classes_that_stand_beside_the_model(
    files: dict[str, str], names: tuple[str, ...], tmp_path: Path
) -> None:
    path = saved(tmp_path / "m.onnx", (1, 3, 8, 8), (1, 2))
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    declared = declared_settings(load(path))
    assert (declared.labels, declared.named_beside) == (names, bool(names))


def test_labels_that_stand_beside_the_model_are_written_beside_the_pipeline(tmp_path: Path) -> None:
    path = saved(tmp_path / "m.onnx", (1, 3, 64, 64), (1, 6, 84))
    (tmp_path / "config.json").write_text(json.dumps({"id2label": {"0": "cat", "1": "big dog"}}))
    made = starter(path, directory=tmp_path)
    assert made.write(tmp_path / "p.yaml", force=False) == (tmp_path / "p.yaml", tmp_path / "m_labels.txt")
    config = load_pipeline(tmp_path / "p.yaml").config.models["net"]
    assert labels_of(config) == ("cat", "big dog")
    with pytest.raises(ConfigError, match=r"m_labels\.txt' exists already"):
        made.write(tmp_path / "other.yaml", force=False)
    (tmp_path / "config.json").write_text(json.dumps({"id2label": {"0": "cat", "1": "dog", "2": "of another model"}}))
    assert "labels: m_labels" not in starter(path, directory=tmp_path).text


@pytest.mark.parametrize(("text", "labels"), [("a\nb\n\u3000", ("a", "b", "\u3000")), ("mario", ()), ("", ())])
def test_characters_that_stand_in_a_text_model(text: str, labels: tuple[str, ...], tmp_path: Path) -> None:
    path = saved(tmp_path / "m.onnx", (1, 3, 32, 64), (1, 16, 5), **({"character": text} if text else {}))
    assert declared_settings(load(path)).labels == labels
    config = ModelConfig.model_validate({"onnx": path, "task": {"text": "ctc"}})
    assert labels_of(config) == labels


def test_the_model_api_of_openvino(tmp_path: Path) -> None:
    info = {"mean_values": "123.675 116.28 103.53", "scale_values": "58.395 57.12 57.375", "labels": "a b_c",
            "reverse_input_channels": "True", "resize_type": "fit_to_window_letterbox", "pad_value": "114"}  # fmt: skip
    path = saved(tmp_path / "m.onnx", (1, 3, 8, 8), (1, 5), **{f"model_info {key}": text for key, text in info.items()})
    declared = declared_settings(load(path))
    letterbox = {"resize": "letterbox", "anchor": "center", "pad": 114}
    assert declared.input == {"color": "rgb", "mean": IMAGENET_MEAN, "std": IMAGENET_STD, **letterbox}
    assert declared.labels == ("a", "b_c")


@pytest.mark.parametrize(
    ("declared", "read", "outputs", "family", "margin"),
    [
        (Declared(), {"detect": "yolox"}, ["output"], "YOLOX", FAMILY),
        (Declared(YOLO), {"detect": "yolov8"}, ["output0"], YOLOS, FILE),
        (Declared({**YOLO, "task": "classify"}), {"classify": "auto"}, ["output0"], "Ultralytics YOLO classifier", FILE),  # noqa: E501
        (Declared({"stride": "32", "names": "['a']"}), {"detect": "yolov5"}, ["output0"], "YOLOv5", FILE),
        (Declared(), {"detect": "detr"}, ["dets", "labels"], "RF-DETR", FAMILY),
        (Declared(), {"detect": "detr"}, ["labels", "boxes", "scores"], "RT-DETR, D-FINE, DEIM", FAMILY),
        (Declared(producer="pytorch"), {"classify": "softmax"}, ["y"], "torchvision and timm classifiers", USUAL),
        (Declared(producer="tf2onnx"), {"segment": "argmax"}, ["ResizeBilinear_3"], "DeepLab by TensorFlow", FAMILY),
    ],
)  # fmt: skip
def test_families_are_known_by_what_is_theirs(
    declared: Declared, read: dict[str, str], outputs: list[str], family: str, margin: float
) -> None:
    prior = prior_of(declared, task(**read), ["images"], outputs)
    assert prior.family is not None and (prior.family.name, prior.margin) == (family, margin)
    assert prior.family.source in prior.source


def test_nothing_is_known_of_outputs_that_anybody_could_have_made() -> None:
    assert prior_of(Declared(producer="mine"), task(classify="auto"), ["x"], ["y"]).margin == 0


def test_conventions_of_placement_hold_whoever_exported_the_model() -> None:
    prior = prior_of(Declared(producer="mine"), task(classify="auto"), ["x"], ["y"], 1000)
    assert (prior.margin, prior.placed, prior.input) == (0, FAMILY, {"resize": "center_crop", "crop": 0.875})
    stretched = Setting(InputConfig(resize="stretch"), task(classify="auto"))
    assert prior.against(stretched) == FAMILY
    caffe = prior_of(Declared(producer="onnx-caffe2"), task(classify="auto"), ["x"], ["y"], 1000)
    assert (caffe.margin, caffe.placed, caffe.input["color"]) == (USUAL, FAMILY, "bgr")
    assert prior_of(Declared(), task(classify="auto"), ["x"], ["y"], 12).placed == 0
    assert prior_of(Declared(), task(embed="l2"), ["x"], ["y"], 512).placed == 0  # faces are cut out in other ways
    assert prior_of(Declared(), task(embed="l2"), ["x"], ["y"], 512, tall=True).input == {"resize": "stretch"}


def test_names_of_inputs_and_outputs_show_what_shapes_do_not(tmp_path: Path) -> None:
    named = [(["x"], ["sigmoid_0.tmp_0"]), (["x"], ["softmax_11.tmp_0"]), (["pixel_values"], ["logits", "pred_boxes"])]
    found = [family.reads[0] for ends in named if (family := named_family(*ends)) is not None]
    assert found == ["detect: db", "text: ctc", "detect: detr"]
    assert named_family(["images"], ["sigmoid_0.tmp_0"]) is None
    path = saved(tmp_path / "m.onnx", (1, 3, 64, 64), (1, 1, 64, 64))
    model = onnx.load(path)
    model.graph.input[0].name = model.graph.node[0].input[0] = "x"
    model.graph.output[0].name = model.graph.node[2].output[0] = "sigmoid_0.tmp_0"
    onnx.save(model, path)
    assert "detect: db" in starter(path, directory=tmp_path).text


@pytest.mark.parametrize(
    ("shapes", "name", "drawn"),
    [
        (((1, 38, 84), (1, 32, 16, 16)), "output0", "[boxes, masks, labels]"),
        (((1, 6, 84),), "output0", "[boxes, labels]"),
        (((1, 1, 64, 64),), "depth", "masks"),
        (((1, 1, 64, 64), (1,)), "anomaly_map", "[masks, labels]"),
        (((1, 5),), "logits", "labels"),
    ],
)
def test_what_a_model_finds_is_drawn(
    shapes: tuple[tuple[int, ...], ...], name: str, drawn: str, tmp_path: Path
) -> None:
    outputs = {name if not place else f"more{place}": np.zeros(shape, np.float32) for place, shape in enumerate(shapes)}
    onnx.save(constant(outputs).proto, tmp_path / "m.onnx")
    assert f"paint: {{draw: {drawn}, from: see}}" in starter(tmp_path / "m.onnx", directory=tmp_path).text


def test_the_task_of_the_metadata() -> None:
    pose = {"author": "Ultralytics", "task": "pose"}
    assert str(declared_task(Declared(pose))) == "keypoints: yolo-pose"
    final = {"author": "Ultralytics", "task": "detect", "end2end": "True"}
    assert str(declared_task(Declared(final))) == "detect: yolov10"
    assert declared_task(Declared({"task": "detect"})) is None


@pytest.mark.parametrize(
    ("shape", "labels", "options"),
    [
        ("[17, 3]", ("person",), {}),
        ("[12, 2]", ("tiger",), {"dims": 2}),
        ("(4, 2)", ("a", "b"), {"classes": 2, "dims": 2}),
        ("[12", ("tiger",), {}),
    ],
)
def test_metadata_of_a_pose_say_how_many_numbers_a_point_has(
    shape: str, labels: tuple[str, ...], options: dict[str, int]
) -> None:
    found = declared_task(Declared({"author": "Ultralytics", "task": "pose", "kpt_shape": shape}, labels=labels))
    assert found is not None and found.options == options


RT_DETR = {"author": "Ultralytics", "task": "detect", "description": "Ultralytics rtdetr-l model trained on coco.yaml"}
EIGHTY = tuple(f"class {number}" for number in range(80))


@pytest.mark.parametrize(
    ("metadata", "labels", "shape", "decoder"),
    [
        (RT_DETR, EIGHTY, (300, 84), "detect: detr"),
        (RT_DETR, EIGHTY, (300, 6), "detect: yolov10"),
        (RT_DETR, ("cat", "dog"), (300, 6), "detect: detr"),
        ({**RT_DETR, "args": "{'nms': True}"}, ("cat", "dog"), (300, 6), "detect: yolov10"),
        ({**RT_DETR, "description": "Ultralytics YOLO11n model"}, EIGHTY, (300, 6), "detect: yolov10"),
        ({**RT_DETR, "description": "Ultralytics YOLO11n model"}, EIGHTY, (84, 8400), "detect: yolov8"),
        ({**RT_DETR, "description": "Ultralytics YOLO11n model"}, ("cat", "dog"), (8400, 6), "detect: yolov8"),
    ],
)
def test_metadata_name_the_task_and_outputs_show_how_boxes_come(
    metadata: dict[str, str], labels: tuple[str, ...], shape: tuple[int, int], decoder: str
) -> None:
    assert str(declared_task(Declared(metadata, labels=labels), (shape,))) == decoder


def test_final_boxes_of_ultralytics_rt_detr_are_relative_centers_and_sizes() -> None:
    final = task(detect="yolov10")
    assert declared_options(Declared(RT_DETR), final) == {"boxes": "relative", "order": "cxcywh"}
    assert declared_options(Declared({**RT_DETR, "description": "Ultralytics YOLO26n model"}), final) == {}


def test_poses_of_several_classes_are_told_by_the_names_in_the_file(tmp_path: Path) -> None:
    facts = {"author": "Ultralytics", "task": "pose", "kpt_shape": "[17, 3]", "names": "{0: 'cat', 1: 'dog', 2: 'cow'}"}
    text = starter(saved(tmp_path / "m.onnx", (1, 3, 64, 64), (1, 4 + 3 + 51, 84), **facts), directory=tmp_path).text
    assert "keypoints: yolo-pose" in text and "options: {classes: 3}" in text
    facts["names"] = "{0: 'person'}"
    text = starter(saved(tmp_path / "m.onnx", (1, 3, 64, 64), (1, 56, 84), **facts), directory=tmp_path).text
    assert "keypoints: yolo-pose" in text and "options" not in text


def test_what_is_known_is_that_of_the_reading(tmp_path: Path) -> None:
    yolox, yolov5 = (prior_of(Declared(), task(detect=kind), ["images"], ["output"]) for kind in ("yolox", "yolov5"))
    prior = replace(yolov5, others={"detect: yolox": yolox, "detect: yolov5": yolov5})
    fed = yolox.applied(InputConfig())
    assert prior.against(Setting(fed, task(detect="yolox"))) == 0
    assert prior.against(Setting(fed, task(detect="yolov5"))) == 3 * FAMILY
    assert prior.of(task(detect="yolox")).source == yolox.source


def test_means_in_the_other_order_than_the_colors_are_unusual() -> None:
    read = task(classify="auto")
    orders = [
        Setting(InputConfig(color=color, mean=mean, std=IMAGENET_STD), read)
        for color in ("rgb", "bgr")
        for mean in (IMAGENET_MEAN, IMAGENET_MEAN[::-1])
    ]
    assert [prior_of(Declared(), read, ["i"], ["o"]).against(one) for one in orders] == [0, USUAL, USUAL, 0]
    assert prior_of(Declared(), read, ["i"], ["o"]).against(Setting(InputConfig(color="bgr", mean=(0.0,)), read)) == 0
    paddle = prior_of(Declared(), task(detect="db"), ["x"], ["sigmoid_0.tmp_0"])
    assert paddle.against(Setting(paddle.applied(InputConfig()), task(detect="db"))) == 0


def test_lines_of_text_are_padded_with_what_becomes_0() -> None:
    reader = prior_of(Declared(), task(text="ctc"), ["x"], ["save_infer_model/scale_0.tmp_1"])
    direction = prior_of(Declared(), task(classify="auto"), ["x"], ["softmax_0.tmp_0"], 2)
    assert (reader.margin, direction.margin) == (FAMILY, FAMILY)
    assert reader.input == direction.input == {**reader.input, "pad": 127, "mean": (127.5,), "anchor": "top_left"}
    assert prior_of(Declared(), task(classify="auto"), ["x"], ["softmax_0.tmp_0"], 1000).margin == 0
    other = prior_of(Declared(), task(text="ctc"), ["images"], ["y"])
    assert (other.margin, other.placed) == (0, FAMILY) and "mean" not in other.input


def test_what_stands_against_a_setting() -> None:
    prior = prior_of(Declared(), task(detect="yolox"), ["images"], ["output"])
    known = prior.applied(InputConfig())
    right = Setting(known, task(detect="yolox"))
    assert prior.against(right) == 0
    assert prior.against(Setting(known.model_copy(update={"color": "rgb"}), right.task)) == FAMILY
    assert prior.taken(InputConfig(color="gray"), "float32").input.keys() == {"resize", "anchor", "pad"}
    rounded = Setting(known.model_copy(update={"mean": (0.5,)}), right.task)
    assert not differs(right, rounded, "scale")  # half a gray level
    assert differs(right, Setting(known.model_copy(update={"std": (255.0,)}), right.task), "scale")


def test_every_ultralytics_task_is_fed_by_its_metadata(tmp_path: Path) -> None:
    """Exports with masks have two outputs, and are of the family all the same."""
    rows, maps = np.zeros((1, 300, 38), np.float32), np.zeros((1, 32, 16, 16), np.float32)
    proto = constant({"output0": rows, "output1": maps}).proto
    helper.set_model_props(proto, {**YOLO, "task": "segment", "names": "{0: 'cat', 1: 'dog'}", "imgsz": "[64, 64]"})
    onnx.save(proto, tmp_path / "m.onnx")
    made = infer(tmp_path / "m.onnx")
    assert value_of(made.setting.task) == "yolov8-seg" and made.sure
    assert YOLOS in made.input_notes[0] and made.setting.input.std == (255.0,)


def test_tensorflow_boxes_are_relative_and_y_comes_first(tmp_path: Path) -> None:
    arrays = {
        "detection_boxes": np.zeros((1, 10, 4)),
        "detection_classes": np.ones((1, 10)),
        "detection_multiclass_scores": np.zeros((1, 10, 91)),
        "detection_scores": np.zeros((1, 10)),
        "num_detections": np.zeros(1),
        "raw_detection_boxes": np.zeros((1, 40, 4)),
    }
    proto = constant(arrays, (1, 64, 64, 3), TensorProto.UINT8, "input_tensor").proto
    onnx.save(proto, tmp_path / "m.onnx")
    made = infer(tmp_path / "m.onnx")
    assert made.task_sure and made.setting.task.model_dump()["options"] == {
        "boxes": "relative", "order": "yxyx", "background": "first",
    }  # fmt: skip
    assert (made.setting.input.color, made.setting.input.resize) == ("rgb", "stretch")


def test_rows_of_yolov7_have_no_batch(tmp_path: Path) -> None:
    rows = np.array([[0, 4, 4, 40, 50, 2, 0.9]], np.float32)
    onnx.save(constant({"output": rows[[0, 0, 0]]}, ("batch", 3, 64, 64)).proto, tmp_path / "m.onnx")
    made = infer(tmp_path / "m.onnx")
    assert value_of(made.setting.task) == "yolov10" and made.task_sure


def test_scrfd_is_fed_as_its_family_whatever_its_outputs_are_called() -> None:
    found = prior_of(Declared(), task(detect="scrfd"), ["input"], [f"out{n}" for n in range(9)])
    assert found.family is not None and found.family.name == "SCRFD (InsightFace)" and found.margin == FAMILY
    assert (found.input["mean"], found.input["std"]) == ((127.5,), (128.0,))


@pytest.mark.parametrize("more", [(), ("masks",), ("keypoints", "keypoints_scores")])
def test_detectors_of_torchvision_are_no_transformers(tmp_path: Path, more: tuple[str, ...]) -> None:
    """RT-DETR's exports have an input and outputs of the same names, in another order."""
    rows = {"boxes": np.zeros((5, 4)), "labels": np.ones(5), "scores": np.zeros(5)}
    proto = constant({**rows, **{name: np.zeros((5, 17, 3)) for name in more}}).proto
    proto.producer_name = "pytorch"
    onnx.save(proto, tmp_path / "m.onnx")
    made = infer(tmp_path / "m.onnx")
    assert value_of(made.setting.task) == "yolov10" and made.task_sure
    assert "torchvision" in made.input_notes[0]
    onnx.save(constant({name: rows[name] for name in ("labels", "boxes", "scores")}).proto, tmp_path / "m.onnx")
    assert value_of(infer(tmp_path / "m.onnx").setting.task) == "detr"
