"""Input and task of an ONNX model without a pipeline file: from its file, its family, and photos."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from edgert.config import InputConfig, ModelConfig, TaskConfig
from edgert.config.model_section import PythonTask, value_of, verb_of
from edgert.engine import output_shapes, wrong_inputs_error
from edgert.errors import EdgertError, ModelError
from edgert.graph import Model, TensorSpec, inputs, load
from edgert.graph.operators import is_integer
from edgert.stages.decode.guess import Guess
from edgert.wiring.check import find_contradictions, prior_for, rows_of, ties_of
from edgert.wiring.check_report import Row
from edgert.wiring.exporter_metadata import DeclaredSettings, declared_settings
from edgert.wiring.head_activation import with_activation
from edgert.wiring.judge import judge, kind_of_photo
from edgert.wiring.photos import PHOTO_LIMIT, ReadPhoto, read_photos
from edgert.wiring.prior import FAMILY, Prior, declared_options, declared_task, named_family
from edgert.wiring.search import CPU_SECONDS, Progress, Search, Subject, load_subject
from edgert.wiring.settings import SCALES, Setting
from edgert.wiring.trial import guesses, readings, refine_tasks, seen_classes, task_of

_DEFAULT_SIZE = 640
_EXACT_FIT = 3  # weight of a guess whose shapes fit in every number
_DEFAULT_INPUTS: dict[str, dict[str, object]] = {
    "detect": {"resize": "letterbox", "std": (255.0,)},
    "keypoints": {"resize": "letterbox", "std": (255.0,)},
    "classify": {"resize": "center_crop", "crop": 0.875},
    "segment": {"resize": "stretch"},
    "embed": {"resize": "stretch"},
    "text": {"resize": "letterbox", "anchor": "top_left", "pad": 127, "mean": (127.5,), "std": (127.5,)},
    "depth": {"resize": "stretch"},
    "image": {"resize": "stretch", "std": (255.0,)},
    "anomaly": {"resize": "stretch"},
    "python": {"resize": "letterbox", "std": (255.0,)},
}
"""Usual input of models for each task; without a std, ImageNet's mean and std are usual."""


@dataclass(frozen=True, slots=True, eq=False)
class Inferred:
    """Probable input and task of a model.

    Attributes:
        setting: input and task.
        size: network size, where it is dynamic; else None.
        spec: the model's only input.
        found: compiled model.
        prior: prior knowledge about the model.
        task_sure: whether the file names the task, or its outputs exactly fit one decoder and no other.
        sure: whether color, scale and placement are known from the file or family, or photos showed them.
        task_notes, input_notes: sentences on what was found, and why.
        report: settings that were tried on photos, the best first; empty without photos.
    """

    setting: Setting
    size: tuple[int, int] | None
    spec: TensorSpec
    found: Subject
    prior: Prior
    task_sure: bool
    sure: bool
    task_notes: tuple[str, ...]
    input_notes: tuple[str, ...]
    report: tuple[Row, ...] = ()


def infer(
    path: Path,
    images: Sequence[str | Path] = (),
    *,
    task: TaskConfig | None = None,
    own: Callable[[Subject], PythonTask] | None = None,
    is_own: bool = False,
    in_doubt: Sequence[str | Path] = (),
    limit: int = PHOTO_LIMIT,
    progress: Progress | None = None,
) -> Inferred:
    """Find the input settings and decoder of a model.

    Args:
        path: path of the ONNX file.
        images: photos, folders or videos, on which every plausible setting is tried.
        task: task of the outputs, where it is known.
        own: function that makes a decoder template, used where no decoder reads the outputs.
        is_own: whether a decoder template is made in any case.
        in_doubt: photos to use instead where neither the file nor its family shows how it is fed and read.
        limit: maximum number of photos.
        progress: function called with the number of runs so far and at most.

    Raises:
        ModelError: the file is not an ONNX model, its input is not one image, or no decoder can read its outputs.
        ConfigError: a photo cannot be read.
        StageError: a video cannot be read.
    """
    model = load(path)
    specs = inputs(model)
    if len(specs) != 1 or len(specs[0].shape) != 4:
        raise wrong_inputs_error({one.name: [size or "?" for size in one.shape] for one in specs}, str(path))
    (spec,), declared = specs, declared_settings(model)
    height, width = spec.shape[1:3] if spec.shape[3] in (1, 3) else spec.shape[2:]
    size = None
    if not isinstance(height, int) or not isinstance(width, int):
        family = named_family([spec.name], [one.name for one in model.proto.graph.output])
        usual = declared.size or (family.size if family else None) or (_DEFAULT_SIZE, _DEFAULT_SIZE)
        size = (width if isinstance(width, int) else usual[0], height if isinstance(height, int) else usual[1])
    gray = 1 in (spec.shape[1], spec.shape[3]) and 3 not in (spec.shape[1], spec.shape[3])
    blank = InputConfig(color="gray" if gray else "rgb").model_copy(update={"size": size})
    config = {"onnx": path.absolute(), "task": {"embed": "none"}, "input": blank}
    found = load_subject(ModelConfig.model_validate(config), declared.labels, str(path))
    notes = (*find_contradictions(declared, model, found), *integer_warnings(model))
    if own is not None and (is_own or not _has_decoder(found, declared)):
        return _guess_setting(found, blank, declared, size, spec, own(found), notes)
    made = _guess_setting(found, blank, declared, size, spec, task, notes)
    ([read], seen) = refine_tasks([made.setting.task], found.engine, found.session, found.network)
    made = replace(made, setting=replace(made.setting, task=read), task_notes=(*made.task_notes, *seen))
    if task is None:
        own_task = with_activation(made.setting.task, model, tuple(output_shapes(found.engine)), len(declared.labels))
        made = replace(made, setting=replace(made.setting, task=own_task))
    photos = images or (() if made.sure and made.task_sure else in_doubt)
    return _try_on_photos(made, read_photos(photos, limit), progress) if photos else made


def _has_decoder(found: Subject, declared: DeclaredSettings) -> bool:
    try:
        return bool(readings(None, found.engine, declared.labels, found.network, _declared_decoder(declared, found)))
    except ModelError:
        return False


def _declared_decoder(declared: DeclaredSettings, found: Subject) -> Guess | None:
    shapes = tuple(output_shapes(found.engine))
    return declared_task(declared, shapes) or seen_classes(found.engine, found.session)


def _guess_setting(
    found: Subject,
    blank: InputConfig,
    declared: DeclaredSettings,
    size: tuple[int, int] | None,
    spec: TensorSpec,
    task: TaskConfig | None,
    warnings: tuple[str, ...],
) -> Inferred:
    meant = _declared_decoder(declared, found)
    looks = guesses(found.engine, len(declared.labels) or None, meant)
    read = readings(task, found.engine, declared.labels, found.network, meant)[0]
    notes: tuple[str, ...] = (f"{verb_of(read)}: {value_of(read)}, as it was given",)
    if task is None:
        reason = next(look.reason for look in looks if task_of(look) == read)
        names = [[one.name for one in tensors] for tensors in (found.engine.inputs, found.engine.outputs)]
        if options := declared_options(declared, read, *names):
            read = read.model_copy(update={"options": dict(options)})
        notes = (f"{verb_of(read)}: {value_of(read)}, because {reason}",)
        others = [str(look) for look in looks if (look.task, look.decoder) != (verb_of(read), value_of(read))]
        if others and not meant:
            notes += (f"it could also be {', '.join(others)}",)
    notes += warnings
    usual = dict(_DEFAULT_INPUTS[verb_of(read)])
    if found.dtype in ("uint8", "int8", "int32"):
        usual |= {"mean": (128.0,) if found.dtype == "int8" else (0.0,), "std": (1.0,)}
    elif "std" not in usual and blank.color == "gray":
        usual["std"] = (255.0,)
    elif "std" not in usual:
        usual["mean"], usual["std"] = SCALES["ImageNet"]
    base = Setting(blank.model_copy(update=usual), read)
    prior = prior_for(found, base, declared, readings(task, found.engine, declared.labels, found.network, meant))
    sure = prior.margin >= FAMILY and {"color", "std"} <= prior.input.keys()
    weights = [look.weight for look in looks] + [0, 0]
    is_first = bool(looks) and str(looks[0]) == f"{verb_of(read)}: {value_of(read)}"
    task_sure = task is not None or (is_first and weights[0] >= _EXACT_FIT and weights[0] > weights[1])
    why = ("color and scale are what such models usually want", "no photo was given to try them on")
    if prior.source:
        why = (prior.source, "no photo was given to try it on")
    return Inferred(Setting(prior.applied(base.input), read), size, spec, found, prior, task_sure, sure, notes, why)


def _try_on_photos(made: Inferred, photos: Sequence[ReadPhoto], progress: Progress | None) -> Inferred:
    base, found = made.setting, made.found
    labels = made.prior.declared.labels
    tasks = readings(base.task, found.engine, labels, found.network)
    tasks, _ = refine_tasks(tasks, found.engine, found.session, found.network)
    search = Search(found, photos, verb_of(base.task), progress)
    if (cost_s := search.photo_cpu_s) > CPU_SECONDS:
        why = f"one setting on one photo takes {cost_s:.0f} s of processor time, and all may take {CPU_SECONDS:.0f} s"
        return replace(made, input_notes=(*made.input_notes[:1], f"no photo was tried: {why}"))
    try:
        search.explore(base, tasks)
    except EdgertError as error:  # the base setting, which is tried in any case, was refused
        return replace(made, input_notes=(*made.input_notes[:1], f"no photo was tried: {error.what}"))
    judgment = judge(search.ranking, made.prior, search.ranking.add(base))
    chosen, count = judgment.chosen.setting, "1 photo" if len(photos) == 1 else f"{len(photos)} photos"
    rows = rows_of(search.ranking, None)
    show = "shows" if len(photos) == 1 else "show"
    first = f"right, as far as {count} {show}" if judgment.settled else f"{count} cannot tell for sure"
    if not judgment.settled:
        more = judgment.more_photos
        first += f"; take {'more' if more is None else f'about {more} more'} {kind_of_photo(judgment, labels)}".rstrip()
    source = made.prior.of(chosen.task).source
    known = (source,) if source else ()
    cut = (f"only some settings were tried, for {CPU_SECONDS:.0f} s of processor time",) if search.is_cut_short else ()
    notes = (f"{first}: the best of {len(rows)} settings", *cut, *known, *ties_of(judgment, len(photos)))
    reasons = made.task_notes
    if "task" in base.differing(chosen):
        reasons = (f"{verb_of(chosen.task)}: {value_of(chosen.task)}, because it reads the outputs best on the photos",)
    return replace(made, setting=chosen, sure=judgment.settled, task_notes=reasons, input_notes=notes, report=rows)


def integer_warnings(model: Model) -> tuple[str, ...]:
    """Return a warning where a model has integer operators that TensorRT lacks; else an empty tuple."""
    found = next((node.op_type for node in model.proto.graph.node if is_integer(node.op_type)), "")
    if not found:
        return ()
    return (f"it was quantized for ONNX Runtime: TensorRT has no {found}; on a GPU or DLA, the float model is wanted",)
