"""``edgert inspect``: inputs and cost of an ONNX model, the parts a DLA can run, and the content of a bundle."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dla import ORIN, USUAL_RELEASE
from edgert import graph, limits
from edgert.backend.base import Array
from edgert.backend.ort import Function
from edgert.board.detect import detect
from edgert.board.record import Board, boards, find_board
from edgert.bundle.bundle import open_bundle
from edgert.bundle.manifest import Manifest
from edgert.bundle.signature import Signer
from edgert.compiler.finish import EngineReport, compiled_engines
from edgert.compiler.unpack import tuned_model
from edgert.errors import ConfigError, ModelError
from edgert.files import replace_bytes
from edgert.graph.count import peak_bytes
from edgert.graph.dla_rewrites.apply import Cut, Proof, cut_head, fit_model, prepare_for_dla, prove, remaining_rewrites
from edgert.graph.metadata import class_names
from edgert.placement.dla_share import Difference, Survey, compare, survey, target_of
from edgert.stages.decode.guess import Guess, guess
from edgert.tuner.trials import Tuned

Shapes = Mapping[str, Sequence[int]]
"""Input → shape, for inputs with dynamic dimensions."""


@dataclass(frozen=True, slots=True, eq=False)
class Rewritten:
    """A model rewritten for the DLA as in a build, and the effects.

    Attributes:
        model: rewritten model.
        changes: rewrites in order.
        compared: numbers that differ between the surveys before and after.
        proof: difference between the outputs of both models on noise; None where nothing was rewritten.
        cut: cut of the network into the part for a DLA and the rest.
        survey: survey of the rewritten model for the same DLA.
    """

    model: graph.Model = field(repr=False)
    changes: tuple[graph.Change, ...]
    compared: tuple[Difference, ...]
    proof: Proof | None
    cut: Cut
    survey: Survey

    def save(self, path: Path) -> None:
        """Write the rewritten model. Raises ArtifactError."""
        replace_bytes(path, graph.to_bytes(self.model))

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "changes": [asdict(change) for change in self.changes],
            "compared": [asdict(row) for row in self.compared],
            "proof": None if self.proof is None else asdict(self.proof),
            "cut": [str(spec) for spec in self.cut.tensors],
            "after": self.survey.to_json(),
        }


@dataclass(frozen=True, slots=True, eq=False)
class DlaInspection:
    """Parts of a model that the DLA of a board can run.

    Attributes:
        board: board with the DLA.
        survey: verdicts on the nodes of the model, prepared as in a build, and totals.
        rewritten: model rewritten for the DLA; None unless requested.
    """

    board: Board
    survey: Survey
    rewritten: Rewritten | None = None

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        plain = {"board": self.board.name, "cores": self.board.dla.cores, **self.survey.to_json()}
        return plain if self.rewritten is None else {**plain, "rewritten": self.rewritten.to_json()}


@dataclass(frozen=True, slots=True, eq=False)
class Inspection:
    """Inputs, outputs and cost of an ONNX model.

    Attributes:
        summary: summary of the model as it is in the file.
        profiles: requested shapes, each with the summary of the model at these shapes.
        guesses: decoders that can read its outputs, the likeliest first.
        dla: parts that a board's DLA can run; None unless requested.
    """

    summary: graph.ModelSummary
    profiles: tuple[tuple[Shapes, graph.ModelSummary], ...]
    guesses: tuple[Guess, ...]
    dla: DlaInspection | None = None

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        profiles = [
            {
                "shapes": {name: list(shape) for name, shape in shapes.items()},
                "macs": one.macs,
                "activation_bytes": one.activation_bytes,
                "outputs": [str(spec) for spec in one.outputs],
                "uncounted": one.uncounted,
            }
            for shapes, one in self.profiles
        ]
        plain = {**self.summary.to_json(), "profiles": profiles, "looks_like": [asdict(one) for one in self.guesses]}
        return plain if self.dla is None else {**plain, "dla": self.dla.to_json()}


@dataclass(frozen=True, slots=True)
class BundleInspection:
    """Contents of a bundle whose digests were checked.

    Attributes:
        path: path of the bundle.
        manifest: manifest of the bundle.
        accuracy: model → differences of its forms from the original model, as plain data.
        tuned: model → result of the search for its fastest settings, for tuned models.
        engines: reports on engines that boards compiled.
        signer: signer of the bundle; None if it is unsigned.
    """

    path: Path
    manifest: Manifest
    accuracy: Mapping[str, Mapping[str, Any]]
    tuned: Mapping[str, Tuned]
    engines: tuple[EngineReport, ...]
    signer: Signer | None

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        signer = asdict(self.signer) if self.signer is not None else None
        reports = [one.model_dump(mode="json") for one in self.engines]
        return {**self.manifest.model_dump(mode="json"), "signer": signer, "reports": reports}


def inspect(
    model: str | Path,
    *,
    profiles: Sequence[Shapes] = (),
    dla: bool = False,
    board: str | None = None,
    tensorrt: str | None = None,
    precision: str = "int8",
    rewrite: bool = False,
    skip_rewrites: Sequence[str] = (),
) -> Inspection:
    """Read an ONNX model and count its work; with ``dla``, check node by node what a board's DLA can run.

    Args:
        model: path of the ONNX file.
        profiles: shapes of inputs with dynamic dimensions; the work is counted for each. The DLA is checked with the
            first.
        dla: whether to check a DLA.
        board: name or file of the board with the DLA; this machine by default.
        tensorrt: release that compiles for the DLA; 10.3 for Orin and 8.5 for Xavier by default.
        precision: precision on the DLA, ``int8`` or ``fp16``.
        rewrite: whether to rewrite the model for the DLA as in a build. Both models then run once on noise.
        skip_rewrites: names or globs of rewrites to leave out.

    Raises:
        ModelError: the file is no ONNX model, or the shapes do not fit it.
        ConfigError: the board does not exist or has no DLA, or the release or precision does not exist.
        PlacementError: there is no such rewrite.
    """
    loaded = graph.load(model)
    shapes = profiles[0] if profiles else {}
    about: DlaInspection | None = None
    if dla:
        record = _board_with_dla(board)
        remaining_rewrites(skip_rewrites, "--skip-rewrite")  # raises for unknown names
        generation = record.dla.generation
        target = target_of(generation, tensorrt or USUAL_RELEASE[generation or ORIN], precision)
        cleaned, _ = graph.clean(graph.with_shapes(loaded, shapes) if shapes else loaded)  # as in a build
        found = survey(graph.read(cleaned), target)
        about = DlaInspection(record, found, _rewrite(loaded, shapes, found, skip_rewrites) if rewrite else None)
    summary = graph.inspect(loaded)
    counted = tuple((profile, graph.inspect(loaded, profile)) for profile in profiles)
    return Inspection(summary, counted, tuple(_guess_decoders(counted[0][1] if counted else summary)), about)


def inspect_bundle(path: str | Path, signers: Path | None = None) -> BundleInspection:
    """Check a bundle's members and signature, and read its content.

    Args:
        path: path of the bundle.
        signers: file of accepted signers; None: the signature is not checked.

    Raises:
        ArtifactError: it is damaged, was written by another version of edgert, or is signed by none of the signers.
    """
    with open_bundle(Path(path)) as bundle:
        signer = bundle.signer(signers)
        models = bundle.manifest.models
        accuracy = {name: json.loads(bundle.read(one.files["quality"])) for name, one in models.items()}
        tuned = {name: one for name in models if (one := tuned_model(bundle, name))}
        return BundleInspection(bundle.path, bundle.manifest, accuracy, tuned, compiled_engines(bundle), signer)


def _board_with_dla(name: str | None) -> Board:
    board = detect().board if name is None else find_board(name)
    having = ", ".join(one.name for one in boards() if one.dla.cores)
    if board is None:
        why = "this machine is no Jetson that edgert knows, and --dla checks against a board's DLA"
        raise ConfigError("cannot tell which board's DLA to check", why=why, fix=f"--board NAME, one of {having}")
    if not board.dla.cores:
        raise ConfigError(f"{board.title} has no DLA", where="--board", fix=f"--board NAME, one of {having}")
    return board


def _rewrite(loaded: graph.Model, shapes: Shapes, before: Survey, skipped: Sequence[str]) -> Rewritten:
    prepared = prepare_for_dla(loaded, shapes)
    model, changes = fit_model(prepared, remaining_rewrites(skipped, "--skip-rewrite") if skipped else None)
    rewritten = graph.read(model)
    after = survey(rewritten, before.target)
    proof = None
    if changes:
        feed = _noise(prepared, loaded)
        proof = prove(prepared, model, [feed], lambda model, feeds: list(Function(model)(feeds).values()))
    cut = cut_head(rewritten, lambda node: node.name in after.allowed)
    return Rewritten(model, tuple(changes), tuple(compare(before, after)), proof, cut, after)


def _noise(model: graph.Model, loaded: graph.Model) -> dict[str, Array]:
    """Return inputs of noise for a model. Raises ModelError if it cannot be run, naming the file of ``loaded``."""
    what, fix = "cannot be run to compare it with its rewritten form", "leave out --explain and --rewritten"
    if (size_bytes := peak_bytes(graph.read(model))) > limits.COMPARED_BYTES:
        why = f"its tensors take {size_bytes / 2**20:,.0f} MiB at once; at most {limits.COMPARED_BYTES >> 20}"
        raise ModelError(f"model {str(loaded.path)!r} {what}", why=why, fix=fix)
    if unknown := [spec.name for spec in graph.inputs(model) if spec.dtype == "unknown"]:
        why = f"input {unknown[0]!r} has a type that NumPy does not know"
        raise ModelError(f"model {str(loaded.path)!r} {what}", why=why, fix=fix)
    random = np.random.default_rng(0)
    shapes = {spec.name: tuple(dim for dim in spec.shape if isinstance(dim, int)) for spec in graph.inputs(model)}
    return {
        spec.name: random.standard_normal(shapes[spec.name], np.float32).astype(spec.dtype)
        for spec in graph.inputs(model)
    }


def _guess_decoders(summary: graph.ModelSummary) -> list[Guess]:
    """Return decoders of a model with one image input, which has four dimensions, batch first; else an empty list."""
    images = [spec for spec in summary.inputs if len(spec.shape) == 4]
    ranked = [spec for spec in summary.outputs if spec.shape]
    if len(images) != 1 or len(ranked) != len(summary.outputs):
        return []
    count = len(class_names(summary.metadata)) or None
    outputs = [_sizes(spec.shape[1:]) for spec in ranked]
    names, dtypes = [spec.name for spec in ranked], [spec.dtype for spec in ranked]
    return guess(outputs, names, _sizes(images[0].shape[1:]), count, dtypes=dtypes)


def _sizes(shape: Sequence[int | str | None]) -> tuple[int | None, ...]:
    return tuple(dim if isinstance(dim, int) else None for dim in shape)
