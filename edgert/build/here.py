"""A pipeline file on a board with a DLA: what the DLA needs is built here once, kept, and found again.

A DLA wants a placement, scales and rewritten models, which is what a bundle has. So one is made for this very board, in
the cache, by the steps that make any bundle; the second time they do nothing. Sources, sinks and paths stay those of
the pipeline file: only its models are the bundle's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from edgert.artifact import cache_folder
from edgert.artifact.bundle import SUFFIX
from edgert.backend.chain import why_not
from edgert.backend.trt.backend import TrtBackend
from edgert.board import Machine, detect
from edgert.build.make import build
from edgert.build.unpack import Unpacked, unpacked
from edgert.compiler import Tell
from edgert.config import PipelineFile
from edgert.config.engine import TENSORRT_DLA


@contextmanager
def built_here(
    file: PipelineFile,
    *,
    strict: bool = False,
    machine: Machine | None = None,
    trt: TrtBackend | None = None,
    tell: Tell | None = None,
) -> Iterator[Unpacked | None]:
    """Builds what a pipeline's models need on this board's DLA; inside the block its files are there.

    Yields:
        The pipeline with models made ready, and who runs them. None where ``engines:`` does not name ``tensorrt-dla``,
        or this machine cannot run it: then the pipeline is run as it stands.

    Raises:
        EdgertError: as :func:`~edgert.build.make.build` and :func:`~edgert.build.unpack.unpacked`.
    """
    here, trt = machine or detect(), trt or TrtBackend()
    if TENSORRT_DLA not in file.config.engines or why_not(TENSORRT_DLA, here, trt):
        yield None
        return
    path = _kept(file.document.path)
    build(file, path, board=here.name, mode=_mode(here), tensorrt=trt.library.version, tell=tell)
    with unpacked(path, strict=strict, machine=here, trt=trt, tell=tell) as found:
        config = file.config.model_copy(update={"models": found.file.config.models})
        yield replace(found, file=replace(file, config=config))


def _kept(pipeline: Path) -> Path:
    """One bundle for each pipeline file."""
    digest = hashlib.sha256(str(pipeline.resolve()).encode()).hexdigest()[:16]
    return cache_folder() / "here" / f"{pipeline.stem}-{digest}{SUFFIX}"


def _mode(machine: Machine) -> str | None:
    """The power mode that the board is in, where its record knows it; else the usual one."""
    modes = machine.board.modes if machine.board is not None else ()
    return machine.mode if machine.mode in {mode.name for mode in modes} else None
