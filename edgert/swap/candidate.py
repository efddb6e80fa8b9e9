"""The new model of a swap: checks whether it can replace the running one, and its loading beside it."""

import math
import threading
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from edgert import meters, units
from edgert.assemble import Assembly, gpu_models, memory
from edgert.assemble.models import Models, batch_of
from edgert.backend import Shapes
from edgert.board.host import free_bytes
from edgert.config import InferStage, PipelineFile, flow, model_section
from edgert.config.document import changed_document
from edgert.engine import default_profile
from edgert.errors import BudgetError, ConfigError, ModelError, StageError, nearest
from edgert.graph import Model, inputs, load
from edgert.policy import Reads
from edgert.runtime import Stage
from edgert.stages.decode.kinds import labels_of
from edgert.swap.guard import Guard
from edgert.swap.model_trial import measure_memory
from edgert.swap.verdict import Terms

_SAME_SPACE_AGREEMENT = 0.9
"""Least agreement, a mean cosine, with which vectors of two models can be compared with each other."""


class Run(Protocol):
    """A running pipeline, as a swap uses it."""

    @property
    def file(self) -> PipelineFile:
        """The pipeline as it runs."""

    @property
    def assembly(self) -> Assembly:
        """Live objects of the pipeline."""

    @property
    def changing(self) -> threading.Lock:
        """Lock that is held while the pipeline is changed."""

    @property
    def prepared_why(self) -> str:
        """Why its file is not the user's, as part of an error; empty where it is."""

    @property
    def swaps(self) -> Mapping[str, Any]:
        """Model → its newest swap."""

    def state(self) -> Mapping[str, Any]:
        """Return the state of the run as plain data."""

    def set_file(self, file: PipelineFile) -> None:
        """Set the file that describes the pipeline from now on."""


@dataclass(frozen=True, slots=True)
class Place:
    """A task whose stage is replaced by one of the new model, and where that stage reads pixels."""

    task: str
    stage: str
    new: Stage
    reads: Reads


@dataclass(frozen=True, slots=True)
class NewModel:
    """A pipeline with a new model, which was read and checked, its digest, and the shapes of its dynamic inputs."""

    file: PipelineFile
    digest: str
    shapes: Shapes


@dataclass(frozen=True, slots=True)
class Candidate:
    """A loaded new model, and the tasks whose stages it replaces."""

    models: Models
    places: tuple[Place, ...]


def with_model_file(file: PipelineFile, name: str, onnx: Path) -> PipelineFile:
    """Return a pipeline in which the model ``name`` has another ONNX file."""
    data = deepcopy(file.document.data)
    data["models"][name]["onnx"] = str(onnx)
    document = changed_document(file.document, data)
    model = file.config.models[name].model_copy(update={"onnx": onnx})
    config = file.config.model_copy(update={"models": {**file.config.models, name: model}})
    return PipelineFile(config, document, file.passed_over)


def check_swap(run: Run, name: str, onnx: Path, terms: Terms) -> NewModel:
    """Check whether a model can be swapped for a file, which is read. Raises EdgertError: it cannot."""
    terms.check()
    file, what = run.file, f"model {name!r} cannot be swapped"
    config = file.config
    if name not in config.models:
        fix = f"models: {', '.join(config.models)}"
        raise ConfigError(f"unknown model {name!r}{nearest(name, config.models)}", fix=fix)
    if run.prepared_why:
        fix = "run a file or build a bundle with the new model"
        raise StageError(what, why=f"{run.prepared_why}, whose models are prepared before", fix=fix)
    users = [stage.infer for stage in config.stages.values() if isinstance(stage, InferStage)]
    turns = next((chain for one in users if name in (chain := flow.variants_of(config.models, one)) and chain[1:]), ())
    if turns:
        why = f"it takes turns with {' and '.join(set(turns) - {name})}"
        raise StageError(what, why=why, fix="change the file and restart")
    if name not in users:
        raise StageError(what, why="no stage runs it")
    if run.assembly.keeps_engines:
        raise StageError(what, why="the next video uses it too", fix="change the file and start again")
    if config.models[name].placement != "auto":
        raise StageError(what, why="it is placed on cores", fix="placement: auto, or change the file and restart")
    _check_task(config.models[name].task, terms)
    onnx = onnx.absolute()
    new = with_model_file(file, name, onnx)
    loaded, section = load(onnx), new.config.models[name]
    _check_inputs(run.assembly.engines[name], loaded)
    labels = [labels_of(one.config.models[name], f"models.{name}.task") for one in (file, new)]
    if labels[0] != labels[1]:
        why = "tracks, crops and results use class numbers, which must mean the same in both"
        raise ModelError("the new model has other classes", why=why, fix="change the file and restart")
    is_run = section.backend != "null"
    profiles = section.profiles or (default_profile(loaded, section, batch_of(config, name)) if is_run else {})
    return NewModel(new, loaded.digest, next(iter(profiles.values()), {}))


def _check_task(task: Any, terms: Terms) -> None:
    if not isinstance(task, model_section.EmbedTask) or (terms.shadow and terms.min_agreement >= _SAME_SPACE_AGREEMENT):
        return
    why = "galleries and trackers compare its vectors with those of the old model, so both must be of one space"
    fix = f"--shadow 500 --min-agreement {_SAME_SPACE_AGREEMENT:g}; for another space, a new gallery and a restart"
    raise StageError("a model that writes vectors must be judged before it takes over", why=why, fix=fix)


def _check_inputs(engine: Any, new: Model) -> None:
    ours, theirs = [one.shape for one in engine.inputs], [one.shape for one in inputs(new)]
    is_alike = [len(shape) for shape in ours] == [len(shape) for shape in theirs] and all(
        size == bound or not isinstance(size, int)
        for shape, runs in zip(theirs, ours, strict=True)
        for size, bound in zip(shape[1:], runs[1:], strict=True)  # loading may make the batch dynamic
    )
    if not is_alike:
        takes, wanted = (", ".join(str([*shape]) for shape in shapes) for shapes in (theirs, ours))
        why, fix = f"it takes {takes}; the model that runs takes {wanted}", "change the file and restart"
        raise ModelError("the new model has other inputs", why=why, where=str(new.path), fix=fix)


def load_candidate(run: Run, name: str, new: NewModel, cancel: threading.Event) -> Candidate | None:
    """Try the new model in a child process, then load and warm it beside the old one; return None where canceled.

    Raises EdgertError where it cannot be run, does not fit into memory, or cannot replace the old one.
    """
    assembly, file = run.assembly, new.file
    engine = assembly.engines[name]
    _check_room(run, name, new, cancel)
    if cancel.is_set():
        return None
    assert assembly.load is not None
    models, branches = assembly.load(file, name)
    try:
        loaded = models.engines[name]
        _check_same("inputs", engine, loaded)
        if isinstance(file.config.models[name].task, model_section.EmbedTask):
            _check_same("outputs", engine, loaded)
        places = [place for stage, made in branches.items() for place in _find_places(assembly, stage, made)]
        for place in places:
            place.new.open()
    except BaseException:
        models.close()
        raise
    return Candidate(models, tuple(places))


def _check_room(run: Run, name: str, new: NewModel, cancel: threading.Event) -> None:
    config, engine = new.file.config, run.assembly.engines[name]
    is_on_host = not gpu_models.is_on_gpu(engine) and memory.is_ort(config, name)
    model, budget = config.models[name], config.budgets.memory
    if model.backend == "null":
        return
    rooms = [free_bytes() or math.inf, math.inf if budget is None else max(budget - meters.rss_bytes(), 0)]
    room_bytes, needs_bytes = min(rooms), 1
    if is_on_host and room_bytes:
        limit_bytes = 0 if room_bytes == math.inf else round(room_bytes)
        needs_bytes = measure_memory(model.onnx, new.shapes, config.ops, limit_bytes, cancel) or 0
    elif room_bytes:
        needs_bytes = sum(part.size_bytes for part in memory.engine_parts(name, memory.sizes_of(config, name), 1))
    if needs_bytes > room_bytes:
        needs = f"the new model needs {units.format_bytes(needs_bytes)} of memory beside the old one"
        left = f"{units.format_bytes(round(room_bytes))} are left"
        left += "" if budget is None else f" of the budget of {units.format_bytes(budget)}"
        raise BudgetError(needs, why=left, fix="a smaller model, more memory, or change the file and restart")


def _check_same(what: str, old: Any, new: Any) -> None:
    ours, theirs = ([(one.shape, one.dtype) for one in getattr(engine, what)] for engine in (old, new))
    if ours != theirs:
        shown = [", ".join(f"{list(shape)} {dtype}" for shape, dtype in some) for some in (theirs, ours)]
        why = f"it has {shown[0]}; the model that runs has {shown[1]}"
        raise ModelError(f"the new model has other {what}", why=why, fix="change the file and restart")


def _find_places(assembly: Assembly, name: str, branches: Any) -> list[Place]:
    """Return the tasks for the new model's stages. Raises StageError: an old stage runs together with another one."""
    names = [name] if len(branches) == 1 else [f"{name}:{number}" for number in range(len(branches))]
    found, why = [], ""
    for task, branch in zip(names, branches, strict=True):
        old = next((one.stage for one in assembly.tasks if one.name == task), None)
        old = old.active if isinstance(old, Guard) else old
        if len(branch.stages) != 1 or type(old) is not type(branch.stages[0]) or len(getattr(old, "looks", ())) > 1:
            why = f"stage {name!r} runs together with another one"
            if type(old) in (type(None), type(branch.stages[0])):
                why += ", or in parts"
        found.append(Place(task, name, branch.stages[0], branch.reads))
    if why:
        raise StageError("the model cannot be swapped", why=why, fix="change the file and restart")
    return found
