"""Models with an operator that is not of the standard set."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from edgert.custom_op import _KNOWN, load_operators
from edgert.graph import Model
from edgert.installation import data_folder
from tests.helpers.models import Dims, make, node

EXAMPLE = data_folder("pipelines") / "my_operator.py"


def example() -> None:
    load_operators([EXAMPLE])


@contextmanager
def only_here() -> Iterator[None]:
    example()
    before = dict(_KNOWN)
    try:
        yield
    finally:
        _KNOWN.clear()
        _KNOWN.update(before)


def mish(x: np.ndarray, alpha: float = 0.5) -> np.ndarray:
    return alpha * x * np.minimum(2, np.maximum(0, x + 2))


def network(shape: Dims = (1, 3, 8, 8), ops: Sequence[str] = ("HardMishLite",), domain: str = "demo") -> Model:
    """``mean`` = the average per channel of a convolution of ``x``, after each of the operators."""
    example()
    random = np.random.default_rng(0)
    weights = {"w": random.standard_normal((4, 3, 3, 3)).astype("f4"), "b": random.standard_normal(4).astype("f4")}
    nodes = [node("Conv", ["x", "w", "b"], ["t0"], pads=[1, 1, 1, 1], name="conv")]
    for number, name in enumerate(ops):
        tensors = [f"t{number}"], [f"t{number + 1}"]
        nodes.append(node(name, *tensors, domain=domain, name=f"own{number}", alpha=0.25))
    nodes.append(node("GlobalAveragePool", [f"t{len(ops)}"], ["mean"], name="pool"))
    return make(nodes, {"x": shape}, {"mean": (shape[0], 4, 1, 1)}, weights)
