"""The pipeline file as a frozen record, errors about it, and the sections that a command line gives in one line."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_args, get_origin

from pydantic import Field, TypeAdapter, ValidationError, model_validator

from edgert.config import fields
from edgert.config.document import Document, changed_document, mapping_document, parse_document, read_document
from edgert.config.engine_choice import ORT_CUDA, TENSORRT, EngineChain
from edgert.config.fields import Section, error_message
from edgert.config.flow import check_flow, check_outputs, check_variants
from edgert.config.model_section import TASK_VERBS, DetectTask, InputConfig, ModelConfig, TaskConfig
from edgert.config.stages import STAGE_VERBS, SourceStage, StageConfig, explain_no_verb
from edgert.custom_op import load_operators
from edgert.errors import ConfigError, EdgertError, nearest
from edgert.installation import pipeline_path, shipped
from edgert.yaml_nodes import LOADER

# The sections ``input:`` and ``task:`` as one line of a command line:
#
# letterbox top_left bgr mean=103.5,116.3,123.7 std=57.4,57.1,58.4 size=416x416
# detect yolox score=0.3 labels=coco.txt

_LOG = logging.getLogger(__name__)
_T = TypeVar("_T")
_DEFAULT_KINDS = {"classify": "auto", "segment": "argmax", "embed": "l2"}
_INPUT_KEYS = tuple(key for key in InputConfig.model_fields if key != "shape")


def parse_input(text: str, where: str = "--input") -> InputConfig:
    """Parse ``"letterbox rgb mean=0 std=255"`` into the section ``input:``.

    A word alone is the value of a key with few values: ``letterbox`` is ``resize: letterbox``. Other keys are written
    ``key=value``, with commas between several numbers.

    Raises ConfigError: a word or key is unknown; the error suggests the nearest one.
    """
    words = _input_values()
    found: dict[str, Any] = {}
    for token in text.split():
        key, equals, value = token.partition("=")
        if not equals:
            if token not in words:
                raise _unknown_word(token, [*words, *(f"{key}=" for key in _INPUT_KEYS)], where)
            key, value = words[token], token
        elif key not in _INPUT_KEYS:
            raise _unknown_word(key, _INPUT_KEYS, where)
        _set_once(found, key, _parse_numbers(value) if equals else value, token, where)
    return _validate(TypeAdapter(InputConfig), found, text, where)


def parse_task(text: str, where: str = "--task") -> TaskConfig:
    """Parse ``"detect yolox score=0.3"`` into the section ``task:``.

    A detector's ``options:`` are written like its keys.

    Raises ConfigError: a word or value cannot be used; the error suggests the nearest one.
    """
    verb, *rest = text.split() or [""]
    if verb not in TASK_VERBS:
        what = f"unknown task {verb!r}{nearest(verb, TASK_VERBS)}"
        raise ConfigError(what, where=where, fix=f"one of {', '.join(TASK_VERBS)}")
    kind = rest.pop(0) if rest and "=" not in rest[0] else _DEFAULT_KINDS.get(verb)
    if kind is None:
        fix = "write like 'detect yolox', 'classify auto', 'segment argmax', 'embed l2'"
        raise ConfigError(f"{verb} needs a second word: the kind of its output", where=where, fix=fix)
    found: dict[str, Any] = {verb: kind}
    options: dict[str, Any] = {}
    for token in rest:
        key, equals, value = token.partition("=")
        if not equals:
            raise ConfigError(f"cannot understand {token!r}", why="after the task come key=value", where=where)
        own = verb == "detect" and key not in DetectTask.model_fields
        _set_once(options if own else found, key, value if key == "labels" else _parse_numbers(value), token, where)
    if options:
        found["options"] = options
    task: TaskConfig = _validate(TypeAdapter(TaskConfig), found, text, where)
    return task


def input_words(config: InputConfig) -> str:
    """Return the section ``input:`` in the form of :func:`parse_input`, without ``shape:``, which has none."""
    usual = {key for key in ("crop", "layout") if getattr(config, key) == InputConfig.model_fields[key].default}
    fields = config.model_dump(exclude={"shape", *usual}, exclude_none=True)
    words = _input_values()
    return " ".join(str(value) if words.get(value) == key else key_value(key, value) for key, value in fields.items())


def task_words(task: TaskConfig) -> str:
    """Return the section ``task:`` in the form of :func:`parse_task`, without its labels."""
    fields = task.model_dump(exclude={"labels"}, exclude_none=True)
    verb = next(key for key in fields if key in TASK_VERBS)
    options = {**fields.pop("options", {}), **fields.pop("args", {})}
    kind = fields.pop(verb)
    return " ".join([verb, str(kind), *(key_value(key, value) for key, value in {**fields, **options}.items())])


def key_value(key: str, value: object) -> str:
    """Return a key and its value as a command line has them: ``mean=103.5,116.3,123.7``."""
    if key == "size" and isinstance(value, tuple):
        return f"size={value[0]}x{value[1]}"
    texts = [
        f"{one:g}" if isinstance(one, float) else str(one).lower() if isinstance(one, bool) else str(one)
        for one in (value if isinstance(value, (list, tuple)) else [value])
    ]
    return f"{key}={','.join(texts)}"


def _input_values() -> Mapping[str, str]:
    """Return each word that is a value of a key of ``input:`` → that key."""
    fields = {key: field.annotation for key, field in InputConfig.model_fields.items()}
    return {value: key for key, kind in fields.items() if get_origin(kind) is Literal for value in get_args(kind)}


def _set_once(found: dict[str, Any], key: str, value: Any, token: str, where: str) -> None:
    if key in found:
        raise ConfigError(f"{token!r} sets {key} a second time", why=f"it is {found[key]!r} already", where=where)
    found[key] = value


def _parse_numbers(text: str) -> Any:
    """Return a number, a list of numbers where there are commas, or the text itself."""
    if "," in text:
        return [_parse_numbers(part) for part in text.split(",")]
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text


def _unknown_word(word: str, known: Iterable[str], where: str) -> ConfigError:
    some = list(known)
    return ConfigError(f"cannot understand {word!r}{nearest(word, some)}", where=where, fix=f"known: {', '.join(some)}")


def _validate(kind: TypeAdapter[_T], data: Mapping[str, Any], text: str, where: str) -> _T:
    try:
        return kind.validate_python(dict(data), context={"directory": Path()})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
    loc = [str(part) for part in first["loc"] if not str(part).startswith("<")]
    context = first.get("ctx", {})
    key = loc[0] if loc else str(context.get("key", ""))
    written = [token for token in text.split() if token.partition("=")[0] == key]
    named = " ".join(text.split()[:2]) if key in TASK_VERBS else written[0] if written else text
    raise ConfigError(f"cannot use {named!r}: {error_message(first)}", where=where)


CODE_PREFIX = "python:"
"""Prefix of a source that is the user's own code."""


class BudgetConfig(Section):
    """Limits of what the pipeline may use, and what happens over a limit."""

    live: ClassVar[tuple[str, ...]] = ("power", "cpu", "memory", "latency", "when_exceeded")
    power: Annotated[fields.Watts, Field(gt=0)] | None = Field(default=None, description="watts drawn by the module")
    cpu: fields.Cores | None = Field(
        default=None, description="CPU time of this process in cores, such as 1.5; instead of power"
    )
    memory: fields.Bytes | None = Field(default=None, description="physical memory of this process")
    latency: Annotated[fields.Seconds, Field(gt=0)] | None = Field(
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
    ops: tuple[fields.FilePath, ...] = Field(
        default=(), description="Python files that register operators ([custom operators](operators.md))"
    )
    models: dict[fields.Name, ModelConfig] = Field(default_factory=dict, description="models by name")
    stages: dict[fields.Name, StageConfig] = Field(min_length=1, description="stages by name, in any order")

    @property
    def likely_on_gpu(self) -> bool:
        """Whether its models probably run on a GPU, if there is one."""
        wanted = {self.engines[0]} if self.engines else {model.backend for model in self.models.values()}
        runs_on = {TENSORRT, ORT_CUDA} if self.engines or self.board == "host" else {TENSORRT, ORT_CUDA, "auto"}
        return not wanted.isdisjoint(runs_on)

    @property
    def code(self) -> Mapping[tuple[str, ...], str]:
        """Key path → ``[FOLDER/]module:name`` of the user's code, without files under ``ops:``."""
        found: dict[tuple[str, ...], str | None] = {}
        for name, stage in self.stages.items():
            if isinstance(stage, SourceStage) and stage.source.startswith(CODE_PREFIX):
                found["stages", name, "source"] = stage.source.removeprefix(CODE_PREFIX)
            found["stages", name, "python"] = getattr(stage, "python", None)
        for name, model in self.models.items():
            found["models", name, "task", "python"] = getattr(model.task, "python", None)
        return {loc: spec for loc, spec in found.items() if spec is not None}


@dataclass(frozen=True, slots=True)
class PipelineFile:
    """A checked pipeline and the document it came from, so that later errors can name a line.

    Attributes:
        config: checked pipeline.
        document: data and places of the file.
        passed_over: better engines that cannot run here → the reason, where this machine's engines were chosen because
            the file has no ``engines:``. Empty for a bundle that only ONNX Runtime runs; None where the file decided.
    """

    config: PipelineConfig
    document: Document
    passed_over: Mapping[str, str] | None = None

    def where(self, *loc: str | int) -> str:
        """Return ``file:line key.path`` of a key."""
        return self.document.where(loc)

    def located(self, error: EdgertError, default: str = "") -> EdgertError:
        """Add file and line to an error whose place is only a key path, such as ``stages.camera.source``; return it.

        An error without a place gets ``default``.
        """
        bare = error.where.startswith(("stages.", "models.")) and " " not in error.where
        error.where = self.where(*error.where.split(".")) if bare else error.where or default
        return error

    @contextmanager
    def locating(self, default: str = "") -> Iterator[None]:
        """Add file and line to an error of the block; see :meth:`located`."""
        try:
            yield
        except EdgertError as error:
            self.located(error, default)
            raise


PipelineSource = str | Path | Mapping[str, Any] | PipelineFile
"""A pipeline: the path of its YAML file, a mapping with the same keys, or a loaded pipeline."""


def load_pipeline(path: PipelineSource, overrides: Iterable[str] = ()) -> PipelineFile:
    """Read and check a pipeline file; open no model, touch no hardware, run no code except that under ``ops:``.

    Args:
        path: path of the YAML file, or name of a shipped pipeline, such as ``hello``. Paths in a file are relative to
            it, those in a mapping to the current folder. A loaded pipeline is returned unchanged.
        overrides: ``key.path=value`` strings, as of ``--set``; not accepted for a loaded pipeline.

    Raises ConfigError: the file has mistakes; the error is the first one with its line, and ``others`` has the rest.
    """
    file = read_pipeline(path, overrides)
    if file is not path and (note := file.document.overlay_note):
        _LOG.warning("%s", note)
    return file


def read_pipeline(
    path: PipelineSource, overrides: Iterable[str] = (), *, env: Mapping[str, str] | None = None, run_ops: bool = True
) -> PipelineFile:
    """Read and check a pipeline file as :func:`load_pipeline` does.

    Variables of ``env`` replace those of the process. Without ``run_ops``, operators under ``ops:`` are unknown.
    """
    if isinstance(overrides, str | Mapping):
        what, fix = f"overrides are of type {type(overrides).__name__}", 'overrides=["stages.camera.fps=15"]'
        raise ConfigError(what, why="they are a list of texts", fix=fix)
    if isinstance(path, PipelineFile):
        if given := tuple(overrides):
            where, fix = str(path.document.path), "edgert.load_pipeline(PATH, overrides)"
            what, why = f"{given[0]!r} comes too late", "the pipeline is loaded already"
            raise ConfigError(what, why=why, where=where, fix=fix)
        return path
    if isinstance(path, Mapping):
        document, name = mapping_document(path, overrides, env), "pipeline"
    else:
        document = read_document(pipeline_path(str(path)), overrides, env)
        name = _default_name(document.path)
    config = _check_document(document, name)
    if run_ops:
        load_operators(config.ops, document.where(("ops",)))
    return PipelineFile(config, document)


def changed_pipeline(file: PipelineFile, data: dict[str, Any], overrides: Iterable[str] = ()) -> PipelineFile:
    """Return a pipeline with other data, checked like a file; ``file`` is not changed.

    The overrides change ``data`` in place. Raises ConfigError.
    """
    document = changed_document(file.document, data, overrides)
    return PipelineFile(_check_document(document, file.config.name), document, file.passed_over)


def parse_pipeline(text: str, path: Path, env: Mapping[str, str]) -> PipelineFile:
    """Return the pipeline of a text for a file that need not exist; ``env`` as for :func:`read_pipeline`.

    Raises ConfigError: the text has mistakes.
    """
    document = parse_document(text, path, env=env, has_overlay=False)
    return PipelineFile(_check_document(document, _default_name(path)), document)


def replacement_pipeline(file: PipelineFile, text: str) -> PipelineFile:
    """Return the pipeline of a new text for a file, with the overrides that the file was loaded with.

    Raises ConfigError: the text has mistakes.
    """
    was = file.document
    document = parse_document(text, was.path, was.overrides, has_overlay=False, name="the new file")
    document = replace(document, base=was.base, overlay=was.overlay)
    return PipelineFile(_check_document(document, file.config.name), document, file.passed_over)


def recorded_pipeline(data: Mapping[str, Any], path: Path) -> PipelineFile:
    """Return a pipeline from the data of a recorded run, checked like a file at ``path``.

    Raises ConfigError: the data has mistakes.
    """
    document = replace(mapping_document(data, ()), path=path)
    config = _check_document(document, _default_name(path))
    load_operators(config.ops, document.where(("ops",)))
    return PipelineFile(config, document)


def _check_document(document: Document, name: str) -> PipelineConfig:
    """Return a document's pipeline. Raises ConfigError: the document has mistakes."""
    try:
        data = {"name": name, **document.data}
        config = PipelineConfig.model_validate(data, context={"directory": document.path.parent})
        check_flow(config.stages, config.models, document.where)
        check_outputs(config.stages, _files_read(config, document.path), document.where)
        check_variants(config.models, document.where)
    except ValidationError as mistakes:
        raise document_error(document, mistakes) from None
    return config


def document_error(document: Document, mistakes: ValidationError) -> ConfigError:
    """Return the first of a document's mistakes as an error with its line, and the rest in ``others``."""
    details = fields.flatten_errors(mistakes.errors(include_url=False))
    first, *others = (_config_error(document, detail) for detail in details)
    first.others = tuple(others)
    return first


def _default_name(path: Path) -> str:
    """Return the file name as a pipeline's name; its non-UTF-8 bytes become question marks."""
    return path.stem.encode(errors="replace").decode()


def _files_read(config: PipelineConfig, path: Path) -> Iterable[Path]:
    """Yield the files that a pipeline reads, which its sinks must not overwrite."""
    yield path
    yield from (model.onnx for model in config.models.values())
    for stage in config.stages.values():
        if isinstance(stage, SourceStage) and "\0" not in stage.source:
            yield fields.resolve_input(Path(stage.source.removeprefix("file://")), path.parent)


SCHEMA_ID = "https://raw.githubusercontent.com/edgert/edgert/main/docs/edgert.schema.json"
"""Address of the schema, for the first line of a pipeline file and for editors."""


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of the pipeline file, for editors."""
    schema = PipelineConfig.model_json_schema(by_alias=True)
    for section in (schema, *schema["$defs"].values()):
        for part in section.get("properties", {}).values():
            if "patternProperties" in part:  # pydantic does not express that names of another form are refused
                part["additionalProperties"] = False
    known = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": SCHEMA_ID, "title": "edgert pipeline"}
    return {**known, **{name: part for name, part in schema.items() if name not in known}}


def _config_error(document: Document, detail: Any) -> ConfigError:
    """Return a pydantic error as a ConfigError with the line, the value as written, and what was expected."""
    loc = _loc_in_file(document, detail["loc"])
    kind, message = detail["type"], error_message(detail)
    if kind == fields.CONFIG_ERROR:
        error: ConfigError = detail["ctx"]["error"]
        return ConfigError(error.what, why=error.why, where=document.where(loc), fix=error.fix, code=error.code)
    if kind == "unknown_key":
        context = detail["ctx"]
        place = _replacement_for(str(context["key"]), loc, document.data)
        loc = (*loc, context["key"])
        fix = "; ".join(filter(None, (place, f"known here: {context['known']}")))
        return ConfigError(message, where=document.where(loc), fix=fix, code="E101")
    where = document.where(loc)
    name = ".".join(map(str, loc)) or "the file"
    if kind == "missing":
        return ConfigError(f"{name} is missing{_other_name(document, loc)}", where=where, fix=f"add {loc[-1]}:")
    if kind == "union_tag_not_found":
        verbs = STAGE_VERBS if loc[0] == "stages" else TASK_VERBS
        why = explain_no_verb(detail["input"], verbs) + _other_name(document, loc)
        return ConfigError(f"{name} {why}", where=where, fix=f"write one of: {', '.join(verbs)}")
    if isinstance(detail["input"], (dict, list, tuple)):
        fix, inside = "", detail["input"].values() if isinstance(detail["input"], dict) else ()
        if inside and all(value is None for value in inside):  # {date}, as YAML reads it
            fix = f'a value with {{ needs quotes: {loc[-1]}: "..."'
        elif loc[-1:] == ("source",):
            fix = "one stage for each camera or video; videos:FOLDER/*.mp4 plays a folder of them"
        return ConfigError(f"{name}: {message}", where=where, fix=fix)
    value = document.written.get(loc, detail["input"])  # ${NAME} as written, so that its value is not printed
    return ConfigError(f"{name}: cannot use {value!r}", why=message, where=where)


def _replacement_for(key: str, above: Sequence[str | int], data: Mapping[str, Any]) -> str:
    """Return the place of another tool's key, as ``conf is models.parts.task.score``; empty for an unknown key."""
    places = LOADER(shipped("configs/foreign_keys.yaml").read_text("utf-8")).get_single_data()
    place = next((place for place, keys in places.items() if key.lower().replace("-", "_") in keys), "")
    models = data.get("models")
    known = [str(name) for name in models] if isinstance(models, Mapping) else []
    own = str(above[1]) if len(above) > 1 and above[0] == "models" else known[0] if len(known) == 1 else "NAME"
    return f"{key} is {place.replace('NAME', own)}" if place else ""


def _other_name(document: Document, loc: tuple[Any, ...]) -> str:
    """Return which stage or model an override may mean, if only the override names this one; else nothing."""
    if loc[0] not in ("stages", "models") or len(loc) < 2 or not document.where(loc[:2]).startswith("--set"):
        return ""
    return nearest(str(loc[1]), [name for name in document.data[loc[0]] if name != loc[1]])


def _loc_in_file(document: Document, loc: tuple[str | int, ...]) -> tuple[str | int, ...]:
    """Return the key path of pydantic's location: without the tags of unions, up to the first missing key."""
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
