"""``manifest.json`` of a bundle: its members, what they were made from, and the board they are for."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from edgert._version import __version__
from edgert.errors import ArtifactError
from edgert.zip_archive import Member, check_paths

NAME = "manifest.json"
FORMAT, SCHEMA = "edgert bundle", 2


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class TensorEntry(_Part):
    """An input or output; an open dimension has a name, or is None."""

    name: str
    dtype: str
    shape: list[int | str | None]


class ModelEntry(_Part):
    """A model of the pipeline.

    Attributes:
        source: name of the ONNX file it was made from.
        digest: of that file, as in :attr:`edgert.graph.model.Model.digest`.
        precision: that of the pipeline, with ``auto`` decided.
        inputs: of every form.
        outputs: of every form.
        forms: form → the ONNX member that engines of that kind run: ``float``, ``ort``, ``gpu``, ``dla``, ``fp16``.
        files: kind → member, of all other files: ``ranges``, ``cache``, ``fp16_nodes``, ``placement``, ``labels`` …
    """

    source: str
    digest: str
    precision: str
    inputs: list[TensorEntry]
    outputs: list[TensorEntry]
    forms: dict[str, str]
    files: dict[str, str]


class PlanEntry(_Part):
    """Result of one TensorRT build.

    Attributes:
        plan: member with its serialized engine.
        record: member on how it was built: facts, placement, log, inspector, as JSON.
    """

    plan: str
    record: str


class EngineEntry(PlanEntry):
    """A compiled engine of a model.

    Attributes:
        checks: member with its checks: where nodes run, the error of its outputs, and the time of a run.
        weight: its share of the frames, relative to the model's other engines.
        others: for further profiles and sizes of a batch, of TensorRT-RTX.
    """

    checks: str
    weight: int = 1
    others: list[PlanEntry] = []


class CompiledEntry(_Part):
    """Engines that one machine compiled; they run there only.

    Attributes:
        facts: name → value of the machine's properties that they and their times depend on.
        engines: model → its engines.
    """

    facts: dict[str, str]
    engines: dict[str, list[EngineEntry]]

    @property
    def members(self) -> list[str]:
        """All its files."""
        every = [engine for engines in self.engines.values() for engine in engines]
        plans = [path for one in every for plan in (one, *one.others) for path in (plan.plan, plan.record)]
        return [*plans, *(one.checks for one in every)]


class Manifest(_Part):
    """Contents of a bundle.

    Attributes:
        edgert: version that wrote it.
        name: of the pipeline.
        board: name of the board it is for; ``host`` for any machine's CPU.
        mode: power mode it was planned for; empty for ``host``.
        tensorrt: release that calibration caches and DLA rules are for; empty for ``host``.
        engines: that may run it, in the order in which they are tried.
        pipeline: member with the pipeline file.
        sources: stage → kind, where frames come from.
        sinks: stage → kind, where results go.
        models: by name.
        compiled: folder of a machine below ``engines`` → what it compiled; left out of the file where there is none.
        members: every file of the bundle except the manifest itself.
    """

    edgert: str = __version__
    name: str
    board: str
    mode: str = ""
    tensorrt: str = ""
    engines: list[str] = Field(min_length=1)
    pipeline: str
    sources: dict[str, str]
    sinks: dict[str, str]
    models: dict[str, ModelEntry]
    compiled: dict[str, CompiledEntry] = Field(default_factory=dict)
    members: dict[str, Member]

    def to_bytes(self) -> bytes:
        """Return the file's content; equal manifests give equal bytes."""
        plain = self.model_dump(mode="json", exclude=None if self.compiled else {"compiled"})
        content = {"format": FORMAT, "schema": SCHEMA, **plain}
        return _text({**content, "digest": hashlib.sha256(_text(content)).hexdigest()})

    @property
    def onnx_bytes(self) -> int:
        """Size of all models in bytes."""
        paths = {path for model in self.models.values() for path in model.forms.values()}
        return sum(self.members[path].size_bytes for path in paths)


def parse_manifest(data: bytes, where: str) -> Manifest:
    """Read a manifest and check that it is complete.

    Raises:
        ArtifactError: no manifest, another schema, changed since it was written, or it names members that it does not
            list or whose paths are not allowed.
    """
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise _damaged(where, f"the manifest is no JSON: {error}") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        what = f'does not have "format": "{FORMAT}"' if isinstance(content, dict) else "is no mapping"
        fix = "name what edgert build wrote"
        raise ArtifactError(f"{where} is no bundle of edgert's", why=f"its manifest {what}", fix=fix)
    schema = content.get("schema")
    if schema != SCHEMA:
        raise ArtifactError(
            f"{where} is a bundle of schema {schema!r}",
            why=f"edgert {content.get('edgert')} wrote it; this one, {__version__}, reads schema {SCHEMA}",
            fix="build the bundle again with this edgert, or update edgert if it is the older one",
            code="E602",
        )
    written = {key: value for key, value in content.items() if key not in ("format", "schema", "digest")}
    try:
        manifest = Manifest.model_validate_json(json.dumps(written))
    except (ValidationError, ValueError) as error:
        raise _damaged(where, str(error).splitlines()[0]) from error
    if manifest.to_bytes() != data:
        raise _damaged(where, "the manifest's digest is not that of its content")
    check_paths([NAME, *manifest.members], where)
    of_models = [path for model in manifest.models.values() for path in (*model.forms.values(), *model.files.values())]
    compiled = [path for entry in manifest.compiled.values() for path in entry.members]
    for path in (manifest.pipeline, *of_models, *compiled):
        if path not in manifest.members:
            raise _damaged(where, f"the manifest names {path!r}, but lists no such member")
    return manifest


# Content of JSON members, as far as edgert reads it; a correct digest does not check this.


class _Content(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)


_Positive = Annotated[float, Field(gt=0)]
_Natural = Annotated[int, Field(ge=0)]


class _FormQuality(_Content):
    relative_error: float | None
    tolerance: float
    summary: list[str] = []


class _Quality(_Content):
    forms: dict[str, _FormQuality]


class _Sizes(_Content):
    least: list[int]
    usual: list[int]
    most: list[int]


class _PlacedEngine(_Content):
    share: Annotated[float, Field(ge=0, le=1)]
    accelerators: list[str]
    nodes: dict[str, str]


class _Placement(_Content):
    engines: list[_PlacedEngine]
    spans: dict[str, _Sizes] = {}


class _Nodes(_Content):
    nodes: list[str]


class _Tuned(_Content):
    gain: float
    runs: int
    live: bool
    machine: dict[str, str]


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
    runs: _Natural
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


class _Checks(_Content):
    placement: _FoundPlacement
    profile: _Timed | None = None
    layers: list[_LayerTime] = []
    outputs: _Outputs = _Outputs()
    memory: _Memory = _Memory()
    input: str = ""


_CONTENTS: Mapping[str, type[_Content]] = {
    "quality": _Quality,
    "placement": _Placement,
    "fp16_nodes": _Nodes,
    "tune": _Tuned,
}
"""Content of a model's files, by kind."""


def check_contents(manifest: Manifest, read: Callable[[str], bytes], where: str) -> None:
    """Raise ArtifactError for a JSON member without the content of its kind, or a model without its forms."""
    for name, model in manifest.models.items():
        if missing := [kind for kind, known in (("float", model.forms), ("quality", model.files)) if kind not in known]:
            raise _damaged(where, f"its manifest names no {missing[0]} of model {name!r}")
    for target, entry in manifest.compiled.items():
        if strange := entry.engines.keys() - manifest.models.keys():
            raise _damaged(where, f"{target} compiled a model {min(strange)!r}, which the bundle does not have")
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
    for engine in (one for entry in manifest.compiled.values() for every in entry.engines.values() for one in every):
        yield engine.checks, _Checks
        yield from ((one.record, _Record) for one in (engine, *engine.others))


def _text(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(content, indent=1, sort_keys=True, allow_nan=False) + "\n").encode("ascii")


def _damaged(where: str, why: str) -> ArtifactError:
    return ArtifactError(f"{where} is damaged", why=why, fix="build the bundle again, or copy it again", code="E601")
