"""PyTorch to ONNX: exported programs, and modules that a function makes. The door to torch.

What is compared is the program or module as PyTorch runs it, without gradients and in evaluation mode.
"""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from edgert import installation
from edgert.errors import BuildError, DeviceError, ModelError, nearest
from edgert.importer.conversion_process import FEEDS, MODEL, RESULTS, Request, read_arrays, write_arrays, write_versions
from edgert.user_code import load_object

_EXAMPLE = "return module, (torch.zeros(1, 3, 224, 224),)"


def convert_torch(request: Request, folder: Path) -> None:
    """Write the model, the example inputs and PyTorch's outputs.

    Raises:
        DeviceError: PyTorch or its exporter is not installed.
        ModelError: the function gives something else than a module and inputs.
        BuildError: PyTorch cannot export it.
    """
    torch = _torch()
    if request.kind == "program":
        module = torch.export.load(request.source)  # what fails here ends this process, with PyTorch's reason
        given = module.example_inputs
    else:
        module, given = _made(request)
    inputs, named = _inputs(given, request.source)
    if (folder / FEEDS).exists():
        inputs, named = _replaced(inputs, named, list(read_arrays(folder / FEEDS).values()))
    convert_module(torch, module, inputs, named, request, folder)


def convert_object(module: object, given: Any, request: Request, folder: Path) -> None:
    """Convert a module or program in this process; see :func:`convert_torch`. Raises ModelError for anything else."""
    torch = _torch()
    if not isinstance(module, (torch.nn.Module, torch.export.ExportedProgram)):
        raise ModelError(
            f"a {request.source} cannot be built", why="it is no torch.nn.Module and no file", fix="see edgert.build"
        )
    inputs, named = _inputs(given, request.source)
    convert_module(torch, module, inputs, named, request, folder)


def convert_module(
    torch: Any, module: Any, inputs: Sequence[Any], named: Mapping[str, Any], request: Request, folder: Path
) -> None:
    """Convert an nn.Module or an exported program; see :func:`convert_torch`.

    ``inputs`` and ``named`` are its positional and keyword arguments.
    """
    is_module = isinstance(module, torch.nn.Module)
    was_training = is_module and module.training
    runnable = module.eval() if is_module else module.module()
    dynamic = {
        name: {axis: torch.export.Dim(wanted) for axis, wanted in enumerate(names) if wanted}
        for name, names in request.dynamic.items()
    }
    try:
        with torch.no_grad():
            results = runnable(*inputs, **named)
        made = torch.onnx.export(
            module,
            tuple(inputs),
            kwargs=dict(named),
            dynamo=True,
            output_names=_output_names(results),
            opset_version=request.opset,
            dynamic_shapes=_for_all(dynamic, module, inputs, named) if is_module and dynamic else None,
            verbose=False,
        )
        made.save(str(folder / MODEL))
    except (torch.onnx.OnnxExporterError, RuntimeError) as error:
        raise BuildError(
            f"PyTorch cannot export {request.source}",
            why=_reason(error),
            fix="torch.export.export(module, inputs) alone shows more; take out what depends on values of the input",
        ) from error
    finally:
        if was_training:
            module.train()
    graph = made.model.graph
    if is_module:
        _check_open({str(value.name): value.shape for value in graph.inputs}, request)
    _keep(folder / FEEDS, [value.name for value in graph.inputs], list(_tensors((inputs, dict(named)))), request.source)
    _keep(folder / RESULTS, [value.name for value in graph.outputs], list(_tensors(results)), request.source)
    write_versions({"torch": str(torch.__version__), "onnxscript": metadata.version("onnxscript")}, folder)


def _torch() -> Any:
    try:
        import onnxscript  # noqa: F401 - torch.onnx needs it and would say so late
        import torch
    except ImportError as error:
        fix = f"{installation.command('torch')}, or --python PATH of another Python that has it"
        raise DeviceError("PyTorch cannot be used here", why=str(error), fix=fix) from error
    return torch


def _made(request: Request) -> tuple[Any, Any]:
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


def _check_open(shapes: Mapping[str, Any], request: Request) -> None:
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


def _output_names(results: Any) -> list[str] | None:
    """Return the names in a dict of outputs; PyTorch chooses names for anything else."""
    if isinstance(results, Mapping) and all(hasattr(one, "detach") for one in results.values()):
        return [str(name) for name in results]
    return None


def _tensors(value: Any) -> Iterator[Any]:
    """Yield the tensors in nested tuples, lists and dicts, in order."""
    if hasattr(value, "detach"):
        yield value
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from _tensors(one)
    elif isinstance(value, (tuple, list)):
        for one in value:
            yield from _tensors(one)


def _keep(path: Path, names: Sequence[str], tensors: Sequence[Any], source: str) -> None:
    if len(names) != len(tensors):
        raise BuildError(
            f"the ONNX model of {source} has other inputs or outputs",
            why=f"it has {', '.join(names)}, PyTorch {len(tensors)} tensors",
            fix="take out inputs that are not used, and outputs that are not tensors",
        )
    write_arrays(path, {name: tensor.detach().numpy() for name, tensor in zip(names, tensors, strict=True)})


def _reason(error: BaseException) -> str:
    """Return the first line of the innermost cause: exporters wrap it in pages of advice."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0].strip() if lines else ''}".rstrip(": ")
