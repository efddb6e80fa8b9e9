"""PyTorch running a module of the user's: what edgert's engine is compared with. The only door to the torch package."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from edgert.backend.base import Array
from edgert.errors import BuildError, ConfigError, DeviceError
from edgert.user import load_object

Run = Callable[[], Mapping[str, Array]]


def module_run(spec: str, feeds: Mapping[str, Array], outputs: Sequence[str], threads: int) -> tuple[str, Run]:
    """A module in inference mode, as it is: neither compiled nor converted.

    Args:
        spec: ``module:function``, which takes nothing and returns an ``nn.Module``.
        feeds: input → array, given in this order.
        outputs: what the module's results are called, in their order.

    Returns:
        ``"torch 2.13.0"``, and what runs it once: output → array.

    Raises:
        DeviceError: PyTorch is not installed.
        ConfigError: there is no such function, or it returns something else.
        BuildError: the module cannot take the inputs.
    """
    torch = _torch()
    torch.set_num_threads(threads)
    network = _module(torch, spec)
    tensors = [torch.from_numpy(array) for array in feeds.values()]

    def run() -> Mapping[str, Array]:
        with torch.inference_mode():
            return dict(zip(outputs, map(_array, _flat(network(*tensors))), strict=False))

    try:
        run()
    except (RuntimeError, TypeError, ValueError) as error:
        takes = ", ".join(f"{name} {list(array.shape)} {array.dtype}" for name, array in feeds.items())
        raise BuildError(
            f"the module of {spec!r} cannot run",
            why=str(error).strip().partition("\n")[0],
            where="--torch",
            fix=f"it is called with the model's inputs: {takes}",
        ) from error
    return f"torch {torch.__version__.partition('+')[0]}", run


def _module(torch: Any, spec: str) -> Any:
    make: Any = load_object(spec, "--torch", Path.cwd())
    made = make()
    if not isinstance(made, torch.nn.Module):
        raise ConfigError(
            f"{spec!r} returns a {type(made).__name__}",
            why="a torch.nn.Module is what can be run",
            where="--torch",
            fix="def load(): return Network().eval(), and --torch file:load",
        )
    return made.eval()


def _flat(found: Any) -> Sequence[Any]:
    """What modules return: a tensor, several, or several by name."""
    if isinstance(found, Mapping):
        return list(found.values())
    return found if isinstance(found, (list, tuple)) else [found]


def _array(tensor: Any) -> Array:
    array: Array = tensor.detach().numpy()
    return array


def _torch() -> Any:
    try:
        return import_module("torch")
    except ImportError as error:
        raise DeviceError("PyTorch is not installed", why=str(error), fix="pip install torch") from error
