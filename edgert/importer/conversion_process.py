"""The separate process that converts a model; its request and its results are files in a folder.

Nothing is pickled. The framework's threads, memory and crashes stay in that process. It may run any Python that has the
framework, since the modules of edgert imported there need no other package.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt

from edgert import installation
from edgert.errors import BuildError, DeviceError, ModelError, error_of, raised_as

Array = npt.NDArray[Any]
MODEL, FEEDS, RESULTS = "model.onnx", "feeds.npz", "results.npz"
OTHER_FEEDS, OTHER_RESULTS = "other_feeds.npz", "other_results.npz"
"""A second example, for a model that was traced on one run."""
REQUEST, ANSWER = "request.json", "answer.json"


class Answer(TypedDict, total=False):
    """Outcome of a conversion: the packages that made it, by name, and PyTorch's exporter; or its error."""

    versions: dict[str, str]
    exporter: str
    error: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Request:
    """One conversion. Kinds are those of :func:`~edgert.importer.conversion.kind_of`; a path in ``source`` is absolute.

    ``search`` is the folder in which ``module:function`` is searched. ``dynamic`` has the names of dimensions that stay
    open, None for the others. ``weights`` and ``size`` are for models by name.
    """

    kind: str
    source: str
    search: str = "."
    opset: int = 18
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    dynamic: Mapping[str, Sequence[str | None]] = field(default_factory=dict)
    signature: str = "serving_default"
    weights: str = "DEFAULT"
    size: Sequence[int] | None = None


def read_request(folder: Path) -> Request:
    """Read the request."""
    return Request(**json.loads((folder / REQUEST).read_text(encoding="utf-8")))


def write_arrays(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write named arrays, in order; names may have any characters."""
    stored: dict[str, Any] = {f"a{n}": array for n, array in enumerate(arrays.values())}
    np.savez(path, __names__=np.array(list(arrays), dtype=np.str_), **stored)


def read_arrays(path: Path) -> dict[str, Array]:
    """Read a file of :func:`write_arrays`, or a user's .npz. Raises OSError, ValueError, EOFError or BadZipFile."""
    found = np.load(path, allow_pickle=False)
    if isinstance(found, np.ndarray):
        raise ValueError("it has one array without a name")
    with found as stored:
        if "__names__" not in stored:
            return {name: stored[name] for name in stored.files}
        return {str(name): stored[f"a{n}"] for n, name in enumerate(stored["__names__"])}


_CONVERSION_S, _TF2ONNX_S = 7200.0, 3600.0
"""Time limits of a conversion, which may download weights, and of tf2onnx within it."""
_PACKAGE = Path(__file__).resolve().parents[1]
_QUIET = {
    "TORCH_FORCE_WEIGHTS_ONLY_LOAD": "1",  # reads only the tensors of a program, and runs no code from pickles
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "CUDA_VISIBLE_DEVICES": "",  # to start a GPU takes longer than to run one example
}


def convert_in_process(request: Request, folder: Path, python: Path | None = None) -> Answer:
    """Convert a model in another process, maybe of another Python, into a folder. Blocks until done.

    Raises DeviceError where the framework is not installed there, ModelError or BuildError for the source.
    """
    (folder / REQUEST).write_text(json.dumps(asdict(request)), encoding="utf-8")
    interpreter = str(python or sys.executable)
    with tempfile.TemporaryDirectory(prefix="edgert-") as path:
        # edgert without the packages beside it, which another Python may be unable to import
        (Path(path) / "edgert").symlink_to(_PACKAGE, target_is_directory=True)
        inherited = [] if python else filter(None, [os.environ.get("PYTHONPATH")])
        environment = {**os.environ, **_QUIET, "PYTHONPATH": os.pathsep.join([path, *inherited])}
        command = [interpreter, "-m", "edgert.importer.converter", str(folder)]
        with raised_as(DeviceError, f"cannot run {interpreter!r}", fix="--python PATH"):
            done = _run_limited(command, request, _CONVERSION_S, env=environment)
    if (folder / ANSWER).exists():
        answer: Answer = json.loads((folder / ANSWER).read_text(encoding="utf-8"))
        if "error" in answer:
            raise error_of(answer["error"])
    if done.returncode or not (folder / ANSWER).exists():
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise BuildError(
            f"{request.source} cannot be converted",
            why=lines[-1] if lines else f"the process ended with {done.returncode}",
            where="\n         ".join(lines[-6:-1]),
            fix="repair what the last lines name; tools of the framework may show more",
        )
    return answer


def _run_limited(
    command: Sequence[str], request: Request, limit_s: float, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run a command without a shell. Raises BuildError if it takes too long, and OSError if it cannot be started."""
    try:
        return subprocess.run(  # noqa: S603 - arguments, no shell
            command, capture_output=True, text=True, errors="replace", check=False, timeout=limit_s, **options
        )
    except subprocess.TimeoutExpired as error:
        why = f"{' '.join(command[1:3])} took longer than {limit_s:g} s, and was ended"
        fix = "use a smaller input size, or a faster machine"
        raise BuildError(f"{request.source} cannot be converted", why=why, fix=fix) from error


# Conversion of SavedModels and TFLite files by tf2onnx (Apache-2.0). Only this part imports tensorflow.

_SEED = 0


def convert_tensorflow(request: Request, folder: Path) -> Answer:
    """Write the model, the example inputs and TensorFlow's outputs; return the versions of the converters."""
    versions = _versions()
    run, specs = (_saved_model_run if request.kind == "savedmodel" else _tflite_run)(request)
    given = read_arrays(folder / FEEDS) if (folder / FEEDS).exists() else {}
    feeds = {
        name: given[name] if name in given else _random_input(name, *spec, request) for name, spec in specs.items()
    }
    results = run(feeds)
    _run_tf2onnx(request, folder)
    write_arrays(folder / FEEDS, feeds)
    write_arrays(folder / RESULTS, results)
    return {"versions": versions}


def _versions() -> dict[str, str]:
    fix = f"{installation.command('tensorflow')}, or name a Python that has both packages: --python PATH"
    with raised_as(DeviceError, "TensorFlow cannot be used here", of=ImportError, fix=fix):
        import tensorflow
        import tf2onnx
    return {"tensorflow": str(tensorflow.__version__), "tf2onnx": str(tf2onnx.__version__)}


def _saved_model_run(request: Request) -> tuple[Any, dict[str, tuple[Sequence[int | None], str]]]:
    """Return a function that runs a signature, and shapes and dtypes of its inputs by name."""
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


def _tflite_run(request: Request) -> tuple[Any, dict[str, tuple[Sequence[int | None], str]]]:
    """Return a function that runs a TFLite file, and its inputs. Delegates, which round otherwise, are not used."""
    with raised_as(ModelError, f"{request.source!r} is no TFLite file that can be read", of=(ValueError, RuntimeError)):
        interpreter = _interpreter(request.source)

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
    """Return the interpreter of LiteRT if that is installed, or else TensorFlow's."""
    try:
        from ai_edge_litert.interpreter import Interpreter
    except ImportError:
        import tensorflow

        Interpreter = tensorflow.lite.Interpreter  # noqa: N806 - a class
    return Interpreter(model_path=path)


def _random_input(name: str, shape: Sequence[int | None], dtype: str, request: Request) -> Array:
    """Return random numbers from 0 to 1 with a fixed seed; open dimensions are 1 unless ``--shape`` sets them."""
    sizes = request.shapes.get(name) or [1 if dim is None else dim for dim in shape]
    random = np.random.default_rng(_SEED)
    try:
        is_whole = np.dtype(dtype).kind in "iub"
    except TypeError as error:
        why, fix = "example inputs are numbers", "--signature of a function on arrays, not on encoded images"
        raise ModelError(f"input {name!r} holds values of type {dtype}", why=why, fix=fix) from error
    numbers = random.integers(0, 2, sizes) if is_whole else random.random(sizes)
    return numbers.astype(dtype)


def _run_tf2onnx(request: Request, folder: Path) -> None:
    """Run the command line of tf2onnx, which is its documented interface."""
    what = ["--tflite", request.source]
    if request.kind == "savedmodel":
        what = ["--saved-model", request.source, "--tag", "serve", "--signature_def", request.signature]
    command = [sys.executable, "-m", "tf2onnx.convert", *what]
    command += ["--opset", str(request.opset), "--output", str(folder / MODEL)]
    done = _run_limited(command, request, _TF2ONNX_S)
    if done.returncode or not (folder / MODEL).exists():
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise BuildError(
            f"tf2onnx cannot convert {request.source}",
            why=lines[-1] if lines else f"it ended with {done.returncode}",
            fix="its list of supported operators: https://github.com/onnx/tensorflow-onnx/blob/main/support_status.md",
        )
