"""A simulation in sentences, for terminal and page alike."""

from __future__ import annotations

from edgert.plan.simulation import Simulation
from edgert.report.number import fixed, milliseconds, significant

_SPACE = "\N{NO-BREAK SPACE}"


def simulation_headline(simulation: Simulation) -> str:
    """One sentence: where, how fast, how late, at what power."""
    played = simulation.played
    mode = f" in {simulation.mode}" if simulation.mode else ""
    watts = f" at {fixed(played.power_w, 1)}{_SPACE}W" if played.power_w is not None else ""
    return (
        f"{simulation.title}{mode}, simulated for {significant(played.seconds)}{_SPACE}s: {significant(played.fps)} "
        f"frames a second{watts}, p99 {milliseconds(played.latency_ms.p99)}."
    )


def kept(simulation: Simulation) -> tuple[bool, str]:
    """Whether budgets of power and latency were kept on average, and how; empty without any."""
    played, budgets = simulation.played, simulation.budgets
    pairs = []
    if budgets.latency_ms is not None:
        pairs.append(("p99", played.latency_ms.p99, budgets.latency_ms, "ms"))
    if budgets.power_w is not None and played.power_w is not None:
        pairs.append(("power", played.power_w, budgets.power_w, "W"))
    missed = [f"{name} {significant(value)} of {limit:g} {unit}" for name, value, limit, unit in pairs if value > limit]
    if not pairs:
        return True, ""
    return not missed, "; ".join(missed) or "budgets kept"
