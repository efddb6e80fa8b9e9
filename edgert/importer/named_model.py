"""Models of torchvision and timm by name: ``torchvision:fasterrcnn_resnet50_fpn``, ``timm:resnet18.a1_in1k``.

Weights are those that the package downloads, or random. The door to torchvision and timm.
"""

import difflib
import importlib
import inspect
import re
import sys
from collections.abc import Sequence
from typing import Any

from edgert.errors import BuildError, DeviceError, ModelError, cause
from edgert.importer.conversion_process import Request

RANDOM = "random"
_SCORES = re.compile(r"(cls_logits|cls_score|classification_head\.module_list\.\d+(\.1)?)$")
"""The last layers of classes in torchvision's detectors."""
_SPREAD = 3.0
"""Standard deviation of their numbers, so that some boxes are sure of their class."""


def named_model(torch: Any, request: Request) -> tuple[Any, tuple[Any, ...], bool]:
    """Return a module, its example image, and whether it is known that torch.export cannot export it.

    Raises:
        DeviceError: its package is not installed.
        ModelError: the package has no such model, or no such weights.
        BuildError: the weights cannot be read or downloaded.
    """
    package, _, name = request.source.partition(":")
    try:
        library = importlib.import_module(package)
    except ImportError as error:
        fix = f"pip install {package} into {sys.executable}, or --python PATH of another Python that has it"
        raise DeviceError(f"{package} cannot be used here", why=str(error), fix=fix) from error
    torch.manual_seed(0)  # so that random weights are the same every time
    make = _of_torchvision if package == "torchvision" else _of_timm
    try:
        module, size, is_detector = make(library, name, request)
        module.eval()
        if is_detector and request.weights == RANDOM:
            _make_sure(torch, module, torch.rand(3, size[1], size[0]))
    except (OSError, RuntimeError) as error:  # no network, a damaged file
        raise BuildError(
            f"the weights {request.weights!r} of {request.source} cannot be had",
            why=cause(error) if isinstance(error, OSError) else str(error).partition("\n")[0],
            fix="check the network; or --weights random, for a model that runs and finds nothing",
        ) from error
    return module, (torch.rand(1, 3, size[1], size[0]),), is_detector


def _of_torchvision(library: Any, name: str, request: Request) -> tuple[Any, tuple[int, int], bool]:
    models = library.models
    folders = models, models.segmentation, models.detection
    _known(name, [one for folder in folders for one in models.list_models(module=folder)], request)
    weights = _weights(models.get_model_weights(name), request)
    taken = inspect.signature(models.get_model_builder(name)).parameters
    settings: dict[str, Any] = {"weights": weights}
    if weights is None and "weights_backbone" in taken:
        settings["weights_backbone"] = None
    module = models.get_model(name, **settings)
    if name in models.list_models(module=models.detection):
        return module, _detector_size(module, request.size), True
    size = request.size or _preset_size(models.get_model_weights(name).DEFAULT.transforms())
    return module, (size[0], size[1]), False


def _weights(known: Any, request: Request) -> Any:
    """Return the entry of torchvision's list of weights; None for random ones."""
    if request.weights == RANDOM:
        return None
    names = ["DEFAULT", *(one.name for one in known)]
    if request.weights not in names:
        raise ModelError(
            f"{request.source} has no weights {request.weights!r}", where="--weights", fix=", ".join([*names, RANDOM])
        )
    return known[request.weights] if request.weights != "DEFAULT" else known.DEFAULT


def _detector_size(module: Any, size: Sequence[int] | None) -> tuple[int, int]:
    """Return the size of the example, and make the detector keep it: it scales images to a size of its own."""
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


def _of_timm(library: Any, name: str, request: Request) -> tuple[Any, tuple[int, int], bool]:
    _known(name, [*library.list_models(), *library.list_pretrained()], request)
    if request.weights not in ("DEFAULT", RANDOM):
        fix = f"DEFAULT or random; other weights are part of the name: timm:{name.partition('.')[0]}.TAG"
        raise ModelError(f"{request.source} has no weights {request.weights!r}", where="--weights", fix=fix)
    module = library.create_model(name, pretrained=request.weights == "DEFAULT", exportable=True)
    _, height, width = library.data.resolve_model_data_config(module)["input_size"]
    size = request.size or (width, height)
    return module, (size[0], size[1]), False


def _make_sure(torch: Any, module: Any, image: Any) -> None:
    """Scale the random weights of a detector so that it finds boxes, of which none has the score of another.

    Otherwise it finds nothing, or boxes that are all alike, and two runs of it cannot be compared.
    """

    def normalize(layer: Any, given: Any) -> None:
        layer.running_mean.copy_(given[0].mean((0, 2, 3)))
        layer.running_var.copy_(given[0].var((0, 2, 3), unbiased=False) + 1e-3)

    def spread(layer: Any, _: Any, result: Any) -> None:
        factor = float(_SPREAD / result.std().clamp(min=1e-6))
        if factor < 1 or layer not in spreads:  # a layer of several levels is as large as suits the largest
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


def _known(name: str, names: Sequence[str], request: Request) -> None:
    """Raise ModelError, with the names that come near, where a package has no such model."""
    if name in names:
        return
    package = request.source.partition(":")[0]
    near = difflib.get_close_matches(name, names, n=5, cutoff=0.5)
    raise ModelError(
        f"{package} has no model {name!r}",
        why=f"it has {len(names)} others that take an image",
        fix=f"near it: {', '.join(near)}" if near else f"{package}:{sorted(names)[0]}, for example",
    )
