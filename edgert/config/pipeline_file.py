"""The whole file as one frozen record, and how its mistakes are reported."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator

from edgert.config.document import Document, hide_in, read
from edgert.config.engine_choice import EngineChain
from edgert.config.fields import EXPLAINED, Bytes, Cores, FilePath, Name, Seconds, Section, Watts, expected, flattened
from edgert.config.flow import check_flow, check_variants
from edgert.config.model_section import TASK_VERBS, ModelConfig
from edgert.config.stages import STAGE_VERBS, SourceStage, StageConfig, explain_no_verb
from edgert.custom_op import load_operators
from edgert.errors import ConfigError, EdgertError
from edgert.installation import pipeline_path

CODE = "python:"
"""Before the name of code that generates images."""


class BudgetConfig(Section):
    """Promises: what the pipeline may use, and what happens when it uses more."""

    power: Watts | None = Field(default=None, description="drawn by the module")
    cpu: Cores | None = Field(
        default=None,
        description="CPU time of this process in cores, like 1.5; for machines without a power sensor",
    )
    memory: Bytes | None = Field(default=None, description="resident in this process")
    latency: Seconds | None = Field(default=None, description="p99 from capture to sink")
    when_exceeded: Literal["warn", "degrade", "stop"] = Field(default="warn", description="what happens then")

    @model_validator(mode="after")
    def _one_kind_of_power(self) -> BudgetConfig:
        if self.power is not None and self.cpu is not None:
            raise ValueError("power and cpu are the same promise in two units; leave one of them out")
        return self


class PipelineConfig(Section):
    """A pipeline file: camera to model to output."""

    schema_version: Literal[1] = Field(default=1, alias="schema", description="version of this format")
    name: str = Field(default="pipeline", min_length=1, description="for people")
    board: str = Field(
        default="auto",
        description="auto is this machine, host its processor only; or a board that edgert boards lists, or its file",
    )
    engines: EngineChain = Field(
        default=(),
        description="who runs the models, the first that can: tensorrt-dla, tensorrt, onnxruntime-cuda, onnxruntime; "
        "what is skipped is logged. Without the key: ONNX Runtime, and of a bundle what its board has",
    )
    budgets: BudgetConfig = Field(default=BudgetConfig(), description="what the pipeline may use")
    ops: tuple[FilePath, ...] = Field(
        default=(), description="files of your own that register operators with edgert.op; see docs/operators.md"
    )
    models: dict[Name, ModelConfig] = Field(default_factory=dict, description="by name, for infer")
    stages: dict[Name, StageConfig] = Field(min_length=1, description="by name, for from; in any order")

    @property
    def code(self) -> Mapping[tuple[str, ...], str]:
        """Key path → ``[FOLDER/]module:name`` of the user's own code; files under ``ops:`` are besides."""
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
    """A checked pipeline and the document it came from, so that later errors can point at a line."""

    config: PipelineConfig
    document: Document

    def where(self, *loc: str | int) -> str:
        """``file:line key.path`` of a key."""
        return self.document.where(loc)

    def located(self, error: EdgertError, default: str = "") -> EdgertError:
        """The error, its bare key path (``stages.camera.source``) completed with file and line.

        Args:
            error: the error; its ``where`` is changed.
            default: its place if it names none.
        """
        bare = error.where.startswith(("stages.", "models.")) and " " not in error.where
        error.where = self.where(*error.where.split(".")) if bare else error.where or default
        return error


def load_pipeline(
    path: str | Path | PipelineFile,
    overrides: Iterable[str] = (),
    env: Mapping[str, str] | None = None,
    *,
    run_ops: bool = True,
) -> PipelineFile:
    """Reads and checks a pipeline file; opens no model, touches no hardware, runs no code but that under ``ops:``.

    Args:
        path: the YAML file, to which paths in it are relative; or the name of a shipped pipeline, such as ``hello``. A
            pipeline that is loaded already is returned as it is.
        overrides: ``key.path=value``, as given to ``--set``; not for a pipeline that is loaded already.
        env: variables for ``${NAME}``; the process environment when None.
        run_ops: whether the files under ``ops:`` are run, without which their operators are not known.

    Raises:
        ConfigError: with the file and line of the first mistake, and all further ones in ``others``.
    """
    if isinstance(path, PipelineFile):
        if given := tuple(overrides):
            where, fix = str(path.document.path), "edgert.load_pipeline(PATH, overrides)"
            what, why = f"{given[0]!r} comes too late", "the pipeline is loaded already"
            raise ConfigError(what, why=why, where=where, fix=fix)
        return path
    document = read(pipeline_path(str(path)), overrides, env)
    try:
        config = PipelineConfig.model_validate(document.data, context={"directory": document.path.parent})
        check_flow(config.stages, tuple(config.models), document.where)
        check_variants(config.models, document.where)
    except ValidationError as mistakes:
        first, *others = (_explained(document, detail) for detail in flattened(mistakes.errors(include_url=False)))
        first.others = tuple(others)
        raise hide_in(first, document.variables) from None
    except ConfigError as error:
        raise hide_in(error, document.variables) from None
    if run_ops:
        load_operators(config.ops, document.where(("ops",)))
    return PipelineFile(config, document)


def json_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of the pipeline file, for editors."""
    schema = PipelineConfig.model_json_schema(by_alias=True)
    for section in (schema, *schema["$defs"].values()):
        for part in section.get("properties", {}).values():
            if "patternProperties" in part:  # pydantic forgets that names of any other form are refused
                part["additionalProperties"] = False
    return {**schema, "$schema": "https://json-schema.org/draft/2020-12/schema", "title": "edgert pipeline"}


def _explained(document: Document, detail: Any) -> ConfigError:
    """One pydantic error as a ConfigError with the line, the value as written, and what was expected."""
    loc = _written_loc(document, detail["loc"])
    kind, message = detail["type"], expected(detail)
    if kind == EXPLAINED:
        error: ConfigError = detail["ctx"]["error"]
        return ConfigError(error.what, why=error.why, where=document.where(loc), fix=error.fix)
    if kind == "unknown_key":
        context = detail["ctx"]
        loc = (*loc, context["key"])
        return ConfigError(message, where=document.where(loc), fix=f"known here: {context['known']}")
    where = document.where(loc)
    name = ".".join(map(str, loc)) or "the file"
    if kind == "missing":
        return ConfigError(f"{name} is missing", where=where, fix=f"add {loc[-1]}:")
    if kind == "union_tag_not_found":
        verbs = STAGE_VERBS if loc[0] == "stages" else TASK_VERBS
        why = explain_no_verb(detail["input"], verbs)
        return ConfigError(f"{name} {why}", where=where, fix=f"write one of: {', '.join(verbs)}")
    if isinstance(detail["input"], (dict, list, tuple)):
        return ConfigError(f"{name}: {message}", where=where)
    value = document.written.get(loc, detail["input"])  # as written: what came from the environment is not printed
    return ConfigError(f"{name}: cannot use {value!r}", why=message, where=where)


def _written_loc(document: Document, loc: tuple[str | int, ...]) -> tuple[str | int, ...]:
    """Pydantic's location without the tags of unions, as far as the file goes."""
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
