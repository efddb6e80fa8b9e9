"""PyTorch to ONNX: exported programs, and modules that a function makes. The door to torch.

What is compared is the program or module as PyTorch runs it, without gradients and in evaluation mode.
"""

import inspect
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from edgert import installation
from edgert.errors import BuildError, DeviceError, ModelError, nearest
from edgert.importer import conversion_process as process
from edgert.importer.named_model import named_model
from edgert.importer.torch_export import Call, export, other_inputs, reason_of, tensors
from edgert.user_code import load_object

_EXAMPLE = "return module, (torch.zeros(1, 3, 224, 224),)"


def convert_torch(request: process.Request, folder: Path) -> None:
    """Write the model, the example inputs and PyTorch's outputs.

    Raises:
        DeviceError: PyTorch or its exporter is not installed.
        ModelError: the function gives something else than a module and inputs.
        BuildError: PyTorch cannot export it.
    """
    torch, is_traced_first = _torch(), False
    if request.kind == "program":
        module = torch.export.load(request.source)  # what fails here ends this process, with PyTorch's reason
        given = module.example_inputs
    elif request.kind == "named":
        module, given, is_traced_first = named_model(torch, request)
    else:
        module, given = _made(request)
    inputs, named = _inputs(given, request.source)
    if (folder / process.FEEDS).exists():
        inputs, named = _replaced(inputs, named, list(process.read_arrays(folder / process.FEEDS).values()))
    convert_module(torch, module, inputs, named, request, folder, is_traced_first)


def convert_object(module: object, given: Any, request: process.Request, folder: Path) -> None:
    """Convert a module or program in this process; see :func:`convert_torch`. Raises ModelError for anything else."""
    torch = _torch()
    if not isinstance(module, (torch.nn.Module, torch.export.ExportedProgram)):
        raise ModelError(
            f"a {request.source} cannot be built", why="it is no torch.nn.Module and no file", fix="see edgert.build"
        )
    inputs, named = _inputs(given, request.source)
    convert_module(torch, module, inputs, named, request, folder)


def convert_module(
    torch: Any,
    module: Any,
    inputs: Sequence[Any],
    named: Mapping[str, Any],
    request: process.Request,
    folder: Path,
    is_traced_first: bool = False,
) -> None:
    """Convert an nn.Module or an exported program; see :func:`convert_torch`.

    ``inputs`` and ``named`` are its positional and keyword arguments.
    """
    is_module = isinstance(module, torch.nn.Module)
    was_training = is_module and module.training
    runnable = module.eval() if is_module else module.module()
    named_dims = {
        name: {axis: torch.export.Dim(wanted) for axis, wanted in enumerate(names) if wanted}
        for name, names in request.dynamic.items()
    }
    dynamic = _for_all(named_dims, module, inputs, named) if is_module and named_dims else None
    try:
        with torch.no_grad():
            results = runnable(*inputs, **named)
            made = export(
                torch, Call(module, inputs, named, results, is_traced_first), dynamic, request, folder / process.MODEL
            )
            if made.is_traced:
                others = other_inputs(torch, (tuple(inputs), dict(named)))
                _keep(folder / process.OTHER_FEEDS, made.inputs, others, request.source)
                _keep(folder / process.OTHER_RESULTS, made.outputs, runnable(*others[0], **others[1]), request.source)
    except RuntimeError as error:
        raise BuildError(
            f"PyTorch cannot run {request.source}",
            why=reason_of(error),
            fix="give it example inputs that it can run on: --inputs FILE.npz, or those of the function",
        ) from error
    finally:
        if was_training:
            module.train()
    if is_module:
        _check_open(made.inputs, request)
    _keep(folder / process.FEEDS, made.inputs, (tuple(inputs), dict(named)), request.source)
    _keep(folder / process.RESULTS, made.outputs, results, request.source)
    process.write_exporter(made.exporter, folder)
    process.write_versions({"torch": str(torch.__version__), "onnxscript": metadata.version("onnxscript")}, folder)


def _torch() -> Any:
    try:
        import onnxscript  # noqa: F401 - torch.onnx needs it and would say so late
        import torch
    except ImportError as error:
        fix = f"{installation.command('torch')}, or --python PATH of another Python that has both"
        why = f"PyTorch and onnxscript export the model, and there is: {error}"
        raise DeviceError("PyTorch cannot be used here", why=why, fix=fix) from error
    return torch


def _made(request: process.Request) -> tuple[Any, Any]:
    torch = _torch()
    function: Any = load_object(request.source, "SOURCE", Path(request.search))
    made = function()
    if not isinstance(made, (tuple, list)) or len(made) != 2 or not isinstance(made[0], torch.nn.Module):
        raise ModelError(
            f"{request.source} gives no module with its inputs",
            why=f"it returned a {type(made).__name__}",
            fix=f"{_EXAMPLE}: an nn.Module, and a tensor, a tuple of tensors or a dict of them by parameter",
        )
    return made[0], made[1]


def _inputs(given: Any, source: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return positional and keyword arguments: a program has both, a function may give either."""
    torch = _torch()
    if isinstance(given, torch.Tensor):
        return (given,), {}
    if isinstance(given, dict):
        return (), dict(given)
    if isinstance(given, (tuple, list)):
        if len(given) == 2 and isinstance(given[0], (tuple, list)) and isinstance(given[1], dict):
            return tuple(given[0]), dict(given[1])
        return tuple(given), {}
    raise ModelError(f"{source} has no example inputs", why=f"they are a {type(given).__name__}", fix=_EXAMPLE)


def _replaced(
    inputs: Sequence[Any], named: Mapping[str, Any], arrays: Sequence[Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the user's own inputs, in order, in place of the examples."""
    torch = _torch()
    if len(arrays) != len(inputs) + len(named):
        raise ModelError(f"--inputs has {len(arrays)} arrays", why=f"the module takes {len(inputs) + len(named)}")
    tensors = [torch.from_numpy(array) for array in arrays]
    return tuple(tensors[: len(inputs)]), dict(zip(named, tensors[len(inputs) :], strict=True))


def _check_open(shapes: Mapping[str, Any], request: process.Request) -> None:
    """Raise BuildError where a dimension that was to stay open has one size.

    PyTorch fixes a dimension silently where the module or an example of size 1 requires it.
    """
    for name, names in request.dynamic.items():
        for axis, wanted in enumerate(names):
            if wanted and isinstance(shapes[name][axis], int):
                raise BuildError(
                    f"dimension {axis} of {name!r} cannot stay open",
                    why=f"PyTorch fixed it at {shapes[name][axis]}, as {request.source} or its example inputs make it",
                    where="--dynamic",
                    fix=f"example inputs of another size there than 1; or leave {wanted!r} out: write _",
                )


def _for_all(
    dynamic: Mapping[str, Any], module: Any, inputs: Sequence[Any], named: Mapping[str, Any]
) -> dict[str, Any]:
    """Return all parameters by name, as the exporter needs. Raises ModelError for unknown parameters and dimensions."""
    parameters = [*list(inspect.signature(module.forward).parameters)[: len(inputs)], *named]
    given = dict(zip(parameters, [*inputs, *named.values()], strict=True))
    for name, dimensions in dynamic.items():
        if name not in parameters:
            raise ModelError(f"no input {name!r}{nearest(name, parameters)}", why=f"inputs: {', '.join(parameters)}")
        rank = getattr(given[name], "ndim", 0)
        if max(dimensions, default=0) >= rank:
            raise ModelError(
                f"{name!r} has no dimension {max(dimensions)}",
                why=f"the example has {rank}, counted from 0",
                where="--dynamic",
                fix=f"{rank} names at most; _ for what stays fixed",
            )
    return {name: dynamic.get(name) for name in parameters}


def _keep(path: Path, given: Iterable[str], values: Any, source: str) -> None:
    names, found = list(given), list(tensors(values))
    if len(names) != len(found):
        raise BuildError(
            f"the ONNX model of {source} has other inputs or outputs",
            why=f"it has {', '.join(names)}, PyTorch {len(found)} tensors",
            fix="take out inputs that are not used, and outputs that are not tensors",
        )
    process.write_arrays(path, {name: tensor.detach().numpy() for name, tensor in zip(names, found, strict=True)})
