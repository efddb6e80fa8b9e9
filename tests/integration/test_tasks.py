"""Real models of other tasks than boxes, from the file to what a sink shows."""

import difflib
import json
from pathlib import Path

import cv2
import numpy as np
import pytest

import edgert
from tests.helpers.documents import blocks
from tests.helpers.evaluation_data import data

pytestmark = pytest.mark.slow

CHARACTERS = "0123456789:;<=>?@ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqrstuvwxyz{|}~!\"#$%&'()*+,-./ "
"""Of PaddleOCR's en_dict.txt, in its order."""
PAGE = """3 MovieShots Dataset
To facilitate the shot type analysis in videos, we collect MovieShots, a large-scale
shot type annotation set that contains 46K shots from 7,858 movies. The details
of this dataset are specified as follows."""


def ocr(folder: Path, image: np.ndarray) -> list[str]:
    """The recipe of docs/how-to.md on one image: the lines from top to bottom."""
    (text,) = [
        piece.text for piece in blocks("yaml") if piece.place.startswith("docs/how-to.md") and "ctc" in piece.text
    ]
    assert len(text.strip().splitlines()) <= 15
    text = text.replace("onnx: det.onnx", f"onnx: {data('models', 'ppocr_mobile_v2_det_ch.onnx')}")
    text = text.replace("onnx: rec.onnx", f"onnx: {data('models', 'ppocr_en_number_rec.onnx')}")
    (folder / "en_dict.txt").write_text("\n".join(CHARACTERS) + "\n")
    (folder / "pages").mkdir()
    cv2.imwrite(str(folder / "pages" / "page.jpg"), image)
    (folder / "ocr.yaml").write_text(text.replace("path: out/", f"path: {folder}/"))
    edgert.Pipeline(folder / "ocr.yaml").run()
    outputs = json.loads((folder / "texts.jsonl").read_text())["outputs"]
    tops = [entry["box"][1] for entry in outputs["lines"]["objects"]]
    items = sorted(outputs["texts"]["items"], key=lambda item: tops[item["row"]])
    return [item["record"]["text"] for item in items]


def test_a_page_is_read(tmp_path: Path) -> None:
    image = cv2.imread(str(data("images", "text", "rapidocr_en.jpg")))
    lines = ocr(tmp_path, np.asarray(image))
    alike = [difflib.SequenceMatcher(None, *pair).ratio() for pair in zip(lines, PAGE.splitlines(), strict=True)]
    assert np.mean(alike) > 0.93, lines


@pytest.mark.parametrize("angle", [-15, 8])
def test_lines_that_are_not_level_are_read(tmp_path: Path, angle: float) -> None:
    image = cv2.imread(str(data("images", "text", "rapidocr_en_rec.jpg")))
    assert image is not None
    image = cv2.copyMakeBorder(image[:, :350], 180, 180, 20, 20, cv2.BORDER_CONSTANT, value=(255, 255, 255))
    height, width = image.shape[:2]
    turn = cv2.getRotationMatrix2D((width / 2, height / 2), angle, 1)
    turned = cv2.warpAffine(image, turn, (width, height), flags=cv2.INTER_CUBIC, borderValue=(255, 255, 255))
    lines = ocr(tmp_path, np.asarray(turned))
    expected = PAGE.splitlines()[1][:41]
    assert difflib.SequenceMatcher(None, " ".join(lines), expected).ratio() > 0.85, lines


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("person_reid_retail_0288", "{resize: stretch, color: bgr}"),
        ("osnet_x0_25_msmt17", "{resize: stretch, mean: [123.675, 116.28, 103.53], std: [58.395, 57.12, 57.375]}"),
    ],
)
def test_persons_are_named_by_a_gallery(tmp_path: Path, name: str, keys: str) -> None:
    """Persons are cut out of a photograph twice, the second time from a brighter one a few pixels off."""
    model, truth = data("models", f"{name}.onnx"), json.loads(data("images", "coco_val.json").read_text())
    boxes = [one["bbox"] for one in truth["annotations"] if one["category_id"] == 0 and one["bbox"][3] > 150][:24]
    owners = [one["image_id"] for one in truth["annotations"] if one["category_id"] == 0 and one["bbox"][3] > 150][:24]
    files = {one["id"]: one["file_name"] for one in truth["images"]}
    text = f"models:\n  who: {{onnx: {model}, task: {{embed: l2MATCH}}, input: {keys}}}\n"
    text += "stages:\n  cam: {source: api, size: 128x256}\n  see: {infer: who, from: cam}\n"
    (tmp_path / "enroll.yaml").write_text(text.replace("MATCH", ""))
    path = tmp_path / "people.npz"
    (tmp_path / "run.yaml").write_text(text.replace("MATCH", f", match: {path}, threshold: 0.6"))

    def crop(index: int, shift: int) -> np.ndarray:
        image = cv2.imread(str(data("images", "coco_val", files[owners[index]])))
        assert image is not None
        x, y, width, height = (round(value) for value in boxes[index])
        return np.ascontiguousarray(image[max(y + shift, 0) : y + height, max(x + shift, 0) : x + width])

    gallery = edgert.Gallery(path)
    with edgert.Pipeline(tmp_path / "enroll.yaml") as pipeline:
        for index in range(len(boxes)):
            gallery.add(f"person {index}", pipeline(crop(index, 0)).outputs["see"].vector)
    with edgert.Pipeline(tmp_path / "run.yaml") as pipeline:
        found = [pipeline(cv2.convertScaleAbs(crop(index, 4), alpha=1.1)).outputs["see"] for index in range(len(boxes))]
    assert len(found) >= 15
    assert np.mean([one.name == f"person {index}" for index, one in enumerate(found)]) >= 0.9
    assert min(one.similarity for one in found) > 0.4


@pytest.mark.parametrize(
    ("name", "keys", "task"),
    [
        ("tbefn_360x640", "{resize: stretch, std: 255}", "{image: unit}"),
        ("fns_candy", "{resize: letterbox, color: bgr, shape: {N: 1}}", "{image: byte, color: bgr}"),
    ],
)
def test_what_a_model_paints_is_what_sinks_show(tmp_path: Path, name: str, keys: str, task: str) -> None:
    photo = data("images", "coco_val", "000000000139.jpg")
    (tmp_path / "p.yaml").write_text(
        f"models:\n  paint: {{onnx: {data('models', f'{name}.onnx')}, task: {task}, input: {keys}}}\n"
        f"stages:\n  cam: {{source: 'images:{photo}'}}\n  see: {{infer: paint, from: cam}}\n"
        f"  out: {{sink: images, from: see, path: '{tmp_path}/{{frame}}.png'}}\n"
        f"  lines: {{sink: jsonl, from: see, path: '{tmp_path}/a.jsonl'}}\n"
    )
    edgert.Pipeline(tmp_path / "p.yaml").run()
    (written,) = tmp_path.glob("*.png")
    shown, original = cv2.imread(str(written)), cv2.imread(str(photo))
    assert shown is not None and original is not None
    record = json.loads((tmp_path / "a.jsonl").read_text())["outputs"]["see"]
    assert record["type"] == "image" and record["size"] == [shown.shape[1], shown.shape[0]]
    gray = [cv2.cvtColor(cv2.resize(one, (160, 107)), cv2.COLOR_BGR2GRAY).astype(float) for one in (shown, original)]
    assert np.corrcoef(gray[0].ravel(), gray[1].ravel())[0, 1] > 0.6  # the same scene
    colors = [[np.corrcoef(shown_one, own)[0, 1] for own in _channels(original)] for shown_one in _channels(shown)]
    assert int(np.argmax(colors[0])) == 0, "blue is blue"


def _channels(image: np.ndarray) -> list[np.ndarray]:
    small = cv2.resize(image, (160, 107)).astype(float)
    return [(small[..., n] - small.mean(axis=2)).ravel() for n in range(3)]


def test_faces_are_tracked_and_cut_out(tmp_path: Path) -> None:
    """Their points stay with them."""
    photo = data("images", "faces", "10.jpg")
    (tmp_path / "p.yaml").write_text(
        f"models:\n  faces: {{onnx: {data('models', 'yunet_120x160.onnx')}, task: {{detect: yunet, score: 0.7}}, "
        "input: {resize: stretch, color: bgr}}\n"
        f"stages:\n  cam: {{source: 'images:{photo}', loop: true, limit: 4}}\n  see: {{infer: faces, from: cam}}\n"
        "  track: {track: bytetrack, from: see}\n  again: {infer: faces, from: track, crop: {margin: 0.5}}\n"
        "  paint: {draw: [boxes, labels, keypoints], from: again}\n"
        f"  out: {{sink: jsonl, from: paint, path: {tmp_path}/a.jsonl}}\n"
    )
    edgert.Pipeline(tmp_path / "p.yaml").run()
    outputs = [json.loads(line)["outputs"] for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert len(outputs) == 4
    tracked = outputs[-1]["track"]
    assert len(tracked["objects"]) >= 5 and all(len(one["points"]) == 5 and one["id"] for one in tracked["objects"])
    assert tracked["names"][2] == "nose" and len(outputs[-1]["again"]["items"]) >= 5
