"""The engines of a model, as commands for trtexec."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

from edgert._version import __version__
from edgert.backend.base import EngineOptions
from edgert.backend.tensorrt import BuildRequest
from edgert.backend.tensorrt.build_request import GPU
from edgert.backend.tensorrt.trt_backend import static_request
from edgert.backend.tensorrt.version import Library, library_of
from edgert.compiler.engine_specs import engine_specs
from edgert.compiler.model_forms import FLOAT
from edgert.config.engine_choice import TENSORRT, TENSORRT_DLA
from edgert.exporter.source import Item
from edgert.exporter.trtexec import Command, command
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


def dispatch_shares(item: Item) -> tuple[str, ...]:
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
    return [spec.request for spec in engine_specs(item.packed, engine, library)]


# ``build.sh``: one trtexec command per engine, quoted for any shell.

_HEAD = """\
#!/bin/sh
# Builds {engines} with trtexec of TensorRT {tensorrt}. Written by edgert {version}.
# Another release may read these options otherwise, or not at all.
{limitations}set -eu
cd "$(dirname "$0")"
trtexec=${{TRTEXEC:-$(command -v trtexec || echo /usr/src/tensorrt/bin/trtexec)}}
"""


def script(commands: Sequence[Command], tensorrt: str, limitations: Sequence[str]) -> str:
    """The script's text.

    Args:
        commands: one per engine.
        tensorrt: the release they are for.
        limitations: what none of them says, in words.
    """
    engines = "one engine" if len(commands) == 1 else f"{len(commands)} engines"
    head = _HEAD.format(
        engines=engines, tensorrt=tensorrt, version=__version__, limitations="".join(_comments(limitations))
    )
    return "\n".join([head, *map(_call, commands)])


def _comments(lines: Sequence[str]) -> Iterator[str]:
    if lines:
        yield "#\n# Not said below, because trtexec has no words for it:\n"
    for line in lines:
        yield f"#   - {' '.join(line.split())}\n"


def _call(command: Command) -> str:
    options = " \\\n  ".join(map(shlex.quote, command.options))
    return f'"$trtexec" \\\n  {options}\n'
