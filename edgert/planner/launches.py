"""Notes of a plan about how kernels are started, and about error bars of chips that little was published for."""

from collections.abc import Iterator, Sequence

from edgert.board.record import Board
from edgert.errors import ConfigError, nearest
from edgert.placement.cost.coefficients import coefficients
from edgert.placement.cost.formulas import LAUNCHES, Launch, executed_precision, recorded_share
from edgert.placement.cost.work import units
from edgert.placement.plan_record import BoardPlan
from edgert.placement.problem import GPU
from edgert.planner.planned_model import PlannedModel
from edgert.report.numbers import counted, significant


def launch_named(name: str) -> Launch:
    """Return a way to start kernels by its name; raise ConfigError if there is no such way."""
    if name not in LAUNCHES:
        raise ConfigError(
            f"no way to start kernels named {name!r}{nearest(name, LAUNCHES)}",
            why="engines run as a CUDA graph, or a CPU starts every kernel",
            fix="--launch graph or --launch kernels",
        )
    return name


def about_launches(planned: Sequence[PlannedModel], board: Board, launch: Launch) -> str:
    """Return which way to start kernels the times are for, and what the other way changes in the fastest mode."""
    mode, costs = board.peak_mode, coefficients(board.soc)
    extra_us = (1 - recorded_share(mode, "kernels")) * costs.gpu.enqueue_us
    kernels = {subject.demand.model: sum(work.launches for work in units(subject.graph)) for subject in planned}
    changes = ", ".join(f"{name} {significant(1e-3 * extra_us * count, 2)} ms" for name, count in kernels.items())
    if launch == "graph":
        return (
            "GPU times are of CUDA graphs, as edgert runs engines. Most published times, and trtexec without "
            f"--useCudaGraph, are longer by about {changes} a run in {mode.name}: --launch kernels"
        )
    return (
        "GPU times are of kernels that a CPU starts one by one, as trtexec does without --useCudaGraph. edgert runs "
        f"CUDA graphs, which saves about {changes} a run in {mode.name}"
    )


def about_bars(made: Sequence[BoardPlan], boards: Sequence[Board], planned: Sequence[PlannedModel]) -> Iterator[str]:
    """Yield which error bars are not known well enough, as too little was published for a chip, or by one publisher."""
    found: dict[str, list[str]] = {}
    for board, plan in zip(boards, made, strict=True):
        accuracy = coefficients(board.soc).accuracy
        for row in plan.rows:
            for model, subject in zip(row.models, planned, strict=True):
                for name in {one.rstrip("01") for engine in model.engines for one in engine.accelerators}:
                    precision = executed_precision(board, subject.precision) if name == GPU else subject.precision
                    known = accuracy.get(name, {}).get(precision)
                    if known is not None and not known.is_known and not model.measured:
                        who = f" by {counted(known.publishers, 'publisher')}" if known.rows else ""
                        text = f"{name.upper()} in {precision.upper()}: {counted(known.rows, 'published time')}{who}"
                        found.setdefault(text, [])
                        if board.soc not in found[text]:
                            found[text].append(board.soc)
    for text, chips in found.items():
        yield f"error bar not known well enough: {text} of {' and '.join(chips)}"
