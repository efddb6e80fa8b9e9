"""The pipeline file as one frozen record, reports of mistakes in it, and its one-line sections."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_args, get_origin

from pydantic import Field, TypeAdapter, ValidationError, model_validator

from edgert.config import fields
from edgert.config.document import Document, changed, of_mapping, parsed, read
from edgert.config.engine_choice import ORT_CUDA, TENSORRT, EngineChain
from edgert.config.fields import EXPLAINED, Bytes, Cores, FilePath, Name, Seconds, Section, Watts, expected, flattened
from edgert.config.flow import check_flow, check_outputs, check_variants
from edgert.config.model_section import TASK_VERBS, DetectTask, InputConfig, ModelConfig, TaskConfig
from edgert.config.other_words import instead
from edgert.config.stages import STAGE_VERBS, SourceStage, StageConfig, explain_no_verb
from edgert.custom_op import load_operators
from edgert.errors import ConfigError, EdgertError, nearest
from edgert.installation import pipeline_path

# The sections ``input:`` and ``task:`` on one line, for the command line.
#
# letterbox top_left bgr mean=103.5,116.3,123.7 std=57.4,57.1,58.4 size=416x416 detect yolox score=0.3
# labels=coco.txt

_LOG = logging.getLogger(__name__)
_T = TypeVar("_T")
_USUAL = {"classify": "auto", "segment": "argmax", "embed": "l2"}
_KEYS = tuple(key for key in InputConfig.model_fields if key != "shape")  # ranges of sizes are for the pipeline file


def parse_input(text: str, where: str = "--input") -> InputConfig:
    """Parse ``"letterbox rgb mean=0 std=255"`` into the section ``input:``.

    Words are values of the keys that have a few (``letterbox`` is ``resize: letterbox``). Other keys are written
    ``key=value``, with commas between several numbers.

    Raises:
        ConfigError: names the word or key that cannot be used and the nearest that can.
    """
    words = _words()
    found: dict[str, Any] = {}
    for token in text.split():
        key, equals, value = token.partition("=")
        if not equals:
            if token not in words:
                raise _unknown(token, [*words, *(f"{key}=" for key in _KEYS)], where)
            key, value = words[token], token
        elif key not in _KEYS:
            raise _unknown(key, _KEYS, where)
        _set(found, key, _numbers(value) if equals else value, token, where)
    return _checked(TypeAdapter(InputConfig), found, text, where)


def parse_task(text: str, where: str = "--task") -> TaskConfig:
    """Parse ``"detect yolox score=0.3"`` into the section ``task:``.

    A detector's own options are written like its keys.

    Raises:
        ConfigError: names what cannot be used and the nearest that can.
    """
    verb, *rest = text.split() or [""]
    if verb not in TASK_VERBS:
        what = f"{verb!r} is no task{nearest(verb, TASK_VERBS)}"
        raise ConfigError(what, where=where, fix=f"one of {', '.join(TASK_VERBS)}")
    kind = rest.pop(0) if rest and "=" not in rest[0] else _USUAL.get(verb)
    if kind is None:
        fix = "write like 'detect yolox', 'classify auto', 'segment argmax', 'embed l2'"
        raise ConfigError(f"{verb} needs a second word: what the output is", where=where, fix=fix)
    found: dict[str, Any] = {verb: kind}
    options: dict[str, Any] = {}
    for token in rest:
        key, equals, value = token.partition("=")
        if not equals:
            raise ConfigError(f"cannot understand {token!r}", why="after the task come key=value", where=where)
        own = verb == "detect" and key not in DetectTask.model_fields
        _set(options if own else found, key, value if key == "labels" else _numbers(value), token, where)
    if options:
        found["options"] = options
    task: TaskConfig = _checked(TypeAdapter(TaskConfig), found, text, where)
    return task


def input_words(config: InputConfig) -> str:
    """Return the section ``input:`` as :func:`parse_input` reads it, but for ``shape:``, which has no short form."""
    usual = {key for key in ("crop", "layout") if getattr(config, key) == InputConfig.model_fields[key].default}
    fields = config.model_dump(exclude={"shape", *usual}, exclude_none=True)
    words = _words()
    return " ".join(str(value) if words.get(value) == key else setting(key, value) for key, value in fields.items())


def task_words(task: TaskConfig) -> str:
    """Return the section ``task:`` as :func:`parse_task` reads it, but for its labels."""
    fields = task.model_dump(exclude={"labels"}, exclude_none=True)
    verb = next(key for key in fields if key in TASK_VERBS)
    options = {**fields.pop("options", {}), **fields.pop("args", {})}
    kind = fields.pop(verb)
    return " ".join([verb, str(kind), *(setting(key, value) for key, value in {**fields, **options}.items())])


def setting(key: str, value: object) -> str:
    """Return ``mean=103.5,116.3,123.7``: a key and its value as they are written on a command line."""
    if key == "size" and isinstance(value, tuple):
        return f"size={value[0]}x{value[1]}"
    texts = [
        f"{one:g}" if isinstance(one, float) else str(one).lower() if isinstance(one, bool) else str(one)
        for one in (value if isinstance(value, (list, tuple)) else [value])
    ]
    return f"{key}={','.join(texts)}"


def _words() -> Mapping[str, str]:
    """Return word → the key of ``input:`` that has it among its few values."""
    fields = {key: field.annotation for key, field in InputConfig.model_fields.items()}
    return {value: key for key, kind in fields.items() if get_origin(kind) is Literal for value in get_args(kind)}


def _set(found: dict[str, Any], key: str, value: Any, token: str, where: str) -> None:
    if key in found:
        raise ConfigError(f"{token!r} sets {key} a second time", why=f"it is {found[key]!r} already", where=where)
    found[key] = value


def _numbers(text: str) -> Any:
    """Parse numbers, and a list of them where there are commas; other text stays text."""
    if "," in text:
        return [_numbers(part) for part in text.split(",")]
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text


def _unknown(word: str, known: Iterable[str], where: str) -> ConfigError:
    some = list(known)
    return ConfigError(f"cannot understand {word!r}{nearest(word, some)}", where=where, fix=f"known: {', '.join(some)}")


def _checked(kind: TypeAdapter[_T], data: Mapping[str, Any], text: str, where: str) -> _T:
    try:
        return kind.validate_python(dict(data), context={"directory": Path()})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
    loc = [str(part) for part in first["loc"] if not str(part).startswith("<")]
    context = first.get("ctx", {})
    key = loc[0] if loc else str(context.get("key", ""))
    written = [token for token in text.split() if token.partition("=")[0] == key]
    named = " ".join(text.split()[:2]) if key in TASK_VERBS else written[0] if written else text
    raise ConfigError(f"cannot use {named!r}: {expected(first)}", where=where)


CODE = "python:"
"""Before the name of code that generates images."""


class BudgetConfig(Section):
    """Limits: what the pipeline may use, and what happens when it uses more."""

    live: ClassVar[tuple[str, ...]] = ("power", "cpu", "memory", "latency", "when_exceeded")
    power: Annotated[Watts, Field(gt=0)] | None = Field(default=None, description="watts drawn by the module")
    cpu: Cores | None = Field(
        default=None,
        description="CPU time of this process in cores, such as 1.5; instead of power",
    )
    memory: Bytes | None = Field(default=None, description="physical memory of this process")
    latency: Annotated[Seconds, Field(gt=0)] | None = Field(
        default=None, description="99th percentile from capture to sink"
    )
    when_exceeded: Literal["warn", "degrade", "stop"] = Field(
        default="warn", description="what happens over a budget ([budgets](budgets.md))"
    )

    @model_validator(mode="after")
    def _one_kind_of_power(self) -> BudgetConfig:
        if self.power is not None and self.cpu is not None:
            raise ValueError("power and cpu limit the same thing in two units; leave one of them out")
        return self


class PipelineConfig(Section):
    """A pipeline file: camera to model to output."""

    schema_version: Literal[1] = Field(default=1, alias="schema", description="version of this format")
    name: str = Field(
        default="pipeline",
        min_length=1,
        description="name of the pipeline, also in message topics; default: the file's name",
    )
    board: str = Field(
        default="auto",
        description="auto: this machine; host: its CPU only; or a name from edgert boards, or a board file",
    )
    engines: EngineChain = Field(
        default=(),
        description="engines to try, in order; default: the best that works here ([GPU](gpu.md#which-engine-runs))",
    )
    budgets: BudgetConfig = Field(default=BudgetConfig(), description="limits of the pipeline")
    watchdog: fields.Watchdog = Field(
        default=10.0, description="report a stage that is in one call for longer; off: never ([troubles](troubles.md))"
    )
    telemetry: str | None = Field(
        default=None,
        pattern=r"^https?://[^\s/]+(/\S*)?$",
        description="collector of OpenTelemetry, as http://HOST:4318 ([time lines](trace.md#opentelemetry))",
    )
    ops: tuple[FilePath, ...] = Field(
        default=(), description="Python files that register operators ([custom operators](operators.md))"
    )
    models: dict[Name, ModelConfig] = Field(default_factory=dict, description="models by name")
    stages: dict[Name, StageConfig] = Field(min_length=1, description="stages by name, in any order")

    @property
    def likely_on_gpu(self) -> bool:
        """Whether its models are likely to be run on a GPU, if there is one."""
        wanted = {self.engines[0]} if self.engines else {model.backend for model in self.models.values()}
        runs_on = {TENSORRT, ORT_CUDA} if self.engines or self.board == "host" else {TENSORRT, ORT_CUDA, "auto"}
        return not wanted.isdisjoint(runs_on)

    @property
    def code(self) -> Mapping[tuple[str, ...], str]:
        """Key path → ``[FOLDER/]module:name`` of the user's own code, without files under ``ops:``."""
        found: dict[tuple[str, ...], str | None] = {}
        for name, stage in self.stages.items():
            if isinstance(stage, SourceStage) and stage.source.startswith(CODE):
                found["stages", name, "source"] = stage.source.removeprefix(CODE)
            found["stages", name, "python"] = getattr(stage, "python", None)
        for name, model in self.models.items():
            found["models", name, "task", "python"] = getattr(model.task, "python", None)
        return {loc: spec for loc, spec in found.items() if spec is not None}


@dataclass(frozen=True, slots=True)
class PipelineFile:
    """A checked pipeline and the document it came from, so that later errors can point at a line.

    Attributes:
        passed_over: of a file without ``engines:``, once this machine's are set in ``config``: better ones that cannot
            run here, with the reason. Empty for a bundle that ONNX Runtime alone runs; else None.
    """

    config: PipelineConfig
    document: Document
    passed_over: Mapping[str, str] | None = None

    def where(self, *loc: str | int) -> str:
        """Return ``file:line key.path`` of a key."""
        return self.document.where(loc)

    def located(self, error: EdgertError, default: str = "") -> EdgertError:
        """Return the error with file and line added to its bare key path (``stages.camera.source``).

        Args:
            error: the error; its ``where`` is changed.
            default: its place if it names none.
        """
        bare = error.where.startswith(("stages.", "models.")) and " " not in error.where
        error.where = self.where(*error.where.split(".")) if bare else error.where or default
        return error


PipelineSource = str | Path | Mapping[str, Any] | PipelineFile
"""A pipeline: the path of its YAML file, a mapping with the same keys, or one that is loaded."""


def load_pipeline(path: PipelineSource, overrides: Iterable[str] = ()) -> PipelineFile:
    """Read and check a pipeline file; open no model, touch no hardware, run no code but that under ``ops:``.

    Args:
        path: the YAML file, or the name of a shipped pipeline, such as ``hello``; paths in it are relative to the file.
            A mapping with the same keys has paths relative to the current folder. A loaded pipeline is returned
            unchanged.
        overrides: ``key.path=value``, as given to ``--set``; not for a loaded pipeline.

    Raises:
        ConfigError: with key and line of the first mistake; further ones are in ``others``.
    """
    file = read_pipeline(path, overrides)
    if file is not path and (note := file.document.overlay_note):
        _LOG.warning("%s", note)
    return file


def read_pipeline(
    path: PipelineSource,
    overrides: Iterable[str] = (),
    *,
    env: Mapping[str, str] | None = None,
    run_ops: bool = True,
) -> PipelineFile:
    """Read and check a pipeline file as :func:`load_pipeline` does.

    ``env`` has the variables for ``${NAME}``; those of the process by default. Without ``run_ops`` the files under
    ``ops:`` are not run, and their operators are not known.
    """
    if isinstance(path, PipelineFile):
        if given := tuple(overrides):
            where, fix = str(path.document.path), "edgert.load_pipeline(PATH, overrides)"
            what, why = f"{given[0]!r} comes too late", "the pipeline is loaded already"
            raise ConfigError(what, why=why, where=where, fix=fix)
        return path
    if isinstance(path, Mapping):
        document, name = of_mapping(path, overrides, env), "pipeline"
    else:
        document = read(pipeline_path(str(path)), overrides, env)
        name = _name_of(document.path)
    config = _checked_config(document, name)
    if run_ops:
        load_operators(config.ops, document.where(("ops",)))
    return PipelineFile(config, document)


def changed_pipeline(file: PipelineFile, data: dict[str, Any], overrides: Iterable[str] = ()) -> PipelineFile:
    """Return a pipeline with other data, checked like a file; ``file`` stays as it is.

    Args:
        file: the pipeline as it was loaded.
        data: the keys that it has now, which overrides change.
        overrides: ``key.path=value``, as given to ``--set``.

    Raises:
        ConfigError: with the key of the first mistake.
    """
    document = changed(file.document, data, overrides)
    return PipelineFile(_checked_config(document, file.config.name), document, file.passed_over)


def in_place_of(file: PipelineFile, text: str) -> PipelineFile:
    """Return the pipeline of a text that is to be run in the place of a file, with what ``--set`` gave at its start.

    Raises:
        ConfigError: with key and line of the first mistake.
    """
    was = file.document
    document = parsed(text, was.path, was.overrides, has_overlay=False, name="the new file")
    document = replace(document, base=was.base, overlay=was.overlay)
    return PipelineFile(_checked_config(document, file.config.name), document, file.passed_over)


def recorded_pipeline(data: Mapping[str, Any], path: Path, overrides: Iterable[str] = ()) -> PipelineFile:
    """Return a pipeline from the data that another run had, checked like a file at ``path``.

    Raises:
        ConfigError: with the key of the first mistake.
    """
    document = replace(of_mapping(data, overrides), path=path)
    config = _checked_config(document, _name_of(path))
    load_operators(config.ops, document.where(("ops",)))
    return PipelineFile(config, document)


def _checked_config(document: Document, name: str) -> PipelineConfig:
    """Return the records of a document. Raises ConfigError for its mistakes."""
    try:
        data = {"name": name, **document.data}
        config = PipelineConfig.model_validate(data, context={"directory": document.path.parent})
        check_flow(config.stages, config.models, document.where)
        check_outputs(config.stages, _read_by(config, document.path), document.where)
        check_variants(config.models, document.where)
    except ValidationError as mistakes:
        first, *others = (_explained(document, detail) for detail in flattened(mistakes.errors(include_url=False)))
        first.others = tuple(others)
        raise first from None
    return config


def _name_of(path: Path) -> str:
    """Return the name of a pipeline whose file gives none; non-UTF-8 bytes of a file name become question marks."""
    return path.stem.encode(errors="replace").decode()


def _read_by(config: PipelineConfig, path: Path) -> Iterable[Path]:
    """Return files that a pipeline reads, which its sinks must not write."""
    yield path
    yield from (model.onnx for model in config.models.values())
    for stage in config.stages.values():
        if isinstance(stage, SourceStage) and "\0" not in stage.source:
            yield fields.beside(Path(stage.source.removeprefix("file://")), path.parent)


SCHEMA_ID = "https://raw.githubusercontent.com/edgert/edgert/main/docs/edgert.schema.json"
"""Address of the schema, for the first line of a pipeline file and for editors."""


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of the pipeline file, for editors."""
    schema = PipelineConfig.model_json_schema(by_alias=True)
    for section in (schema, *schema["$defs"].values()):
        for part in section.get("properties", {}).values():
            if "patternProperties" in part:  # pydantic forgets that names of any other form are refused
                part["additionalProperties"] = False
    known = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": SCHEMA_ID, "title": "edgert pipeline"}
    return {**known, **{name: part for name, part in schema.items() if name not in known}}


def _explained(document: Document, detail: Any) -> ConfigError:
    """Return one pydantic error as a ConfigError with the line, the value as written, and what was expected."""
    loc = _written_loc(document, detail["loc"])
    kind, message = detail["type"], expected(detail)
    if kind == EXPLAINED:
        error: ConfigError = detail["ctx"]["error"]
        return ConfigError(error.what, why=error.why, where=document.where(loc), fix=error.fix, code=error.code)
    if kind == "unknown_key":
        context = detail["ctx"]
        place = instead(str(context["key"]), loc, document.data)
        loc = (*loc, context["key"])
        fix = "; ".join(filter(None, (place, f"known here: {context['known']}")))
        return ConfigError(message, where=document.where(loc), fix=fix, code="E101")
    where = document.where(loc)
    name = ".".join(map(str, loc)) or "the file"
    if kind == "missing":
        return ConfigError(f"{name} is missing", where=where, fix=f"add {loc[-1]}:")
    if kind == "union_tag_not_found":
        verbs = STAGE_VERBS if loc[0] == "stages" else TASK_VERBS
        why = explain_no_verb(detail["input"], verbs)
        return ConfigError(f"{name} {why}", where=where, fix=f"write one of: {', '.join(verbs)}")
    if isinstance(detail["input"], (dict, list, tuple)):
        fix, inside = "", detail["input"].values() if isinstance(detail["input"], dict) else ()
        if inside and all(value is None for value in inside):  # {date}, as YAML reads it
            fix = f'a value with {{ needs quotes: {loc[-1]}: "..."'
        elif loc[-1:] == ("source",):
            fix = "one stage for each camera or video; videos:FOLDER/*.mp4 plays a folder of them"
        return ConfigError(f"{name}: {message}", where=where, fix=fix)
    value = document.written.get(loc, detail["input"])  # as written: what came from the environment is not printed
    return ConfigError(f"{name}: cannot use {value!r}", why=message, where=where)


def _written_loc(document: Document, loc: tuple[str | int, ...]) -> tuple[str | int, ...]:
    """Return pydantic's location without the tags of unions, as far as the file goes."""
    here: Any = document.data
    path: list[str | int] = []
    for step in loc:
        known: Any = here if isinstance(here, dict) else range(len(here)) if isinstance(here, list) else ()
        if step in known:
            here = here[step]
            path.append(step)
        elif isinstance(here, dict) and not str(step).startswith(("<", "[", "function-", "union")):
            path.append(step)  # a key that is missing
            break
    return tuple(path)
