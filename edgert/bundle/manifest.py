"""``manifest.json`` of a bundle: its members, their sources, and the target board."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from edgert._version import __version__
from edgert.backend.base import Span
from edgert.errors import ArtifactError
from edgert.graph import TensorSpec
from edgert.zip_archive import Member, check_paths, damage_error

NAME = "manifest.json"
FORMAT, SCHEMA = "edgert bundle", 3


_Line = Annotated[str, Field(pattern=r"^\P{Cc}*$")]
"""Text without line breaks and other control characters."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class ModelEntry(_Part):
    """A model of the pipeline.

    Attributes:
        source: name of the original ONNX file.
        digest: digest of that file, as in :attr:`edgert.graph.model.Model.digest`.
        precision: precision in the pipeline, in which ``auto`` is replaced by the chosen one.
        inputs: inputs of every form.
        outputs: outputs of every form.
        forms: ONNX members by the kind of engines that run them: ``float``, ``ort``, ``gpu``, ``dla``, ``fp16``.
        files: other members by kind: ``ranges``, ``cache``, ``fp16_nodes``, ``placement``, ``labels`` …
    """

    source: str
    digest: str
    precision: str
    inputs: list[TensorSpec]
    outputs: list[TensorSpec]
    forms: dict[str, str]
    files: dict[str, str]


class PlanEntry(_Part):
    """Result of one TensorRT build.

    Attributes:
        plan: member with the serialized engine.
        record: JSON member with the facts, placement, log and inspector of the build.
    """

    plan: str
    record: str


class EngineEntry(PlanEntry):
    """A compiled engine of a model.

    Attributes:
        checks: member with results of checks: accelerators of nodes, error of outputs, and time of a run.
        weight: relative share of the frames among the model's engines.
        others: plans of TensorRT-RTX for further profiles and batch sizes.
    """

    checks: str
    weight: int = 1
    others: list[PlanEntry] = []


class CompiledEntry(_Part):
    """Engines that one machine compiled, and that only run there.

    Attributes:
        facts: values of the machine's properties that the engines and their times depend on, by name.
        engines: engines by model.
    """

    facts: dict[str, str]
    engines: dict[str, list[EngineEntry]]

    @property
    def members(self) -> list[str]:
        """All members of the engines."""
        every = [engine for engines in self.engines.values() for engine in engines]
        plans = [path for one in every for plan in (one, *one.others) for path in (plan.plan, plan.record)]
        return [*plans, *(one.checks for one in every)]


class Manifest(_Part):
    """Contents of a bundle.

    Attributes:
        edgert: version of edgert that wrote the bundle.
        name: name of the pipeline.
        board: name of the target board; ``host`` for the CPU of any machine.
        mode: power mode that the plan is for; empty for ``host``.
        tensorrt: TensorRT release that calibration caches and DLA rules are for; empty for ``host``.
        engines: names of engines that may run the pipeline, in the order in which they are tried.
        pipeline: member with the pipeline file.
        sources: kinds of sources by stage.
        sinks: kinds of sinks by stage.
        models: models by name.
        compiled: compiled engines by the machine's folder below ``engines``; absent from the file if empty.
        members: every file of the bundle except the manifest.
    """

    edgert: _Line = __version__
    name: _Line
    board: _Line
    mode: _Line = ""
    tensorrt: Annotated[str, Field(pattern=r"^[0-9A-Za-z.+-]{0,32}$")] = ""
    engines: list[str] = Field(min_length=1)
    pipeline: str
    sources: dict[str, str]
    sinks: dict[str, str]
    models: dict[str, ModelEntry]
    compiled: dict[str, CompiledEntry] = Field(default_factory=dict)
    members: dict[str, Member]

    def to_bytes(self) -> bytes:
        """Return the content of the file. Equal manifests have equal bytes."""
        plain = self.model_dump(mode="json", exclude=None if self.compiled else {"compiled"})
        content = {"format": FORMAT, "schema": SCHEMA, **plain}
        return _json_bytes({**content, "digest": hashlib.sha256(_json_bytes(content)).hexdigest()})

    @property
    def onnx_bytes(self) -> int:
        """Size of all ONNX models in bytes."""
        paths = {path for model in self.models.values() for path in model.forms.values()}
        return sum(self.members[path].size_bytes for path in paths)


def parse_manifest(data: bytes, where: str) -> Manifest:
    """Read a manifest and check that it is complete.

    Raises:
        ArtifactError: it is no manifest, has another schema, was changed since it was written, or names members that it
            does not list, or whose paths are not allowed.
    """
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise damage_error(where, f"the manifest is no JSON: {error}") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        what = f'does not have "format": "{FORMAT}"' if isinstance(content, dict) else "is no mapping"
        fix = "name what edgert build wrote"
        raise ArtifactError(f"{where} is no bundle of edgert's", why=f"its manifest {what}", fix=fix)
    schema = content.get("schema")
    if schema != SCHEMA:
        raise ArtifactError(
            f"{where} is a bundle of schema {schema!r}",
            why=f"edgert {content.get('edgert')!r} wrote it; this one, {__version__}, reads schema {SCHEMA}",
            fix="build the bundle again with this edgert, or update edgert if it is the older one",
            code="E602",
        )
    written = {key: value for key, value in content.items() if key not in ("format", "schema", "digest")}
    try:
        manifest = Manifest.model_validate_json(json.dumps(written))
    except (ValidationError, ValueError) as error:
        raise damage_error(where, str(error).splitlines()[0]) from error
    if manifest.to_bytes() != data:
        raise damage_error(where, "the manifest's digest is not that of its content")
    check_paths([NAME, *manifest.members], where)
    of_models = [path for model in manifest.models.values() for path in (*model.forms.values(), *model.files.values())]
    compiled = [path for entry in manifest.compiled.values() for path in entry.members]
    for path in (manifest.pipeline, *of_models, *compiled):
        if path not in manifest.members:
            raise damage_error(where, f"the manifest names {path!r}, but lists no such member")
    return manifest


# The parts of JSON members that edgert reads. A correct digest does not make them valid.


class _Content(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)


_Positive = Annotated[float, Field(gt=0)]


class _FormQuality(_Content):
    relative_error: float | None
    tolerance: float
    summary: list[str] = []


class _Quality(_Content):
    forms: dict[str, _FormQuality]


class PlacedEngine(_Content):
    """Place of each node in an engine, which gets this share of the frames."""

    share: Annotated[float, Field(ge=0, le=1)]
    accelerators: list[str]
    nodes: dict[str, str]


class Placement(_Content, extra="ignore"):
    """Engines of a model by the planner; none in a bundle for ``host``. ``spans`` has the shapes of open inputs."""

    engines: list[PlacedEngine]
    spans: dict[str, Span] = {}


class _Nodes(_Content):
    nodes: list[str]


class _Result(_Content):
    library: str
    seconds: float


class _Record(_Content):
    facts: dict[str, Any]
    placement: dict[str, str]
    attempts: list[str]
    result: _Result


class _Counted(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    planned: int
    actual: int


class _FoundPlacement(_Content):
    source: str
    misplaced: list[tuple[str, str, str, str]]
    layers: int
    reformats: int
    loadables: int
    nodes: dict[str, _Counted] = {}


class _Timed(_Content):
    median_ms: _Positive
    runs: Annotated[int, Field(ge=1)]
    quantiles: list[float] = []


class _LayerTime(_Content):
    name: str
    accelerator: str
    median_ms: Annotated[float, Field(ge=0)]
    nodes: list[str]
    moves: bool


class _Outputs(_Content):
    relative_error: float | None = None


class _Memory(_Content):
    context_bytes: int | None = None
    tensor_bytes: int | None = None


class EngineChecks(_Content):
    """Planned and actual places of an engine's nodes, its times and memory, where they are known."""

    placement: _FoundPlacement
    profile: _Timed | None = None
    layers: list[_LayerTime] = []
    outputs: _Outputs = _Outputs()
    memory: _Memory = _Memory()
    input: str = ""


_CONTENTS: Mapping[str, type[_Content]] = {"quality": _Quality, "placement": Placement, "fp16_nodes": _Nodes}
"""Contents of a model's files, by kind; its reader checks that of a search for settings."""


def check_contents(manifest: Manifest, read: Callable[[str], bytes], where: str) -> None:
    """Raise ArtifactError for a JSON member without the content of its kind, or a model without required members."""
    for name, model in manifest.models.items():
        if missing := [kind for kind, known in (("float", model.forms), ("quality", model.files)) if kind not in known]:
            raise damage_error(where, f"its manifest names no {missing[0]} of model {name!r}")
    for target, entry in manifest.compiled.items():
        if unknown := entry.engines.keys() - manifest.models.keys():
            raise damage_error(where, f"{target} compiled a model {min(unknown)!r}, which the bundle does not have")
    for path, kind in _json_members(manifest):
        try:
            kind.model_validate_json(read(path))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            key = ".".join(map(str, first["loc"]))
            what = f"member {path!r} of the bundle is not what edgert writes"
            fix = "build the bundle again with this edgert"
            raise ArtifactError(what, why=f"{key or 'it'}: {first['msg']}", where=where, fix=fix) from error


def _json_members(manifest: Manifest) -> Iterator[tuple[str, type[_Content]]]:
    for model in manifest.models.values():
        yield from ((path, _CONTENTS[kind]) for kind, path in model.files.items() if kind in _CONTENTS)
    for engine in (
        one for entry in manifest.compiled.values() for engines in entry.engines.values() for one in engines
    ):
        yield engine.checks, EngineChecks
        yield from ((one.record, _Record) for one in (engine, *engine.others))


def _json_bytes(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(content, indent=1, sort_keys=True, allow_nan=False) + "\n").encode("ascii")
