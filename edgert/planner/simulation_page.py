"""Simulation as one HTML file: verdict, one second in detail, figures over time, and counts of each stage."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from edgert.budget.loop import GovernorReport
from edgert.planner.plan_text import error_text
from edgert.planner.simulation import Simulation
from edgert.report import page
from edgert.report.chart import HUES, LINES, Series, Steps, Track, series_chart, timeline_chart
from edgert.report.numbers import counted, fixed, milliseconds, significant
from edgert.report.page import Badge, Cell, Chart, Column, Figure, Part, Table
from edgert.simulator import Moment
from edgert.simulator.spans import SHARED, Lane, Second, lanes

_SPACE = "\N{NO-BREAK SPACE}"
_SAME = 0.005  # rates that differ by less print the same


def simulation_headline(simulation: Simulation) -> str:
    """Return a sentence with the board, and with rate, latency and power and their error bars."""
    played = simulation.played
    mode = f" in {simulation.mode}" if simulation.mode else ""
    watts = f" at {fixed(played.power_w, 1)}{_SPACE}W {error_text(simulation.power_error)}" if played.power_w else ""
    least = _least_fps(simulation)
    perhaps = f" (perhaps {significant(least)})" if least is not None else ""
    return (
        f"{simulation.title}{mode}, simulated for {significant(played.seconds)}{_SPACE}s: {significant(played.fps)} "
        f"frames a second{perhaps}{watts}, p99 {milliseconds(played.latency_ms.p99)} {error_text(simulation.error)}."
    )


def _least_fps(simulation: Simulation) -> float | None:
    """Return the rate if times are at the upper end of their error bar; None if that does not lower it."""
    if simulation.error is None or simulation.most_fps is None:
        return None
    least = simulation.most_fps / (1 + simulation.error)
    return least if least < simulation.played.fps * (1 - _SAME) else None


def verdict_text(simulation: Simulation) -> str:
    """Return whether rate, memory and every budget are kept, as text; for this machine only latency is checked.

    The text is empty where nothing was checked.
    """
    doubts = "; ".join(check.words for check in simulation.checks if check.verdict != "kept")
    return simulation.words or doubts or ("budgets kept" if simulation.checks else "")


def render(simulation: Simulation) -> str:
    """Return the simulation as an HTML document; equal simulations give equal text."""
    played = simulation.played
    charts = list(_charts(simulation)) if played.moments else []
    moving = [chart for chart, steady in charts if not steady]
    shown = {
        "second": _second(played.second) if played.second is not None and played.second.spans else None,
        "moving": Part(absent="" if charts else "The sources ended before a second was over.", charts=moving),
        "steady": Part(charts=[chart for chart, steady in charts if steady]),
        "summary": "; ".join(f"{chart.caption.lower()} {steady}" for chart, steady in charts if steady),
        "stages": _stages(simulation),
        "governor": None if played.governed is None else _governor(played.governed),
        "notes": simulation.notes,
    }
    return page.render("simulation.html.j2", _head(simulation), shown)


def _head(simulation: Simulation) -> page.Head:
    badges = [Badge("simulated", "open")]
    if budgets := verdict_text(simulation):
        mark, kind = page.VERDICTS[simulation.verdict]
        badges.append(Badge(f"{mark} {budgets}", kind))
    return page.Head(
        f"{simulation.pipeline}: simulated",
        f"Simulation · {simulation.basis}",
        simulation.pipeline,
        simulation_headline(simulation),
        badges,
        figures=tuple(_figures(simulation)),
    )


def _figures(simulation: Simulation) -> Iterator[Figure]:
    played = simulation.played
    lost = counted(played.dropped, "result")
    most = "" if simulation.most_fps is None else f"; at most {significant(simulation.most_fps)}"
    least = _least_fps(simulation)
    perhaps = f"; perhaps {significant(least)}, at the far end of its error bar" if least is not None else ""
    out = f"{played.frames_out} of {played.frames_in}; {lost} dropped{most}{_error_suffix(simulation.error)}{perhaps}"
    yield Figure("Frames per second", significant(played.fps), out)
    latency = played.latency_ms
    p50 = f"p50 {significant(latency.p50)} ms, capture to last stage{_error_suffix(simulation.error)}"
    yield Figure("Latency p99", f"{significant(latency.p99)} ms", p50)
    if played.power_w is not None and played.energy_j_per_frame is not None:
        joules = f"{significant(played.energy_j_per_frame)} J a frame{_error_suffix(simulation.power_error)}"
        yield Figure("Power", f"{fixed(played.power_w, 1)} W", joules)
    if played.temperature_c is not None:
        throttled = f"{significant(played.throttled_s)} s throttled"
        yield Figure("Hottest", f"{fixed(played.temperature_c, 0)} °C", throttled)


def _error_suffix(error: float | None) -> str:
    return "; error unknown" if error is None else f"; ±{_SPACE}{error:.0%}"


_STEADY = 0.02
"""Largest change of a flat line, as a share of its largest value."""


def _charts(simulation: Simulation) -> Iterator[tuple[Chart, str]]:
    """Yield charts over time, each with its lines' values as text if all lines are nearly flat; else an empty text."""
    moments, budgets = simulation.played.moments, simulation.budgets
    yield _chart("Frames per second", moments, [("fps", lambda one: one.fps)], significant)
    latency: list[tuple[str, _Value]] = [("p99", lambda one: one.p99_ms), ("p50", lambda one: one.p50_ms)]
    yield _chart("Latency from capture to sink", moments, latency, _in("ms"), budgets.latency_ms)
    if any(one.dropped for one in moments):
        yield _chart("Results dropped, each second", moments, [("dropped", lambda one: one.dropped)], significant)
    if moments[0].power_w is not None:
        yield _chart("Power", moments, [("power", lambda one: one.power_w)], _in("W"), budgets.power_w)
        yield _chart("Energy of a frame", moments, [("energy", lambda one: one.energy_j_per_frame)], _in("J"))
        yield _chart("Temperature", moments, [("temperature", lambda one: one.temperature_c)], _in("°C"))
    names = sorted({name for one in moments for name in one.busy})[:LINES]
    title = f"Busy: {names[0]}" if len(names) == 1 else "Busy"
    yield _chart(title, moments, [(name, _busy_of(name)) for name in names], lambda value: f"{100 * value:.3g} %")


_Value = Callable[[Moment], float | None]


def _busy_of(name: str) -> _Value:
    return lambda one: one.busy.get(name, 0.0)


def _in(unit: str) -> Callable[[float], str]:
    return lambda value: f"{significant(value)} {unit}"


def _chart(
    title: str,
    moments: Sequence[Moment],
    lines: Iterable[tuple[str, _Value]],
    show: Callable[[float], str],
    limit: float | None = None,
) -> tuple[Chart, str]:
    series = [Series(label, [value(one) for one in moments]) for label, value in lines]
    drawn = series_chart([one.at_s for one in moments], series, title=title, show=show, limit=limit)
    known = [[value for value in one.values if value is not None] for one in series]
    is_flat = all(values and max(values) - min(values) <= _STEADY * abs(max(values)) for values in known)
    steady = ", ".join(show(values[-1]) for values in known) if is_flat else ""
    keys = [(one.label, f"line{number}") for number, one in enumerate(series)] if len(series) > 1 else []
    return Chart(drawn, title, keys), steady


def _stages(simulation: Simulation) -> Table:
    stages = simulation.played.stages
    columns = [Column("Stage", list(stages), "wrap")]
    for head, name in (("In", "results_in"), ("Out", "results_out"), ("Dropped", "dropped")):
        counts = [getattr(one, name) for one in stages.values()]
        columns.append(Column(head, [Cell(f"{count:,}", count) for count in counts], "number"))
    return Table("Stage by stage", columns)


_QUEUES = 16  # maximum number of queues drawn


def _second(second: Second) -> Part:
    """Return a chart of accelerators, cores and queues, and a table of each stage's times."""
    found = lanes(second)
    stages = list(dict.fromkeys(span.stage for lane in found for span in lane.spans))
    hues = {stage: min(place, HUES - 1) for place, stage in enumerate(stages)}
    tracks = [track_of(lane, hues) for lane in found]
    waited = sorted((one for one in second.queues if one.most), key=lambda one: -one.most)[:_QUEUES]
    steps = []
    for queue in (one for one in second.queues if one in waited):
        label = f"{queue.producer} → {queue.consumer}"
        title = f"{label}: up to {queue.most} of {queue.capacity}"
        steps.append(Steps(f"{label}: {queue.most} of {queue.capacity}", queue.changes, float(queue.most), title))
    shown = f"{fixed(second.start_ms / 1e3, 2)} to {fixed(second.end_ms / 1e3, 2)}{_SPACE}s"
    late = "" if second.p99_ms is None else f", the second with the longest p99, {milliseconds(second.p99_ms)}"
    cut = "; only its beginning, as more happened than is kept" if second.is_cut else ""
    empty = len(second.queues) - len(steps)
    others = f" {counted(empty, 'other queue')} held less, or nothing." if steps and empty else ""
    queues = "Below: results that waited in a queue, at most so many." if steps else "No queue held anything."
    cores = f" Cores that worked, of {len(second.cores)}." if second.cores else ""
    if any(lane.name == SHARED for lane in found):
        cores += " Shared: while more threads work than there are cores."
    drawn = timeline_chart(
        (second.start_ms, second.end_ms),
        tracks,
        steps,
        title="Accelerators, processor cores and queues over time",
        show=lambda value: f"{value / 1e3:g} s",
    )
    caption = f"What ran where from {shown}{late}{cut}."
    remark = f"{cores} {queues}{others}".strip()
    keys = tuple((stage, f"hue{hue}") for stage, hue in hues.items())
    return Part(charts=(Chart(drawn, caption, keys, remark=remark),), tables=(_times_table(found),))


def track_of(lane: Lane, hues: Mapping[str, int]) -> Track:
    """Return a lane in the colors of its stages; the last color is shared by all further stages."""
    spans: dict[int, list[tuple[float, float]]] = {}
    words: dict[int, list[str]] = {}
    for stage in dict.fromkeys(span.stage for span in lane.spans):
        own = [(span.start_ms, span.end_ms) for span in lane.spans if span.stage == stage]
        took = [end - start for start, end in own]
        spans.setdefault(hues[stage], []).extend(own)
        words.setdefault(hues[stage], []).append(
            f"{stage} on {lane.name}: {counted(len(own), 'time')}, {milliseconds(sum(took))} in all, "
            f"{milliseconds(max(took))} at most"
        )
    return Track(lane.name, spans, {hue: "\n".join(lines) for hue, lines in words.items()})


def _times_table(found: Sequence[Lane]) -> Table:
    rows: dict[tuple[str, str], dict[tuple[float, float], float]] = {}
    for lane in found:
        for span in lane.spans:
            times = rows.setdefault((span.stage, span.where), {})
            times[span.start_ms, span.end_ms] = span.end_ms - span.start_ms
    rows = dict(sorted(rows.items(), key=lambda one: -sum(one[1].values())))
    took = [list(times.values()) for times in rows.values()]
    totals = [sum(times) for times in took]
    means = [total / len(times) for total, times in zip(totals, took, strict=True)]
    return Table(
        "What each stage took",
        [
            Column("Stage", [stage for stage, _ in rows], "wrap"),
            Column("On", [where for _, where in rows], "minor"),
            Column("Times", [Cell(f"{len(times):,}", len(times)) for times in took], "number"),
            Column("ms each", [Cell(significant(mean), mean) for mean in means], "number"),
            Column("longest", [Cell(significant(max(times)), max(times)) for times in took], "number"),
            Column("in all", [Cell(significant(total), total) for total in totals], "number"),
        ],
        sortable=True,
    )


def _governor(governed: GovernorReport) -> Part:
    if not governed.events:
        return Part(f"Nothing: {governed.setting} kept the budgets all the time.")
    events = governed.events
    table = Table(
        "What the governor did",
        [
            Column("At", [Cell(f"{one.at_s:.1f} s", one.at_s) for one in events], "number"),
            Column("What", [one.kind for one in events]),
            Column("Then", [one.setting for one in events]),
            Column("Why", [one.reason for one in events], "prose"),
        ],
    )
    return Part(tables=(table,))
