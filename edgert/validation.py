"""Checks of a pipeline that open no camera, and run neither engines nor user code."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from edgert.assemble import assemble
from edgert.board import detect
from edgert.board.devices import CSI_INSTEAD, why_no_csi, why_no_mjpeg
from edgert.board.record import board as board_of
from edgert.config import PipelineFile, SourceStage
from edgert.config.engine_choice import ORT, ORT_CUDA
from edgert.config.pipeline_file import CODE_PREFIX, read_pipeline
from edgert.errors import ConfigError, ModelError
from edgert.graph import load
from edgert.graph.inspection import unsupported_nodes
from edgert.stages.source.kinds import kind_of
from edgert.user_code import check_object, registered_operators
from edgert.videos import with_first_video

_NOT_RUN = f"{__name__}:not_run"


@dataclass(frozen=True, slots=True)
class Validation:
    """Summary of a valid pipeline; ``str()`` is one line about it.

    Attributes:
        stages: number of stages.
        models: number of models that stages run.
        read_code: whether the file names user code, which was read but not run.
        notes: remarks on the overlay, and on sources that do not work on a board.
    """

    stages: int
    models: int
    read_code: bool
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        counts = f"{self.stages} stages, {self.models} model{'' if self.models == 1 else 's'}"
        read = "code of your own was read, not run" if self.read_code else ""
        return "; ".join(filter(None, (counts, read)))


def validate(path: str | Path, *, overrides: Iterable[str] = (), board: str | None = None) -> Validation:
    """Check a pipeline file, its models, images and labels, and user code by its text.

    All stages are made, with engines that have the models' inputs and outputs but do not run. So this raises every
    error of a start of ``edgert run``, except those of cameras, engines and user code.

    Args:
        path: path of the pipeline file, or name of a shipped one.
        overrides: ``key.path=value``, as given to ``--set``.
        board: name of the board on which its sources will run; None: this machine.

    Raises:
        EdgertError: the first error; ``others`` has further mistakes of the file.
    """
    file = with_first_video(read_pipeline(path, overrides, run_ops=False))
    for loc, spec in file.config.code.items():
        check_object(spec, file.where(*loc), file.document.path.parent)
    _check_operators(file)
    notes = tuple(filter(None, (file.document.overlay_note, *_board_notes(file, board))))
    models = {name: one.model_copy(update={"backend": "null"}) for name, one in file.config.models.items()}
    found: dict[str, dict[str, Any]] = {"stages": dict(file.config.stages), "models": models}
    for section, name, *inner in file.config.code:  # a function without effect replaces the user's
        found[section][name] = _with_not_run(found[section][name], inner)
    assembly = assemble(replace(file, config=file.config.model_copy(update={**found, "engines": ()})))
    assembly.close()
    has_code = bool(file.config.code or file.config.ops)
    return Validation(len(file.config.stages), len(assembly.engines), has_code, notes)


def _board_notes(file: PipelineFile, name: str | None) -> Iterator[str]:
    """Yield remarks on sources on a board. Raises ConfigError for sources that cannot work, and unknown boards."""
    here = detect()
    soc, l4t, record = here.soc, here.l4t, here.board
    if name is not None:
        record = board_of(name)
        soc, l4t = record.soc, ""
    title = record.title if record is not None else here.name
    for stage, config in file.config.stages.items():
        if not isinstance(config, SourceStage):
            continue
        kind, where = kind_of(config.source, file.document.path.parent), file.where("stages", stage, "source")
        if kind == "csi" and (why := why_no_csi(soc, l4t)):
            if l4t:
                raise ConfigError(f"{config.source} does not work on this board", why=why, where=where, fix=CSI_INSTEAD)
            yield f"{where}: {config.source} on a {title}: {why}; instead: {CSI_INSTEAD}"
        is_mjpeg = kind == "camera" and (config.format or "").lower() == "mjpeg"
        if is_mjpeg and config.decode == "gpu" and (why := why_no_mjpeg(soc)):
            what = f"decode: gpu is not possible on a {title}"
            fix = "leave decode: out, so that the CPU decodes; or format: h264"
            raise ConfigError(what, why=why, where=file.where("stages", stage, "decode"), fix=fix)


def not_run(*_: object, **__: object) -> tuple[()]:
    """Return nothing, in place of the user's functions and as a source without images."""
    return ()


def _check_operators(file: PipelineFile) -> None:
    """Raise ModelError for a node that no engine of the file supports."""
    own: set[str] = set()
    for path in file.config.ops:
        named = registered_operators(path, file.where("ops"))
        if named is None:
            return
        own |= named
    chain = set(file.config.engines or (ORT,))
    for name, config in file.config.models.items():
        # TensorRT's plugins are on the board, so its engines may support operators that are unknown here.
        with_plugins = config.backend in ("tensorrt", "null")
        with_plugins = with_plugins or (config.backend == "auto" and not chain <= {ORT, ORT_CUDA})
        if with_plugins:
            continue
        with file.locating(file.where("models", name, "onnx")):
            why = unsupported_nodes(load(config.onnx), own)
        if why:
            raise ModelError(
                f"no engine can run model {name!r}",
                why=why,
                where=file.where("models", name, "onnx"),
                fix="replace these nodes, or register their operators: edgert.op (docs/operators.md)",
            )


def _with_not_run(record: Any, inner: list[str]) -> Any:
    """Return a frozen section with :func:`not_run` at a key path."""
    key, *deeper = inner
    if not deeper:
        return record.model_copy(update={key: CODE_PREFIX + _NOT_RUN if key == "source" else _NOT_RUN})
    return record.model_copy(update={key: _with_not_run(getattr(record, key), deeper)})
