"""Engines as members of a bundle: packed for the machine that compiled them, and taken out there and nowhere else."""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from edgert.artifact.bundle import Bundle
from edgert.artifact.manifest import CompiledEntry, EngineEntry, Manifest
from edgert.artifact.member import member_of
from edgert.backend import Store
from edgert.backend.trt.made import read_record
from edgert.backend.trt.origin import Facts, changes, key_of
from edgert.build import proof
from edgert.build.engines import Compiled
from edgert.compiler.step import to_json

FOLDER = "engines"


def target_of(facts: Facts) -> str:
    """The folder of a machine: ``orin-nx-16gb-10.3.0-1a2b3c4d``. Equal facts give equal names."""
    digest = hashlib.sha256(json.dumps(dict(facts), sort_keys=True).encode()).hexdigest()[:8]
    words = f"{facts.get('module', 'machine')}-{facts['TensorRT']}-{digest}"
    return re.sub(r"[^A-Za-z0-9_.\-]+", "-", words).lower()


def packed(
    manifest: Manifest, members: Mapping[str, bytes], facts: Facts, compiled: Mapping[str, Sequence[Compiled]]
) -> tuple[Manifest, dict[str, bytes]]:
    """A bundle with the engines of this machine, in place of those it had for it.

    Args:
        members: the bundle's.
        facts: of this machine.
        compiled: model → its engines.
    """
    target = target_of(facts)
    before = manifest.compiled.get(target)
    old = set(before.members) if before is not None else set()
    content = {path: data for path, data in members.items() if path not in old}
    engines: dict[str, list[EngineEntry]] = {}
    for model, each in compiled.items():
        for number, one in enumerate(each):
            entry = _entry(f"{FOLDER}/{target}/{model}-{number}", one.order.weight)
            content |= {
                entry.plan: one.made.result.plan,
                entry.record: one.made.record,
                entry.proof: to_json(one.proof),
            }
            engines.setdefault(model, []).append(entry)
    entries = {**manifest.compiled, target: CompiledEntry(facts=dict(facts), engines=engines)}
    listed = {path: member_of(data) for path, data in sorted(content.items())}
    return manifest.model_copy(update={"compiled": entries, "members": listed}), content


def _entry(base: str, weight: int) -> EngineEntry:
    return EngineEntry(plan=f"{base}.plan", record=f"{base}.json", proof=f"{base}.proof.json", weight=weight)


def take(bundle: Bundle, facts: Facts, store: Store) -> str:
    """Puts the engines that this machine compiled into the store.

    Returns:
        Why those that are there are left, where none is this machine's; empty otherwise.

    Raises:
        ArtifactError: a member is damaged, or cannot be kept.
    """
    compiled = bundle.manifest.compiled
    mine = [entry for entry in compiled.values() if entry.facts == dict(facts)]
    for entry in mine:
        for engine in (one for engines in entry.engines.values() for one in engines):
            _take(bundle, engine, store)
    if mine or not compiled:
        return ""
    nearest = min(compiled.values(), key=lambda entry: len(changes(entry.facts, facts)))
    return f"the bundle's engines are another machine's and are left: {', '.join(changes(nearest.facts, facts))}"


def _take(bundle: Bundle, engine: EngineEntry, store: Store) -> None:
    record = bundle.read(engine.record)
    key = key_of(read_record(record, f"{bundle.path}: {engine.record}")["facts"])
    if store.get(key) is None:
        with tempfile.TemporaryDirectory(prefix="edgert-") as folder:
            path = Path(folder) / "engine"
            path.write_bytes(record + bundle.read(engine.plan))
            store.put(key, path)
    if proof.kept(store, key, ran=False) is None:
        proof.keep(store, key, json.loads(bundle.read(engine.proof)))
