"""Notes of a plan about how kernels are started, and about uncertain error bars."""

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


def parse_launch(name: str) -> Launch:
    """Return the way to start kernels with this name; raise ConfigError if there is none."""
    if name not in LAUNCHES:
        raise ConfigError(
            f"no way to start kernels named {name!r}{nearest(name, LAUNCHES)}",
            why="engines run as a CUDA graph, or a CPU starts every kernel",
            fix="give --launch graph or --launch kernels",
        )
    return name


def launch_note(planned: Sequence[PlannedModel], board: Board, launch: Launch) -> str:
    """Return a note on how kernels are started, and on how much the other way differs in the fastest mode."""
    mode, costs = board.peak_mode, coefficients(board.soc)
    extra_us = (1 - recorded_share(mode, "kernels")) * costs.gpu.enqueue_us
    kernels = {subject.demand.model: sum(work.launches for work in units(subject.graph)) for subject in planned}
    changes = ", ".join(f"{name} {significant(1e-3 * extra_us * count, 2)} ms" for name, count in kernels.items())
    if launch == "graph":
        return (
            "GPU times are for CUDA graphs, as edgert runs engines. Most published times, and trtexec without "
            f"--useCudaGraph, are longer by about {changes} a run in {mode.name}: --launch kernels"
        )
    return (
        "GPU times are for kernels that a CPU starts one by one, as trtexec does without --useCudaGraph. edgert runs "
        f"CUDA graphs, which saves about {changes} a run in {mode.name}"
    )


def error_bar_notes(
    plans: Sequence[BoardPlan], boards: Sequence[Board], planned: Sequence[PlannedModel]
) -> Iterator[str]:
    """Yield a note for each error bar that rests on too few published times, or on those of one publisher."""
    found: dict[str, list[str]] = {}
    for board, plan in zip(boards, plans, strict=True):
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
