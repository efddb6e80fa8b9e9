"""TensorFlow to ONNX by tf2onnx (Apache-2.0): SavedModels and TFLite files. The door to tensorflow."""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edgert import installation
from edgert.errors import BuildError, DeviceError, ModelError
from edgert.importer.conversion_process import (
    FEEDS,
    MODEL,
    RESULTS,
    Array,
    Request,
    read_arrays,
    write_arrays,
    write_versions,
)

_SEED = 0


def convert_tensorflow(request: Request, folder: Path) -> None:
    """Writes the model, the example inputs and TensorFlow's outputs.

    Raises:
        DeviceError: TensorFlow or tf2onnx is not installed.
        ModelError: the SavedModel has no such signature, or the file cannot be read.
        BuildError: tf2onnx cannot convert it.
    """
    versions = _versions()
    run, specs = (_saved if request.kind == "savedmodel" else _lite)(request)
    given = read_arrays(folder / FEEDS) if (folder / FEEDS).exists() else {}
    feeds = {name: given[name] if name in given else _example(name, *spec, request) for name, spec in specs.items()}
    results = run(feeds)
    _convert(request, folder)
    write_arrays(folder / FEEDS, feeds)
    write_arrays(folder / RESULTS, results)
    write_versions(versions, folder)


def _versions() -> dict[str, str]:
    try:
        import tensorflow
        import tf2onnx
    except ImportError as error:
        raise DeviceError(
            "TensorFlow cannot be used here",
            why=str(error),
            fix=f"{installation.command('tensorflow')}, or name a Python that has both packages: --python PATH",
        ) from error
    return {"tensorflow": str(tensorflow.__version__), "tf2onnx": str(tf2onnx.__version__)}


def _saved(request: Request) -> tuple[Any, dict[str, tuple[Sequence[int | None], str]]]:
    """A run of a signature, and its inputs: name → shape and dtype."""
    import tensorflow

    signatures = tensorflow.saved_model.load(request.source).signatures
    if request.signature not in signatures:
        known = ", ".join(signatures) or "none"
        raise ModelError(
            f"the SavedModel has no signature {request.signature!r}", why=f"it has {known}", fix="--signature NAME"
        )
    function = signatures[request.signature]

    def run(feeds: Mapping[str, Array]) -> dict[str, Array]:
        made = function(**{name: tensorflow.constant(array) for name, array in feeds.items()})
        return {name: tensor.numpy() for name, tensor in made.items()}

    inputs = function.structured_input_signature[1]
    return run, {name: (tuple(spec.shape), spec.dtype.name) for name, spec in inputs.items()}


def _lite(request: Request) -> tuple[Any, dict[str, tuple[Sequence[int | None], str]]]:
    """A run of a TFLite file by its interpreter, without the delegates that round otherwise, and its inputs."""
    try:
        interpreter = _interpreter(request.source)
    except (ValueError, RuntimeError) as error:
        raise ModelError(f"{request.source!r} is no TFLite file that can be read", why=str(error)) from error

    def run(feeds: Mapping[str, Array]) -> dict[str, Array]:
        for detail in interpreter.get_input_details():
            interpreter.resize_tensor_input(detail["index"], feeds[detail["name"]].shape)
        interpreter.allocate_tensors()
        for detail in interpreter.get_input_details():
            interpreter.set_tensor(detail["index"], feeds[detail["name"]])
        interpreter.invoke()
        return {one["name"]: interpreter.get_tensor(one["index"]) for one in interpreter.get_output_details()}

    details = interpreter.get_input_details()
    shapes = {one["name"]: [None if dim < 0 else int(dim) for dim in one["shape_signature"]] for one in details}
    return run, {one["name"]: (shapes[one["name"]], np.dtype(one["dtype"]).name) for one in details}


def _interpreter(path: str) -> Any:
    """LiteRT's, which TensorFlow's own gives way to, where it is installed."""
    try:
        from ai_edge_litert.interpreter import Interpreter
    except ImportError:
        import tensorflow

        Interpreter = tensorflow.lite.Interpreter  # noqa: N806 - a class
    return Interpreter(model_path=path)


def _example(name: str, shape: Sequence[int | None], dtype: str, request: Request) -> Array:
    """Numbers from 0 to 1, the same every time; open dimensions are 1 unless ``--shape`` says other."""
    sizes = request.shapes.get(name) or [1 if dim is None else dim for dim in shape]
    random = np.random.default_rng(_SEED)
    if np.dtype(dtype).kind in "iub":
        return random.integers(0, 2, sizes).astype(dtype)
    return random.random(sizes).astype(dtype)


def _convert(request: Request, folder: Path) -> None:
    """tf2onnx's command line, which is its documented interface."""
    what = ["--tflite", request.source]
    if request.kind == "savedmodel":
        what = ["--saved-model", request.source, "--tag", "serve", "--signature_def", request.signature]
    command = [sys.executable, "-m", "tf2onnx.convert", *what]
    command += ["--opset", str(request.opset), "--output", str(folder / MODEL)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - arguments, no shell
    if done.returncode or not (folder / MODEL).exists():
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise BuildError(
            f"tf2onnx cannot convert {request.source}",
            why=lines[-1] if lines else f"it ended with {done.returncode}",
            fix="its list of supported operators: https://github.com/onnx/tensorflow-onnx/blob/main/support_status.md",
        )
