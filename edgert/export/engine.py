"""The engines of a model, as commands for trtexec."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from edgert.backend.base import EngineOptions
from edgert.backend.trt import BuildRequest
from edgert.backend.trt.library import Library, library_of
from edgert.backend.trt.request import GPU
from edgert.backend.trt.static import static_request
from edgert.build.order import orders
from edgert.build.prepared import FLOAT
from edgert.config.engine import TENSORRT, TENSORRT_DLA
from edgert.export.source import Item
from edgert.export.trtexec import Command, command
from edgert.graph.load import load


def commands_of(item: Item, tensorrt: str) -> list[Command]:
    """One command per engine that a board would build of a model, most frames first.

    Args:
        tensorrt: the release of trtexec.

    Raises:
        BuildError, CalibrationError, ModelError: that TensorRT, or its trtexec, cannot build the model.
    """
    library = library_named(tensorrt)
    found: list[Command] = []
    places: list[str] = []
    for request in _requests(item, library):
        place = GPU if request.dla_core is None else f"dla{request.dla_core}"
        places.append(place)
        number = places.count(place)
        stem = f"{item.name}/{place}{f'-{number}' if number > 1 else ''}"
        known = {name: content for one in found for name, content in one.members.items()}
        found.append(command(request, library, stem, known))
    return found


def dealt(item: Item) -> tuple[str, ...]:
    """How frames are shared among several engines, which is nothing that a build knows."""
    if len(item.engines) < 2:
        return ()
    shares = ", ".join(f"{'+'.join(one['accelerators'])} {one['share']:.0%}" for one in item.engines)
    return (f"frames are dealt to its engines: {shares}",)


def library_named(tensorrt: str) -> Library:
    """A release that need not be here. Raises BuildError for one that edgert does not know."""
    return library_of(SimpleNamespace(__version__=tensorrt, __name__="tensorrt"))


def _requests(item: Item, library: Library) -> list[BuildRequest]:
    if item.packed is None:
        return [static_request(load(item.forms[FLOAT]), EngineOptions(), title=str(Path(item.where)))]
    engine = TENSORRT_DLA if item.uses_dla else TENSORRT
    return [order.request for order in orders(item.packed, engine, library)]
