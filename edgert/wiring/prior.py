"""Prior knowledge about a model, before it runs: declarations of its exporter, and settings of its family."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from pydantic import ValidationError

from edgert.config import InputConfig, TaskConfig
from edgert.config.model_section import value_of, verb_of
from edgert.graph.metadata import literal
from edgert.stages.decode.decoder import Shapes, is_rows_of_six
from edgert.stages.decode.guess import MOST_QUERIES, Guess
from edgert.wiring.exporter_metadata import DeclaredSettings
from edgert.wiring.known import FAMILIES, PLACEMENT_FAMILIES, Family
from edgert.wiring.settings import GROUPS, Setting, differs, has_crossed_means

FILE, FAMILY, USUAL = 5.0, 3.0, 1.0
"""Standard errors by which photos must contradict the model's file, its family's code, and usual practice."""


@dataclass(frozen=True, slots=True)
class Prior:
    """Probable input of a model, and how certain it is.

    Attributes:
        declared: declarations of the model's file.
        family: family of the model; None where none fits.
        input: known keys of ``input:``.
        margin: standard errors by which photos must contradict the known keys.
        placed: the same for the placement of images, where that is larger.
        source: source of the knowledge, in words.
        others: prior knowledge for other tasks, by decoder, as ``detect: yolov8``.
    """

    declared: DeclaredSettings = field(default_factory=DeclaredSettings)
    family: Family | None = None
    input: Mapping[str, object] = field(default_factory=dict)
    margin: float = 0.0
    placed: float = 0.0
    source: str = ""
    others: Mapping[str, "Prior"] = field(default_factory=dict)

    def of(self, task: TaskConfig) -> "Prior":
        return self.others.get(_decoder_text(task), self)

    def applied(self, base: InputConfig) -> InputConfig:
        return base.model_copy(update=dict(self.input))

    def against(self, setting: Setting) -> float:
        """Return the standard errors that prior knowledge counts against a setting.

        They are the sum of the margins of color, scale and placement where these differ from the known input. A task
        that the graph contradicts and, where nothing is known, crossed means are added.
        """
        own = self.of(setting.task)
        expected = Setting(own.applied(setting.input), setting.task)
        margins = {"placement": max(own.margin, own.placed)}
        known = sum(margins.get(group, own.margin) for group in GROUPS if differs(setting, expected, group))
        is_denied = f"{verb_of(setting.task)}: {value_of(setting.task)}" in self.declared.denied
        return known + FILE * is_denied + USUAL * ("mean" not in own.input and has_crossed_means(setting.input))

    def taken(self, base: InputConfig, dtype: str) -> "Prior":
        """Return the part that applies to an input: gray has no color order, and integers have their own scales."""
        left_out = {"color", "mean", "std"} if base.color == "gray" else {"mean", "std"} if "int" in dtype else set()
        known = {key: value for key, value in self.input.items() if key not in left_out}
        return self if known == self.input else replace(self, input=known)


def declared_task(declared: DeclaredSettings, shapes: Shapes = ()) -> Guess | None:
    """Return the decoder that the metadata's ``task`` means for their exporter; None without one.

    Whether boxes are final is read from the outputs too, because some releases export ``nms=True`` without declaring
    it.

    Args:
        declared: declarations of the model's file.
        shapes: output shapes, without the batch dimension; empty where only the metadata shall decide.
    """
    family = _declaring_family(declared)
    if family is None:
        return None
    decoder = family.tasks[declared.metadata["task"]]
    if decoder in ("detect: yolov8", "detect: detr") and _is_final(declared, shapes):
        decoder = _FINAL_DECODER
    verb, _, kind = decoder.partition(": ")
    options: Mapping[str, object] = _point_options(declared) if decoder == "keypoints: yolo-pose" else {}
    return Guess(
        verb, kind, "the metadata in the file name the task", _DECLARED_WEIGHT, len(declared.labels) or None, options
    )


_DECLARED_WEIGHT = 9
"""Weight of a declared decoder."""


def _point_options(declared: DeclaredSettings) -> dict[str, int]:
    """Return the options of a pose that shapes do not show: the number of classes, and the numbers per point."""
    shape, classes = literal(declared.metadata.get("kpt_shape", "")), len(declared.labels)
    is_flat = isinstance(shape, (list, tuple)) and list(shape[1:]) == [2]
    return ({"classes": classes} if classes > 1 else {}) | ({"dims": 2} if is_flat else {})


def _is_final(declared: DeclaredSettings, shapes: Shapes) -> bool:
    """Return whether a detector's boxes are final: the exporter declares it, or [N, 6] can mean nothing else."""
    arguments = literal(declared.metadata.get("args", "{}"))
    is_suppressed = isinstance(arguments, dict) and arguments.get("nms") is True
    if literal(declared.metadata.get("end2end", "False")) is True or is_suppressed:
        return True
    # Queries of two classes have six columns too, and so have heads with a row for every cell.
    return is_rows_of_six(shapes) and shapes[0][0] <= MOST_QUERIES and len(declared.labels) not in (0, 2)


def declared_options(
    declared: DeclaredSettings, task: TaskConfig, inputs: Sequence[str] = (), outputs: Sequence[str] = ()
) -> Mapping[str, object]:
    """Return the task options that the exporter fixes, recognized by its metadata or its names of tensors."""
    family = _declaring_family(declared) or named_family(inputs, outputs)
    return family.final if family and _decoder_text(task) == _FINAL_DECODER else {}


_FINAL_DECODER = "detect: yolov10"


def _declaring_family(declared: DeclaredSettings) -> Family | None:
    """Return the first family that matches the metadata and knows their ``task``; None without one."""
    found = (family for family in FAMILIES if _matches_metadata(family, declared))
    return next((family for family in found if declared.metadata.get("task", "") in family.tasks), None)


def named_family(inputs: Sequence[str], outputs: Sequence[str]) -> Family | None:
    """Return the family whose exporter names inputs and outputs so; None without one."""
    names = " ".join(outputs).lower()
    for family in FAMILIES:
        takes = family.takes or (inputs if family.final else ())
        is_named = family.gives and not set(takes).isdisjoint(inputs)
        if is_named and family.reads and all(part in names for part in family.gives):
            return family
    return None


def prior_of(
    declared: DeclaredSettings,
    task: TaskConfig,
    inputs: Sequence[str],
    outputs: Sequence[str],
    length: int = 0,
    tall: bool = False,
) -> Prior:
    """Return the prior knowledge about a model with a task.

    Args:
        declared: declarations of the model's file.
        task: task with the decoder.
        inputs: names of the inputs.
        outputs: names of the outputs.
        length: number of elements of the only output for an image; 0 where there are several or it is dynamic.
        tall: whether the input is twice as high as wide, as for images of persons.
    """
    found = _family_prior(declared, task, inputs, outputs, length)
    for family in PLACEMENT_FAMILIES:
        fits = (
            _decoder_text(task) in family.reads
            and (tall or "embed: l2" not in family.reads)
            and _has_length(family, length)
        )
        if fits and found.margin < FAMILY and "resize" not in declared.input:
            known = {**found.input, **family.input}
            source = found.source or f"it is one of the {family.name}, placed as in {family.source}"
            return replace(found, input=known, placed=FAMILY, source=source)
    return found


def _family_prior(
    declared: DeclaredSettings, task: TaskConfig, inputs: Sequence[str], outputs: Sequence[str], length: int
) -> Prior:
    decoder, ranked = _decoder_text(task), list[tuple[float, bool, int, Family | None]]()
    names = " ".join(outputs).lower()
    for place, family in enumerate(FAMILIES):
        by_file = bool(family.metadata) and _matches_metadata(family, declared)
        if not by_file and (family.by_file or (family.results and len(outputs) not in (0, *family.results))):
            continue
        marked = bool(family.producer or family.gives)
        named = declared.producer.startswith(family.producer) and all(part in names for part in family.gives)
        named = named and (not family.takes or not set(family.takes).isdisjoint(inputs)) and _has_length(family, length)
        own = decoder.startswith(("detect", "keypoints", "text"))  # outputs of other tasks are alike in many families
        if decoder in family.reads and (by_file or (named and (marked or own))):
            weight = FILE if by_file else FAMILY if not marked or family.gives else USUAL
            ranked.append((weight, bool(family.gives), -place, family))
    margin, *_, best = max(ranked, default=(0.0, False, 0, None), key=lambda one: one[:3])
    known = {**(best.input if best else {}), **declared.input}
    if declared.input:
        return Prior(declared, best, _valid_or_empty(known), FILE, source=declared.source)
    if best is None:
        return Prior(declared)
    reasons = {
        FILE: "the file is one of",
        FAMILY: "its outputs are those of",
        USUAL: "its exporter is the usual one of",
    }
    return Prior(declared, best, known, margin, source=f"{reasons[margin]} {best.name}, fed as in {best.source}")


def _has_length(family: Family, length: int) -> bool:
    return not family.lengths or length in family.lengths


def _matches_metadata(family: Family, declared: DeclaredSettings) -> bool:
    return bool(family.metadata) and all(
        key in declared.metadata and text.lower() in declared.metadata[key].lower()
        for key, text in family.metadata.items()
    )


def _decoder_text(task: TaskConfig) -> str:
    verb = verb_of(task)
    return {"classify": "classify: auto", "embed": "embed: l2"}.get(verb, f"{verb}: {value_of(task)}")


def _valid_or_empty(known: Mapping[str, object]) -> dict[str, object]:
    """Return the keys if they form a valid input section, else none: a wrong declaration is not an error."""
    try:
        InputConfig.model_validate(known)
    except ValidationError:
        return {}
    return dict(known)
