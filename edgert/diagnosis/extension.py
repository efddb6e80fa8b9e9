"""Kinds of other packages: what they add, or why they cannot."""

from __future__ import annotations

from edgert.diagnosis.probe import Evidence, Finding
from edgert.errors import ConfigError
from edgert.kinds import DECODERS, Claim, Registry, foreign, strays


def extensions(evidence: Evidence) -> Finding:
    """Every kind that an installed package adds, imported to see whether it can be used."""
    found = [(registry.noun, claim, _trouble(registry, claim)) for registry, claim in foreign()]
    tasks = ", ".join(f"{task}.NAME" for task in DECODERS)
    found += [("decoder", claim, f"its name is not one of {tasks}") for claim in strays()]
    if not found:
        return Finding("extensions", "optional", "no installed package adds sources, stages, sinks, decoders, trackers")
    lines = [f"{noun} {one.name} of {one}{why and f', unusable: {why}'}" for noun, one, why in found]
    broken = [f"{one}" for _, one, why in found if why]
    fix = f"update or uninstall {', '.join(dict.fromkeys(broken))}" if broken else ""
    return Finding("extensions", "optional" if broken else "yes", "; ".join(lines), fix)


def _trouble(registry: Registry, claim: Claim) -> str:
    try:
        registry.get(claim.name)
    except ConfigError as error:
        return f"{error.what}: {error.why}" if "claimed by" in error.what else error.why
    return ""
