"""TensorFlow's models imported for real, by a Python that has tensorflow and tf2onnx: EDGERT_TENSORFLOW_PYTHON, or this
one; skipped where neither has."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from edgert import installation
from edgert.errors import DeviceError, ModelError
from edgert.importer.conversion import import_model

pytestmark = pytest.mark.slow
PYTHON = Path(os.environ.get("EDGERT_TENSORFLOW_PYTHON", sys.executable))
MAKE = """
import numpy as np, tensorflow as tf

class Net(tf.Module):
    def __init__(self):
        self.weights = tf.Variable(np.random.default_rng(0).standard_normal((3, 3, 3, 4)).astype("f4"))

    @tf.function(input_signature=[tf.TensorSpec([None, 16, 16, 3], tf.float32, name="image")])
    def __call__(self, image):
        y = tf.nn.relu(tf.nn.conv2d(image, self.weights, 1, "SAME"))
        return {"features": y, "mean": tf.reduce_mean(y, [1, 2])}

net = Net()
tf.saved_model.save(net, "saved", signatures={"serving_default": net.__call__.get_concrete_function()})
open("m.tflite", "wb").write(tf.lite.TFLiteConverter.from_saved_model("saved").convert())
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("tensorflow")
    asked = subprocess.run([PYTHON, "-c", "import tensorflow, tf2onnx"], capture_output=True, check=False)
    if asked.returncode:
        pytest.skip(f"{PYTHON} has no tensorflow with tf2onnx: set EDGERT_TENSORFLOW_PYTHON")
    subprocess.run([PYTHON, "-c", MAKE], check=True, cwd=made, capture_output=True)
    return made


def test_a_saved_model(folder: Path, tmp_path: Path) -> None:
    shapes = {"image": (2, 16, 16, 3)}
    made = import_model(str(folder / "saved"), tmp_path / "m.onnx", python=PYTHON, shapes=shapes)
    assert [spec.name for spec in made.inputs] == ["image"] and made.inputs[0].shape[1:] == (16, 16, 3)
    assert {one.name: one.shape for one in made.differences} == {"features": (2, 16, 16, 4), "mean": (2, 4)}
    assert max(one.relative for one in made.differences) < 1e-5 and (tmp_path / "m.onnx").is_file()


def test_a_tflite_file(folder: Path, tmp_path: Path) -> None:
    made = import_model(str(folder / "m.tflite"), tmp_path / "m.onnx", python=PYTHON)
    assert len(made.differences) == 2 and max(one.relative for one in made.differences) < 1e-5


def test_a_signature_that_is_not_there_is_told(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="has no signature 'train'") as caught:
        import_model(str(folder / "saved"), tmp_path / "m.onnx", python=PYTHON, signature="train")
    assert caught.value.why == "it has serving_default"


def test_a_file_that_is_no_tflite_is_told(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.tflite").write_bytes(b"nothing of the kind")
    with pytest.raises(ModelError, match="is no TFLite file that can be read"):
        import_model(str(tmp_path / "bad.tflite"), tmp_path / "m.onnx", python=PYTHON)


def test_without_tensorflow_it_says_how_to_get_it(tmp_path: Path) -> None:
    if not subprocess.run([sys.executable, "-c", "import tensorflow"], capture_output=True, check=False).returncode:
        pytest.skip("this Python has tensorflow")
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "saved_model.pb").touch()
    with pytest.raises(DeviceError, match="TensorFlow cannot be used here") as caught:
        import_model(str(tmp_path / "saved"), tmp_path / "m.onnx")
    assert installation.command("tensorflow") in caught.value.fix and "--python" in caught.value.fix
