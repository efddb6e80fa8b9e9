"""What is known of a model before it runs: what its exporter wrote down, and how its family is fed and read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from pydantic import ValidationError

from edgert.config import InputConfig, TaskConfig
from edgert.config.model_section import value_of, verb_of
from edgert.graph.metadata import literal
from edgert.stages.decode.decoder import Shapes, is_rows_of_six
from edgert.stages.decode.guess import MOST_QUERIES, Guess
from edgert.wiring.exporter_metadata import DeclaredSettings
from edgert.wiring.families import FAMILIES, PLACED, Family
from edgert.wiring.settings import GROUPS, Setting, crossed, differs

FILE, FAMILY, USUAL = 5.0, 3.0, 1.0
"""Standard errors by which photos must contradict the model's file, its family's code, and the usual practice, before
they count."""


@dataclass(frozen=True, slots=True)
class Prior:
    """How a model is probably fed and read, and how much speaks for it.

    Attributes:
        declared: by its file.
        family: whose code is known; None where none fits.
        input: keys of ``input:`` that are known.
        margin: standard errors by which photos must speak against it.
        placed: the same for how images are placed, where that is firmer.
        source: why, in words.
        others: the same where outputs are read otherwise, by decoder, as a task writes it.
    """

    declared: DeclaredSettings = field(default_factory=DeclaredSettings)
    family: Family | None = None
    input: Mapping[str, object] = field(default_factory=dict)
    margin: float = 0.0
    placed: float = 0.0
    source: str = ""
    others: Mapping[str, "Prior"] = field(default_factory=dict)

    def of(self, task: TaskConfig) -> "Prior":
        """Return the prior knowledge for outputs of a task."""
        return self.others.get(_decoder(task), self)

    def applied(self, base: InputConfig) -> InputConfig:
        """Return ``base`` with the known keys."""
        return base.model_copy(update=dict(self.input))

    def against(self, setting: Setting) -> float:
        """Return the standard errors against a setting.

        They are the margin for each of color, scale and placement that differs from the known input of models with this
        task. They also count a task that the graph contradicts, and what is unusual where nothing is known.
        """
        own = self.of(setting.task)
        expected = Setting(own.applied(setting.input), setting.task)
        margins = {"placement": max(own.margin, own.placed)}
        known = sum(margins.get(group, own.margin) for group in GROUPS if differs(setting, expected, group))
        is_denied = f"{verb_of(setting.task)}: {value_of(setting.task)}" in self.declared.denied
        return known + FILE * is_denied + USUAL * ("mean" not in own.input and crossed(setting.input))

    def taken(self, base: InputConfig, dtype: str) -> "Prior":
        """Return the part that holds for such an input: gray has no color order, integers have scales of their own."""
        left_out = {"color", "mean", "std"} if base.color == "gray" else {"mean", "std"} if "int" in dtype else set()
        known = {key: value for key, value in self.input.items() if key not in left_out}
        return self if known == self.input else replace(self, input=known)


def declared_task(declared: DeclaredSettings, shapes: Shapes = ()) -> Guess | None:
    """Return the decoder of the file's ``task`` for its exporter; None without one.

    Metadata name the task. Whether boxes are final shows in the outputs, too: exports with ``nms=True`` do not say so
    in every release.

    Args:
        declared: by the model's file.
        shapes: of its outputs, without the batch dimension; empty: the metadata alone decide.
    """
    family = _declaring(declared)
    if family is None:
        return None
    decoder = family.tasks[declared.metadata["task"]]
    if decoder in ("detect: yolov8", "detect: detr") and _is_final(declared, shapes):
        decoder = _FINAL
    verb, _, kind = decoder.partition(": ")
    options: Mapping[str, object] = _of_points(declared) if decoder == "keypoints: yolo-pose" else {}
    return Guess(verb, kind, "the metadata in the file name the task", _DECLARED, len(declared.labels) or None, options)


_DECLARED = 9
"""Weight of a declared decoder."""


def _of_points(declared: DeclaredSettings) -> dict[str, int]:
    """Return what no shape of a pose shows: where classes end and points begin, and how many numbers a point has."""
    shape, classes = literal(declared.metadata.get("kpt_shape", "")), len(declared.labels)
    is_flat = isinstance(shape, (list, tuple)) and list(shape[1:]) == [2]
    return ({"classes": classes} if classes > 1 else {}) | ({"dims": 2} if is_flat else {})


def _is_final(declared: DeclaredSettings, shapes: Shapes) -> bool:
    """Return whether a detector's boxes come out final: its exporter says so, or [N, 6] can be nothing else."""
    arguments = literal(declared.metadata.get("args", "{}"))
    is_suppressed = isinstance(arguments, dict) and arguments.get("nms") is True
    if literal(declared.metadata.get("end2end", "False")) is True or is_suppressed:
        return True
    # queries of two classes have six columns, too, and so has a row for every cell
    return is_rows_of_six(shapes) and shapes[0][0] <= MOST_QUERIES and len(declared.labels) not in (0, 2)


def declared_options(
    declared: DeclaredSettings, task: TaskConfig, inputs: Sequence[str] = (), outputs: Sequence[str] = ()
) -> Mapping[str, object]:
    """Return the options of a task that the file's exporter fixes, by the metadata or by these names."""
    family = _declaring(declared) or named_family(inputs, outputs)
    return family.final if family and _decoder(task) == _FINAL else {}


_FINAL = "detect: yolov10"


def _declaring(declared: DeclaredSettings) -> Family | None:
    """Return the first family whose metadata these are, where it knows the file's ``task``."""
    found = (family for family in FAMILIES if _by_metadata(family, declared))
    return next((family for family in found if declared.metadata.get("task", "") in family.tasks), None)


def named_family(inputs: Sequence[str], outputs: Sequence[str]) -> Family | None:
    """Return the family whose exporter gives inputs and outputs these names."""
    names = " ".join(outputs).lower()
    for family in FAMILIES:
        is_named = family.gives and not set(family.takes).isdisjoint(inputs)
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
    """Return the prior knowledge about a model that is read by a task.

    Args:
        declared: by the model's file.
        task: with the decoder.
        inputs: their names.
        outputs: their names.
        length: how many numbers its one output holds for an image; 0 where there are more outputs or that is open.
        tall: whether its input is twice as high as wide, as people are.
    """
    found = _of_family(declared, task, inputs, outputs, length)
    for family in PLACED:
        fits = _decoder(task) in family.reads and (tall or "embed: l2" not in family.reads) and _long(family, length)
        if fits and found.margin < FAMILY and "resize" not in declared.input:
            known = {**found.input, **family.input}
            source = found.source or f"it is one of the {family.name}, placed as in {family.source}"
            return replace(found, input=known, placed=FAMILY, source=source)
    return found


def _of_family(
    declared: DeclaredSettings, task: TaskConfig, inputs: Sequence[str], outputs: Sequence[str], length: int
) -> Prior:
    decoder, ranked = _decoder(task), list[tuple[float, bool, int, Family | None]]()
    names = " ".join(outputs).lower()
    for place, family in enumerate(FAMILIES):
        by_file = bool(family.metadata) and _by_metadata(family, declared)
        if not by_file and (family.by_file or (family.results and len(outputs) not in (0, *family.results))):
            continue
        marked = bool(family.producer or family.gives)
        named = declared.producer.startswith(family.producer) and all(part in names for part in family.gives)
        named = named and (not family.takes or not set(family.takes).isdisjoint(inputs)) and _long(family, length)
        own = decoder.startswith(("detect", "keypoints", "text"))  # others are outputs that anybody could have made
        if decoder in family.reads and (by_file or (named and (marked or own))):
            weight = FILE if by_file else FAMILY if not marked or family.gives else USUAL
            ranked.append((weight, bool(family.gives), -place, family))
    margin, *_, best = max(ranked, default=(0.0, False, 0, None), key=lambda one: one[:3])
    known = {**(best.input if best else {}), **declared.input}
    if declared.input:
        return Prior(declared, best, _valid(known), FILE, source=declared.source)
    if best is None:
        return Prior(declared)
    said = {FILE: "the file is one of", FAMILY: "its outputs are those of", USUAL: "its exporter is the usual one of"}
    return Prior(declared, best, known, margin, source=f"{said[margin]} {best.name}, fed as in {best.source}")


def _long(family: Family, length: int) -> bool:
    return not family.lengths or length in family.lengths


def _by_metadata(family: Family, declared: DeclaredSettings) -> bool:
    return bool(family.metadata) and all(
        key in declared.metadata and text.lower() in declared.metadata[key].lower()
        for key, text in family.metadata.items()
    )


def _decoder(task: TaskConfig) -> str:
    verb = verb_of(task)
    return {"classify": "classify: auto", "embed": "embed: l2"}.get(verb, f"{verb}: {value_of(task)}")


def _valid(known: Mapping[str, object]) -> dict[str, object]:
    """Return the keys if they are valid together, else none, so that a strange file is no error."""
    try:
        InputConfig.model_validate(known)
    except ValidationError:
        return {}
    return dict(known)
