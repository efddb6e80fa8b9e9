"""``edgert inspect dock.edgert``: what a bundle holds, once all of it was found whole."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgert.cli.table import Column, Row, facts, table
from edgert.units import format_bytes

if TYPE_CHECKING:
    from rich.console import Console

    from edgert.artifact.bundle import Bundle
    from edgert.artifact.manifest import Manifest, ModelEntry, TensorEntry


_SHOWN_DIGEST = 16  # hexadecimal digits
_MEMBERS = (Column("member", wraps=True), Column("size", is_number=True), Column("SHA-256", rank=1))


def tell_bundle(console: Console, path: Path) -> dict[str, Any]:
    """Prints a bundle; returns its manifest as plain data, and under ``reports`` what is known of compiled engines.

    Raises:
        ArtifactError: it is not whole.
    """
    from dataclasses import asdict

    from edgert.artifact.bundle import open_bundle
    from edgert.build.compiled import compiled_engines
    from edgert.cli.inspect_engines import show_engines

    with open_bundle(path) as bundle:
        console.print(facts(_rows(bundle)))
        _show_members(console, bundle.manifest)
        engines = compiled_engines(bundle)
        show_engines(console, engines)
        return {**bundle.manifest.model_dump(mode="json"), "reports": [asdict(one) for one in engines]}


def _rows(bundle: Bundle) -> Iterator[tuple[str, str]]:
    from edgert.build.tuning import tuned_model

    manifest = bundle.manifest
    size_bytes = sum(member.size_bytes for member in manifest.members.values())
    yield "bundle", f"{bundle.path}, {format_bytes(size_bytes)} in {len(manifest.members)} members, all whole"
    yield "made by", f"edgert {manifest.edgert}"
    yield "pipeline", manifest.name
    where = f" in {manifest.mode}, TensorRT {manifest.tensorrt}" if manifest.tensorrt else ""
    yield "board", f"{manifest.board}{where}"
    yield "engines", " → ".join(manifest.engines)
    yield "sources", ", ".join(f"{name} ({kind})" for name, kind in manifest.sources.items()) or "none"
    yield "sinks", ", ".join(f"{name} ({kind})" for name, kind in manifest.sinks.items()) or "none"
    for name, model in manifest.models.items():
        yield f"model {name}", _model(model)
        yield from (("", line) for line in _evidence(bundle, model))
        if tuned := tuned_model(bundle, name):
            yield "", f"tuned for {'cameras' if tuned.live else 'files'} on {tuned.machine['cpu']}: {tuned.told}"


def _model(model: ModelEntry) -> str:
    ports = [", ".join(map(_port, part)) for part in (model.inputs, model.outputs)]
    return f"{model.source}, {model.precision}: {ports[0]} → {ports[1]}"


def _port(port: TensorEntry) -> str:
    return f"{port.name} {port.dtype}[{', '.join('?' if dim is None else str(dim) for dim in port.shape)}]"


def _evidence(bundle: Bundle, model: ModelEntry) -> Iterator[str]:
    """How far each form is from the model it was made of."""
    import json

    found = json.loads(bundle.read(model.files["evidence"]))
    for name in model.forms:
        row = found["forms"][name]
        error = row["relative_error"]
        told = "not finite" if error is None else f"{error:.2g}"
        more = "".join(f"; {line}" for line in row.get("summary", ())[: 2 if "accuracy" in row else 1])
        yield f"for {name}: relative error {told} (at most {row['tolerance']:g}){more}"


def _show_members(console: Console, manifest: Manifest) -> None:
    rows = [
        Row((path, format_bytes(member.size_bytes), member.sha256[:_SHOWN_DIGEST]))
        for path, member in manifest.members.items()
    ]
    console.print(table(_MEMBERS, rows, width=console.width))
