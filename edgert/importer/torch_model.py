"""Conversion of PyTorch's exported programs and modules to ONNX. Only this module imports torch.

The ONNX model is compared with what PyTorch computes without gradients and in evaluation mode.
"""

import difflib
import importlib
import inspect
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from edgert import installation, user_code
from edgert.errors import BuildError, DeviceError, ModelError, cause, nearest, raised_as
from edgert.importer import conversion_process as process
from edgert.importer.torch_export import Call, export, inverted_inputs, reason_of, tensors

# Models of torchvision and timm by name: ``torchvision:fasterrcnn_resnet50_fpn``, ``timm:resnet18.a1_in1k``.
#
# Their weights are downloaded by the package, or random. Only this part imports torchvision and timm.

RANDOM = "random"
_SCORES = re.compile(r"(cls_logits|cls_score|classification_head\.module_list\.\d+(\.1)?)$")
"""Layers that compute class scores in torchvision's detectors."""
_SPREAD = 3.0
"""Standard deviation of their outputs, so that some boxes get high scores."""


def named_model(torch: Any, request: process.Request) -> tuple[Any, tuple[Any, ...], bool]:
    """Return a module, its example image, and whether torch.export is known to fail on it."""
    package, _, name = request.source.partition(":")
    fix = f"pip install {package} into {sys.executable}, or --python PATH of another Python that has it"
    with raised_as(DeviceError, f"{package} cannot be used here", of=ImportError, fix=fix):
        library = importlib.import_module(package)
    torch.manual_seed(0)  # random weights are the same every time
    make = _torchvision_model if package == "torchvision" else _timm_model
    try:
        module, size, is_detector = make(library, name, request)
        module.eval()
        if is_detector and request.weights == RANDOM:
            _spread_scores(torch, module, torch.rand(3, size[1], size[0]))
    except (OSError, RuntimeError) as error:  # no network, a damaged file
        raise BuildError(
            f"the weights {request.weights!r} of {request.source} cannot be had",
            why=cause(error) if isinstance(error, OSError) else str(error).partition("\n")[0],
            fix="check the network; or --weights random, for a model that runs and finds nothing",
        ) from error
    return module, (torch.rand(1, 3, size[1], size[0]),), is_detector


def _torchvision_model(library: Any, name: str, request: process.Request) -> tuple[Any, tuple[int, int], bool]:
    models = library.models
    folders = models, models.segmentation, models.detection
    _check_model_name(name, [one for folder in folders for one in models.list_models(module=folder)], request)
    weights = _find_weights(models.get_model_weights(name), request)
    taken = inspect.signature(models.get_model_builder(name)).parameters
    settings: dict[str, Any] = {"weights": weights}
    if weights is None and "weights_backbone" in taken:
        settings["weights_backbone"] = None
    module = models.get_model(name, **settings)
    if name in models.list_models(module=models.detection):
        return module, _detector_size(module, request.size), True
    size = request.size or _preset_size(models.get_model_weights(name).DEFAULT.transforms())
    return module, (size[0], size[1]), False


def _find_weights(known: Any, request: process.Request) -> Any:
    if request.weights == RANDOM:
        return None
    names = ["DEFAULT", *(one.name for one in known)]
    if request.weights not in names:
        raise ModelError(
            f"{request.source} has no weights {request.weights!r}", where="--weights", fix=", ".join([*names, RANDOM])
        )
    return known[request.weights] if request.weights != "DEFAULT" else known.DEFAULT


def _detector_size(module: Any, size: Sequence[int] | None) -> tuple[int, int]:
    """Return the example's size, and set the size to which the detector scales images to it."""
    transform = module.transform
    own = getattr(transform, "fixed_size", None) or (transform.min_size[-1],) * 2
    if size is None:
        return int(own[0]), int(own[1])
    if getattr(transform, "fixed_size", None) is None:
        transform.min_size, transform.max_size = (min(size),), max(size)
    return int(size[0]), int(size[1])


def _preset_size(preset: Any) -> tuple[int, int]:
    found = getattr(preset, "crop_size", None) or preset.resize_size
    return int(found[-1]), int(found[0])


def _timm_model(library: Any, name: str, request: process.Request) -> tuple[Any, tuple[int, int], bool]:
    _check_model_name(name, [*library.list_models(), *library.list_pretrained()], request)
    if request.weights not in ("DEFAULT", RANDOM):
        fix = f"DEFAULT or random; other weights are part of the name: timm:{name.partition('.')[0]}.TAG"
        raise ModelError(f"{request.source} has no weights {request.weights!r}", where="--weights", fix=fix)
    module = library.create_model(name, pretrained=request.weights == "DEFAULT", exportable=True)
    _, height, width = library.data.resolve_model_data_config(module)["input_size"]
    size = request.size or (width, height)
    return module, (size[0], size[1]), False


def _spread_scores(torch: Any, module: Any, image: Any) -> None:
    """Scale the random weights of a detector so that it finds boxes with different scores.

    Otherwise it finds no boxes, or equal ones, and two runs cannot be compared.
    """

    def normalize(layer: Any, given: Any) -> None:
        layer.running_mean.copy_(given[0].mean((0, 2, 3)))
        layer.running_var.copy_(given[0].var((0, 2, 3), unbiased=False) + 1e-3)

    def spread(layer: Any, _: Any, result: Any) -> None:
        factor = float(_SPREAD / result.std().clamp(min=1e-6))
        if factor < 1 or layer not in spreads:  # the level with the largest outputs scales a shared layer
            layer.weight.mul_(factor)
        spreads.add(layer)

    hooks, spreads = [], set[Any]()
    for name, layer in module.named_modules():
        if hasattr(layer, "running_var"):
            hooks.append(layer.register_forward_pre_hook(normalize))
        elif _SCORES.search(name) and hasattr(layer, "weight"):
            hooks.append(layer.register_forward_hook(spread))
    with torch.no_grad():
        module([image, 1 - image])
    for hook in hooks:
        hook.remove()


def _check_model_name(name: str, names: Sequence[str], request: process.Request) -> None:
    """Raise ModelError, with similar names, if a package has no such model."""
    if name in names:
        return
    package = request.source.partition(":")[0]
    near = difflib.get_close_matches(name, names, n=5, cutoff=0.5)
    raise ModelError(
        f"{package} has no model {name!r}",
        why=f"it has {len(names)} others that take an image",
        fix=f"near it: {', '.join(near)}" if near else f"{package}:{sorted(names)[0]}, for example",
    )


_EXAMPLE = "return module, (torch.zeros(1, 3, 224, 224),)"


def convert_torch(request: process.Request, folder: Path) -> process.Answer:
    """Write the ONNX model, the example inputs and PyTorch's outputs; return what converted it."""
    torch, is_traced_first = _import_torch(), False
    if request.kind == "program":
        module = torch.export.load(request.source)  # an error here ends the process with PyTorch's reason
        given = module.example_inputs
    elif request.kind == "named":
        module, given, is_traced_first = named_model(torch, request)
    else:
        module, given = _call_function(request)
    inputs, named = _split_arguments(given, request.source)
    if (folder / process.FEEDS).exists():
        inputs, named = _user_inputs(inputs, named, list(process.read_arrays(folder / process.FEEDS).values()))
    return convert_module(torch, module, inputs, named, request, folder, is_traced_first)


def convert_object(module: object, given: Any, request: process.Request, folder: Path) -> process.Answer:
    """Convert a module or program in this process; see :func:`convert_torch`. Raises ModelError for anything else."""
    torch = _import_torch()
    if not isinstance(module, (torch.nn.Module, torch.export.ExportedProgram)):
        raise ModelError(
            f"{request.source} cannot be built",
            why="it is neither a torch.nn.Module nor a file",
            fix="see edgert.build",
        )
    inputs, named = _split_arguments(given, request.source)
    return convert_module(torch, module, inputs, named, request, folder)


def convert_module(
    torch: Any,
    module: Any,
    inputs: Sequence[Any],
    named: Mapping[str, Any],
    request: process.Request,
    folder: Path,
    is_traced_first: bool = False,
) -> process.Answer:
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
    dynamic = _dynamic_by_parameter(named_dims, module, inputs, named) if is_module and named_dims else None
    try:
        with torch.no_grad():
            results = runnable(*inputs, **named)
            made = export(
                torch, Call(module, inputs, named, results, is_traced_first), dynamic, request, folder / process.MODEL
            )
            if made.is_traced:
                others = inverted_inputs(torch, (tuple(inputs), dict(named)))
                _write_tensors(folder / process.OTHER_FEEDS, made.inputs, others, request.source)
                _write_tensors(
                    folder / process.OTHER_RESULTS, made.outputs, runnable(*others[0], **others[1]), request.source
                )
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
        _check_open_dimensions(made.inputs, request)
    _write_tensors(folder / process.FEEDS, made.inputs, (tuple(inputs), dict(named)), request.source)
    _write_tensors(folder / process.RESULTS, made.outputs, results, request.source)
    versions = {"torch": str(torch.__version__), "onnxscript": metadata.version("onnxscript")}
    return {"versions": versions, "exporter": made.exporter}


def _import_torch() -> Any:
    try:
        import onnxscript  # noqa: F401 - torch.onnx needs it and would say so late
        import torch
    except ImportError as error:
        fix = f"{installation.command('torch')}, or --python PATH of another Python that has both"
        why = f"PyTorch and onnxscript export the model, and there is: {error}"
        raise DeviceError("PyTorch cannot be used here", why=why, fix=fix) from error
    return torch


def _call_function(request: process.Request) -> tuple[Any, Any]:
    torch = _import_torch()
    function: Any = user_code.load_object(request.source, "SOURCE", Path(request.search))
    made = function()
    if not isinstance(made, (tuple, list)) or len(made) != 2 or not isinstance(made[0], torch.nn.Module):
        raise ModelError(
            f"{request.source} gives no module with its inputs",
            why=f"it returned {type(made).__name__}",
            fix=f"{_EXAMPLE}: an nn.Module, and a tensor, a tuple of tensors or a dict of them by parameter",
        )
    return made[0], made[1]


def _split_arguments(given: Any, source: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return positional and keyword arguments: a program has both, a function returns either."""
    torch = _import_torch()
    if isinstance(given, torch.Tensor):
        return (given,), {}
    if isinstance(given, dict):
        return (), dict(given)
    if isinstance(given, (tuple, list)):
        if len(given) == 2 and isinstance(given[0], (tuple, list)) and isinstance(given[1], dict):
            return tuple(given[0]), dict(given[1])
        return tuple(given), {}
    raise ModelError(f"{source} has no example inputs", why=f"they are of type {type(given).__name__}", fix=_EXAMPLE)


def _user_inputs(
    inputs: Sequence[Any], named: Mapping[str, Any], arrays: Sequence[Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    torch = _import_torch()
    if len(arrays) != len(inputs) + len(named):
        raise ModelError(f"--inputs has {len(arrays)} arrays", why=f"the module takes {len(inputs) + len(named)}")
    tensors = [torch.from_numpy(array) for array in arrays]
    return tuple(tensors[: len(inputs)]), dict(zip(named, tensors[len(inputs) :], strict=True))


def _check_open_dimensions(shapes: Mapping[str, Any], request: process.Request) -> None:
    """Raise BuildError if a dimension that should stay open has a fixed size.

    PyTorch fixes a dimension without notice if the module or an example of size 1 requires it.
    """
    for name, names in request.dynamic.items():
        if name not in shapes:
            raise BuildError(
                f"dimensions of {name!r} cannot stay open",
                why=f"PyTorch exported {request.source} with other inputs: {', '.join(shapes)}",
                where="--dynamic",
                fix="leave --dynamic out",
            )
        for axis, wanted in enumerate(names):
            if wanted and isinstance(shapes[name][axis], int):
                raise BuildError(
                    f"dimension {axis} of {name!r} cannot stay open",
                    why=f"PyTorch fixed it at {shapes[name][axis]}, as {request.source} or its example inputs require",
                    where="--dynamic",
                    fix=f"give example inputs with a size above 1 there; or leave {wanted!r} out: write _",
                )


def _dynamic_by_parameter(
    dynamic: Mapping[str, Any], module: Any, inputs: Sequence[Any], named: Mapping[str, Any]
) -> dict[str, Any]:
    """Return open dimensions by parameter. Raises ModelError for unknown parameters and dimensions."""
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


def _write_tensors(path: Path, given: Iterable[str], values: Any, source: str) -> None:
    names, found = list(given), list(tensors(values))
    if len(names) != len(found):
        raise BuildError(
            f"the ONNX model of {source} has other inputs or outputs",
            why=f"it has {', '.join(names)}, PyTorch {len(found)} tensors",
            fix="remove unused inputs, and outputs that are not tensors",
        )
    process.write_arrays(path, {name: tensor.detach().cpu().numpy() for name, tensor in zip(names, found, strict=True)})
