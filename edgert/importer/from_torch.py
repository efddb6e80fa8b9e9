"""``edgert.from_torch(...)``: a PyTorch module made an engine of this machine."""

import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from edgert.engine import LoadedEngine, load_engine
from edgert.errors import ConfigError
from edgert.importer.conversion import OPSET, TOLERANCE, finished
from edgert.importer.conversion_process import Request, read_versions


def from_torch(
    module: object,
    *,
    example_inputs: Any,
    output: str | Path | None = None,
    dynamic: Mapping[str, Sequence[str | None]] | None = None,
    opset: int = OPSET,
    tolerance: float = TOLERANCE,
    threads: int | None = None,
) -> LoadedEngine:
    """Exports a PyTorch module to ONNX, compares the two, and compiles it for this machine. Blocks until done.

    It is exported in this process: a module could be handed to another one as a pickle only.

    Args:
        module: an ``nn.Module``, which is exported in evaluation mode, or an exported program.
        example_inputs: a tensor, a tuple of them, or a dict by parameter; both models are run on them.
        output: where the ONNX file is kept, which then can stand in a pipeline; None: nowhere.
        dynamic: parameter → a name, or None for a fixed size, for each of its dimensions.
        opset: version of the ONNX operators, 13 or later.
        tolerance: largest accepted difference of an output, as a fraction of its largest value.
        threads: CPU threads of the engine; all available cores by default.

    Raises:
        ConfigError: there are no example inputs, or not such parameters.
        DeviceError: PyTorch's exporter is not installed.
        BuildError: the module cannot be exported or compiled, or computes something else as ONNX.
    """
    from edgert.importer.torch_model import convert_object

    title = type(module).__name__
    if example_inputs is None:
        raise ConfigError(f"{title} without example inputs", fix="edgert.from_torch(module, example_inputs=(tensor,))")
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="edgert-") as name:
        folder = Path(name)
        request = Request("function", title, opset=opset, dynamic=dynamic or {})
        convert_object(module, example_inputs, request, folder)
        versions = read_versions(folder) or {}
        made = finished(folder, title, versions, tolerance, started, Path(output) if output is not None else None)
    return load_engine(made.model, threads=threads)
