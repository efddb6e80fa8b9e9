"""``edgert inspect --dla --explain``: what rewrites bring onto a DLA, shown before and after."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from edgert.cli.table import Column, Row, marked, table

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from edgert.graph import Change, Model
    from edgert.graph.fit import Cut, Proof
    from edgert.graph.node import Graph
    from edgert.place.capability import Difference, Survey


def explain(
    console: Console,
    loaded: Model,
    shapes: Mapping[str, Sequence[int]],
    before: Survey,
    save: Path | None,
    skipped: Sequence[str] = (),
) -> dict[str, Any]:
    """Rewrites the model as a build would, prints what that changes, and returns it as plain data.

    Original and rewritten model both run once on noise, and how far apart they are is printed.

    Args:
        before: the survey of the model as it is.
        save: where the rewritten model goes; None: nowhere.
        skipped: rewrites that are left out, by name or glob.

    Raises:
        ModelError: a dimension other than the batch is open, or an operator has no equal in opset 17.
        PlacementError: there is no such rewrite.
    """
    from edgert.graph.fit import fit_model, ready, without
    from edgert.graph.node import read
    from edgert.place.capability import compare, survey

    begun = ready(loaded, shapes)
    made, changes = fit_model(begun, without(skipped, "--skip-rewrite") if skipped else None)
    graph = read(made)
    after = survey(graph, before.target)
    rows = compare(before, after)
    console.print("[bold]Rewritten for the DLA[/]")
    _show_changes(console, rows)
    proof = _proof(begun, made) if changes else None
    cut = _cut(graph, after)
    _show(console, changes, proof, cut)
    if save is not None:
        _save(made, save)
        console.print(f"rewritten model written to {save}", markup=False)
    return {
        "changes": [asdict(change) for change in changes],
        "compared": [asdict(row) for row in rows],
        "proof": None if proof is None else asdict(proof),
        "cut": [str(spec) for spec in cut.tensors] if cut else [],
        "after": after.to_json(),
    }


def _show_changes(console: Console, rows: Iterable[Difference]) -> None:
    """Prints what differs between two surveys."""
    columns = (Column(""), Column("before", is_number=True), Column("after", is_number=True))
    styles = {True: "green", False: "red", None: ""}
    shown = [Row((row.what, row.before, marked(row.after, styles[row.is_better]))) for row in rows]
    console.print(table(columns, shown, width=console.width))


def _show(console: Console, changes: Sequence[Change], proof: Proof | None, cut: Cut | None) -> None:
    from edgert.graph.fit import REWRITES

    for name, count in Counter(change.rule for change in changes).items():
        does = f": {REWRITES[name].does}" if name in REWRITES else ""
        console.print(f"{name}, {count} ×{does}", markup=False)
    if not changes:
        console.print("no rewrite applies")
    if proof is not None:
        distance = f"on noise its outputs differ by at most {proof.error:.2g}, of up to {proof.largest:.3g}"
        console.print(f"both were run: {distance}", markup=False)
    if cut is not None and cut.tail is not None:
        names = ", ".join(spec.name for spec in cut.tensors)
        console.print(
            f"{len(cut.body.nodes)} nodes can run as one piece; cut off behind {names}: {len(cut.tail.nodes)} nodes of "
            "post-processing",
            markup=False,
        )


def _proof(before: Model, after: Model) -> Proof:
    import numpy as np

    from edgert.backend.ort import Function
    from edgert.graph.fit import prove
    from edgert.graph.spec import inputs

    random = np.random.default_rng(0)
    feed = {}
    for spec in inputs(before):
        shape = tuple(dim for dim in spec.shape if isinstance(dim, int))
        feed[spec.name] = random.standard_normal(shape, np.float32).astype(spec.dtype)
    return prove(before, after, [feed], lambda model, feeds: list(Function(model)(feeds).values()))


def _cut(graph: Graph, found: Survey) -> Cut | None:
    """Where the network would be cut; None where nothing of it can run."""
    from edgert.graph.fit import cut_head

    allowed = found.allowed
    return cut_head(graph, lambda node: node.name in allowed) if allowed else None


def _save(model: Model, path: Path) -> None:
    from edgert.artifact.atomic import replace_bytes
    from edgert.graph import to_bytes

    replace_bytes(path, to_bytes(model))
