"""Cut a model that embeds parts out of the demo's detector, and write a gallery of the five kinds.

    python -m tools.cut_embedder [--folder pipelines/assets]

The detector's features at stride 16 distinguish parts: the vector is their mean over an image of 48x48 pixels. Nothing
is trained. The gallery has one vector for each kind: the mean over parts of scenes that the detector was trained on
(seeds from 1,000,000 up), cropped as in ``pipelines/embedding.yaml``.
"""

import argparse
import tempfile
from pathlib import Path

import cv2
import numpy as np
import onnx
from onnx.utils import Extractor

from edgert.evaluation.enroll import enroll
from edgert.stages.gallery import Gallery
from pipelines.conveyor import LABELS, Conveyor

ROOT = Path(__file__).resolve().parents[1]
FEATURES, CHANNELS, SIDE = "/sixteenth/sixteenth.2/Add_output_0", 96, 48
FIRST_SEED, SCENES, EVERY = 1_000_000, 6, 60
MARGIN = 0.1


def embedder() -> onnx.ModelProto:
    detector = onnx.shape_inference.infer_shapes(onnx.load(ROOT / "pipelines" / "assets" / "parts.onnx"))
    model = Extractor(detector).extract_model(["images"], [FEATURES])
    graph = model.graph
    graph.node.add(op_type="GlobalAveragePool", input=[FEATURES], output=["mean"])
    graph.node.add(op_type="Flatten", input=["mean"], output=["vector"])
    stated = [(one.key, one.value) for one in detector.metadata_props if one.key.startswith("model_info ")]
    del graph.value_info[:], graph.output[:], graph.input[:], model.metadata_props[:]
    for ends, name, shape in ((graph.input, "images", (1, 3, SIDE, SIDE)), (graph.output, "vector", (1, CHANNELS))):
        tensor = ends.add(name=name).type.tensor_type
        tensor.elem_type = onnx.TensorProto.FLOAT
        for size in shape:
            tensor.shape.dim.add(dim_value=size)
    for key, value in (*stated, ("cut", "from parts.onnx")):  # how it is fed, as edgert check and new read it
        model.metadata_props.add(key=key, value=value)
    onnx.checker.check_model(model, full_check=True)
    return model


def write_parts(folder: Path) -> None:
    """Write images of complete parts into a folder for each kind."""
    image = np.empty((480, 640, 3), np.uint8)
    for name in LABELS:
        (folder / name).mkdir()
    for seed in range(FIRST_SEED, FIRST_SEED + SCENES):
        scene = Conveyor(640, 480, 30.0, seed)
        for index in range(0, 300, EVERY):
            truth = scene.render(index, image)
            for box, kind, number in zip(truth.boxes, truth.classes, truth.ids, strict=True):
                margin = MARGIN * (box[2:] - box[:2])
                x1, y1, x2, y2 = np.concatenate([box[:2] - margin, box[2:] + margin]).round().astype(int)
                if min(x1, y1) >= 0 and x2 <= 640 and y2 <= 480:
                    path = folder / LABELS[kind] / f"{seed}-{index}-{number}.png"
                    cv2.imwrite(str(path), image[y1:y2, x1:x2])


def write_gallery(pipeline: Path, gallery: Path) -> None:
    """Write a gallery with one vector for each kind."""
    with tempfile.TemporaryDirectory() as name:
        folder, every = Path(name), Path(name) / "every.npz"
        write_parts(folder)
        gallery.unlink(missing_ok=True)
        for label in LABELS:
            enroll(pipeline, label, folder / label, overrides=[f"models.look.task.match={every}"])
        with np.load(every) as found:
            for label in LABELS:
                mean = found["vectors"][found["names"] == label].mean(axis=0)
                Gallery(gallery).add(label, mean.astype(np.float64).round(4))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=ROOT / "pipelines" / "assets", help="where both files go")
    folder = parser.parse_args().folder
    onnx.save(embedder(), folder / "look.onnx")
    write_gallery(ROOT / "pipelines" / "embedding.yaml", folder / "look.json")


if __name__ == "__main__":
    main()
