"""Planning of a pipeline: every board, power mode and placement as a row, and the row to take."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

from dla import MAX_LOADABLES, USUAL_RELEASE
from edgert.board import HOST, THIS_MACHINE
from edgert.board.record import Board, boards, find_board
from edgert.board.sections import Mode
from edgert.bundle.measured_engines import MeasuredEngine, read_measured
from edgert.bundle.shared_profile import SharedProfile, is_shared_profile, read_shared_profile, shipped_profiles
from edgert.config import PipelineConfig, PipelineFile, PipelineSource, load_pipeline
from edgert.config.flow import sources_of, tracker_thresholds
from edgert.config.stages import InferStage
from edgert.errors import ConfigError, EdgertError, PlacementError
from edgert.graph import load
from edgert.placement.constraints import Limits, Placement
from edgert.placement.cost.board_network import network, per_frame
from edgert.placement.cost.coefficients import Coefficients, coefficients
from edgert.placement.cost.formulas import Launch, executed_precision
from edgert.placement.cost.power import about_watts, power, power_error, wall_w
from edgert.placement.cost.work import CONV, PRODUCT, Work, units
from edgert.placement.dla_share import Survey
from edgert.placement.plan_record import BoardPlan, ModelRow, Objective, Plan, Row
from edgert.placement.problem import Network
from edgert.placement.profile import read_profile
from edgert.placement.solver import solve
from edgert.planner import measured_times, plan_rows
from edgert.planner.launches import error_bar_notes, launch_note, parse_launch
from edgert.planner.plan_rows import Choice, RowMaker, distinct_placements, is_dla, limit_accelerators
from edgert.planner.plan_text import check_mode, check_objective, release_notes
from edgert.planner.planned_model import PlannedModel, planned_models, restrict_to_section
from edgert.planner.selection import Machine, judge_rows
from edgert.reporter import Bar, OnProgress, counting
from edgert.simulator.board_platform import contention_of, platform_of, rows_of
from edgert.simulator.board_stages import board_stages
from edgert.simulator.design import check_demands, counterpart, demands, levels_of, with_fallbacks
from edgert.stages.source.delivered import as_delivered

ALL = "all"
_SOLVE_S = 0.5  # time limit of the search for one placement; the best one by then is taken

MODELS_ALONE = "models alone: decoding, drawing, encoding and your own stages take no time in a plan of this machine"

OnBoard = Callable[[BoardPlan, int], object]
"""Function called with each board's plan as soon as it is ready, and with the number of boards."""


def plan(
    pipeline: PipelineSource,
    *,
    board: str | None = None,
    mode: str = ALL,
    objective: Objective = "energy",
    tensorrt: str | None = None,
    profiles: Sequence[str | Path] = (),
    overrides: Iterable[str] = (),
    launch: str = "graph",
    on_progress: OnProgress | None = None,
) -> Plan:
    """Predict how a pipeline performs on a board, without running anything.

    A plan takes seconds for one board, and a minute for all.

    Args:
        pipeline: path, or any other value that :func:`edgert.load_pipeline` takes or returns.
        board: name of a board, path of a board file, or ``all``; by default the board of the pipeline file.
        mode: name of a power mode, or ``all``.
        objective: what each placement is optimized for, and what chooses among rows that keep every budget.
        tensorrt: TensorRT release that will build engines for the DLA; by default that of the board's usual JetPack.
        profiles: for ``board="host"`` paths of profiles, one for each model, measured on this machine. For a board,
            bundles that were finished there, or shared profiles (``edgert bench BUNDLE --share FILE``). Their times
            replace predictions, or correct those of other modes and of other boards with the same chip. Profiles in
            ``configs/costs`` are always used.
        overrides: ``key.path=value``, as given to ``--set``.
        launch: ``"graph"`` if engines on a GPU run as CUDA graphs, as edgert runs them; ``"kernels"`` if a CPU starts
            every kernel, as in most published times.
        on_progress: function called before each power mode; an exception from it ends the plan.

    Raises:
        ConfigError: the board, mode, objective or TensorRT release is unknown, there is nothing to plan, or a profile
            is for another model, precision or chip.
        ModelError: a model cannot be read, or its input size is unknown.
        PlacementError: a rule forbids what ``placement:`` requests on the only board of the plan.
    """
    file, how = load_pipeline(pipeline, overrides), (board, mode, objective, tensorrt, profiles, launch)
    return plan_boards(file, *how, on_progress=on_progress)


def plan_boards(
    file: PipelineFile,
    board: str | None = None,
    mode: str = ALL,
    objective: Objective = "energy",
    tensorrt: str | None = None,
    profiles: Sequence[str | Path] = (),
    launch: str = "graph",
    *,
    on_progress: OnProgress | None = None,
    on_board: OnBoard | None = None,
    look: bool = True,
) -> Plan:
    """Return the plan of a pipeline file; the first arguments are those of :func:`plan`.

    ``on_board`` is called after each board, in order of size. With ``look`` files and cameras of this machine are
    opened for sizes and rates that the pipeline file leaves out; otherwise these are assumed.
    """
    seen, count = tuple[str, ...](), counting(on_progress) or (lambda *_: None)
    if look:
        file, seen = as_delivered(file)
    check_objective(objective)
    start = parse_launch(launch)
    board_name = board or file.config.board
    if board_name in THIS_MACHINE and profiles:
        found = plan_rows.plan_host(file, [read_profile(Path(path)) for path in profiles], objective)
        notes = dict.fromkeys(
            [MODELS_ALONE, *seen, *(note for demand in demands(file.config) for note in demand.notes)]
        )
        smallest = found.board if found.verdict == "kept" else None
        return Plan(file.config.name, objective, (found,), smallest, tuple(notes))
    targets = tuple(sorted(_target_boards(board_name, file), key=_size_key))
    if mode != ALL:
        check_mode(targets, mode)
    about_trt = release_notes(targets, tensorrt)
    check_demands(file)
    levels = [(one, planned_models(one)) for one in levels_of(file)]
    planned = levels[0][1]
    measured = _measured_engines([subject for _, subjects in levels for subject in subjects], profiles, targets)
    plans, shared, at_mode = list[BoardPlan](), shared_of(profiles), 0
    total = sum(len(one.modes) for one in targets)
    for number, one in enumerate(targets):
        title = one.title if len(targets) == 1 else f"{one.title}, board {number + 1} of {len(targets)}"
        step = partial(_report_step, count, title, at_mode, total)
        planners = [
            _BoardPlanner(at, subjects, one, objective, tensorrt, start, measured, shared) for at, subjects in levels
        ]
        planner = replace(planners[0], fallbacks=tuple(planners[1:]))
        plans.append(planner.plan(mode, strict=len(targets) == 1, step=step))
        at_mode += len(one.modes)
        if on_board is not None:
            on_board(plans[-1], len(targets))
    fitting = [board.board for board in plans if board.verdict == "kept"]
    smallest = fitting[0] if fitting else None
    rates = (note for subject in planned for note in subject.demand.notes)
    notes = dict.fromkeys(
        [
            *_unsupported_notes(targets, fitting),
            *(f"{name}: {text}" for name, text in tracker_thresholds(file.config.stages, file.config.models).items()),
            *board_stages(file, targets[-1], targets[-1].peak_mode, profiles=shared).notes,
            *about_watts(tuple(targets)),
            *seen,
            *rates,
            *_sparse_notes(planned),
            *filter(None, (subject.about_bounds for subject in planned)),
            *_correction_notes(plans),
            *error_bar_notes(plans, targets, planned),
            launch_note(planned, targets[-1], start),
            *about_trt,
            plan_rows.NOT_PLANNED,
        ]
    )
    return Plan(file.config.name, objective, tuple(plans), smallest, tuple(notes))


def _report_step(count: Bar, title: str, before: int, total: int, done: int) -> None:
    count(title, before + done, total)


def _sparse_notes(planned: Sequence[PlannedModel]) -> Iterator[str]:
    """Yield a note for each model with ``tensorrt: sparse`` on the number of products that it speeds up."""
    for subject in planned:
        if subject.config.tensorrt.sparse:
            products = [work for work in units(subject.graph, sparse=True) if work.kind in (CONV, PRODUCT)]
            count, model = sum(work.is_sparse for work in products), subject.demand.model
            saved = (
                "the saving is estimated from the peaks of GPUs, and for Orin's DLA from what NVIDIA measured"
                if count
                else "so tensorrt: sparse saves nothing; it needs weights that were trained for it"
            )
            yield f"{model}: {count} of {len(products)} products have two zeros in every four input channels; {saved}"


def _size_key(board: Board) -> tuple[float, float, str]:
    """Return a sort key: memory, then speed; boards with unknown clocks come last within their memory size."""
    return board.memory.bytes, board.gpu_tops(board.peak_mode, "fp16") or math.inf, board.name


def _unsupported_notes(targets: Sequence[Board], fitting: Sequence[str]) -> Iterator[str]:
    """Yield a note on boards where edgert does not run; ``fitting`` names boards that keep the budgets, by size."""
    found = {one.name: one.without_edgert for one in targets if one.without_edgert}
    if not found:
        return
    many = f"edgert itself does not run on {', '.join(found)} (edgert boards NAME has the reason)"
    runs = next((name for name in fitting if name not in found), "")
    smallest = f"; the smallest that it runs on is {runs}" if runs and fitting[0] in found else ""
    way = "edgert export --format onnx writes the models for the TensorRT there"
    yield f"{many if len(found) > 1 else ''.join(found.values())}; {way}{smallest}"


def _measured_engines(
    planned: Sequence[PlannedModel], profiles: Sequence[str | Path], targets: Sequence[Board]
) -> tuple[tuple[MeasuredEngine, ...], ...]:
    """Return the measured engines of the profiles, and those of ``configs/costs``.

    Raises:
        ConfigError: a profile is for another model or chip.
        ArtifactError: a profile is missing, or has impossible figures.
    """
    found: list[MeasuredEngine] = []
    for path in map(Path, profiles):
        if is_shared_profile(path):
            engines = measured_times.engines_of_profile(read_shared_profile(path), planned, str(path))
        else:
            engines = read_measured(path)
            for subject in planned:
                for engine in engines:
                    if engine.model == subject.demand.model:
                        engine.check(load(subject.config.onnx).digest, subject.where)
        measured_times.refuse_useless(engines, planned, targets, str(path))
        found += engines
    sent = [
        engine
        for profile in shipped_profiles()
        for engine in measured_times.engines_of_profile(profile, planned, "configs/costs")
    ]
    return tuple(found), tuple(sent)


def shared_of(profiles: Sequence[str | Path]) -> tuple[SharedProfile, ...]:
    """Return the shared profiles among these files, then those in ``configs/costs``.

    Raises:
        ArtifactError: a profile cannot be read.
    """
    paths = map(Path, profiles)
    return (*(read_shared_profile(path) for path in paths if is_shared_profile(path)), *shipped_profiles())


def _correction_notes(plans: Sequence[BoardPlan]) -> Iterator[str]:
    found: dict[str, list[str]] = {}
    for plan in plans:
        texts = (f"{model.name}: {model.measured}" for row in plan.rows for model in row.models if model.measured)
        for text in dict.fromkeys(texts):
            found.setdefault(text, []).append(plan.board)
    yield from (f"{text} (on {', '.join(boards)})" for text, boards in found.items())


def _target_boards(name: str, file: PipelineFile) -> tuple[Board, ...]:
    if name == ALL:
        return boards()
    if name == HOST:
        raise ConfigError(
            "there are no measured times of this machine",
            why="a plan for board: host needs measured times of each model, and there is no --profile",
            where=file.where("board"),
            fix="edgert bench --units MODEL.onnx -o profile.json, then --board host --profile profile.json",
        )
    if name == "auto":
        raise ConfigError(
            "cannot plan without a board",
            why="the pipeline has board: auto, which means the machine where it runs",
            where=file.where("board"),
            fix="give --board NAME, or --board all (edgert boards lists them); for this machine give --board host "
            "--profile FILE, measured by edgert bench --units",
        )
    return (find_board(name, file.document.path.parent),)


@dataclass(frozen=True, eq=False)
class _BoardPlanner:
    """Planner of a pipeline on one board; ``fallbacks`` plan it with more and more of its fallback models."""

    file: PipelineFile
    subjects: Sequence[PlannedModel]
    board: Board
    objective: Objective
    tensorrt: str | None
    launch: Launch
    measured: tuple[tuple[MeasuredEngine, ...], ...] = ()
    shared: tuple[SharedProfile, ...] = ()
    fallbacks: tuple[_BoardPlanner, ...] = ()

    def plan(self, mode: str, *, strict: bool, step: Callable[[int], object]) -> BoardPlan:
        """Return the board's plan.

        Args:
            mode: name of a power mode, or ``all``.
            strict: whether to raise the error of a board without rows; otherwise the plan notes it.
            step: function called before each power mode with the number of finished modes.
        """
        modes, rows, errors = self.board.modes, list[Row](), dict[str, EdgertError]()
        if mode != ALL and not strict and not self.board.has_mode(mode):  # not every one of several boards needs it
            why = f"it has {', '.join(one.name for one in self.board.modes)}"
            modes, errors[mode] = (), ConfigError("no such power mode", why=why)
        elif mode != ALL:
            modes = (self.board.mode(mode),)
        for number, one in enumerate(modes):
            step(number)
            try:
                levels = [list(planner._rows(one)) for planner in (self, *self.fallbacks)]
                for row in levels[0] if all(levels) else ():
                    others = [counterpart(row, other) for other in levels[1:]]
                    rows.append(with_fallbacks(self.file, row, others))
            except (PlacementError, ConfigError) as error:
                errors[one.name] = error
        if strict and not rows:
            raise next(iter(errors.values()))
        skipped = tuple(
            f"{name}: {error.what}" + (f" ({error.why})" if error.why else "") for name, error in errors.items()
        )
        machine = Machine(self.board.name, self.board.title, self.board.memory.most_bytes)
        return judge_rows(machine, rows, self.file.config.budgets, self.objective, skipped)

    def _rows(self, mode: Mode) -> Iterator[Row]:
        """Yield a mode's rows; raise PlacementError if the file puts a node on a DLA that the board lacks."""
        for subject in self.subjects:
            if not self.board.dla.cores and subject.wants_dla:
                having = ", ".join(one.name for one in boards() if one.dla.cores)
                raise PlacementError(
                    f"{self.board.title} has no DLA",
                    why=f"placement of model {subject.demand.model!r} asks for one",
                    where=f"{subject.where}.placement",
                    fix=f"placement: auto, or a board that has one: {having}",
                )
        if mode.unknown:
            raise ConfigError(
                "the clocks of this power mode are unknown", why=f"not published: {', '.join(mode.unknown)}"
            )
        planner = _ModePlanner(self, mode)
        for choice, placement in distinct_placements(planner.choices(), planner.solve):
            yield planner.row(choice, placement)

    @cached_property
    def costs(self) -> Coefficients:
        return coefficients(self.board.soc)

    @cached_property
    def surveys(self) -> tuple[Survey | None, ...]:
        """Survey of every model for the board's DLA; None where there is none."""
        generation = self.board.dla.generation
        if not self.board.dla.cores or generation is None or self.costs.dla is None:
            return (None,) * len(self.subjects)
        release = self.tensorrt or USUAL_RELEASE[generation]
        return tuple(subject.survey(generation, release) for subject in self.subjects)

    @cached_property
    def works(self) -> tuple[Sequence[Work], ...]:
        """Fused units of every model, which are the same in all power modes."""
        pairs = zip(self.subjects, self.surveys, strict=True)
        return tuple(
            units(subject.graph, _allowed_nodes(found), sparse=subject.config.tensorrt.sparse)
            for subject, found in pairs
        )


class _ModePlanner:
    def __init__(self, planner: _BoardPlanner, mode: Mode) -> None:
        self._planner, self._mode = planner, mode
        board, costs = planner.board, planner.costs
        self._contention = contention_of(board, mode, costs)
        self._limits = Limits(
            static_w=power(board, mode).static_w,
            traffic_bytes_s=self._contention.total_bytes_s,
            loadables={f"dla{core}": MAX_LOADABLES for core in range(mode.dla_cores)},
        )
        self.measured: dict[str, measured_times.Correction] = {}
        self._networks = tuple(map(self._network, planner.subjects, planner.surveys))

    def _network(self, subject: PlannedModel, found: Survey | None) -> Network:
        planner = self._planner
        frames = frames_of(planner.file.config, subject.demand.model)
        found_network = per_frame(self._predicted(subject, planner.board, self._mode, frames), frames)
        if known := measured_times.nearest_measurements(subject, planner.board, self._mode, *planner.measured):
            there = partial(self._there, subject)
            found_network = measured_times.scale_units(found_network, known.engines, there, known.weight)
            self.measured[subject.demand.model] = measured_times.correction(known, there)
        return restrict_to_section(found_network, subject.config, subject.where, found)

    def _there(self, subject: PlannedModel, engine: MeasuredEngine) -> Network:
        """Return the predicted network of a model for the place where an engine of it was measured."""
        at, mode = measured_times.measured_place(engine, [self._planner.board])
        return self._predicted(subject, at, mode, engine.frames)

    def _predicted(self, subject: PlannedModel, board: Board, mode: Mode, frames: int) -> Network:
        place = self._planner.subjects.index(subject)
        return network(
            subject.demand.model,
            subject.graph,
            board,
            mode,
            self._planner.costs,
            precision=subject.precision,
            allowed=_allowed_nodes(self._planner.surveys[place]),
            batch=frames,
            rate_hz=subject.demand.rate_hz,
            works=self._planner.works[place],
            launch=self._planner.launch,
        )

    def choices(self) -> list[Choice]:
        """Return the choices to compare."""
        mixed = ("mixed", self._networks)
        if all(network.shares for network in self._networks):
            return [mixed]  # the file has chosen
        gpu = ("gpu", tuple(limit_accelerators(network, lambda name: not is_dla(name)) for network in self._networks))
        if not any(is_dla(name) for network in self._networks for unit in network.units for name in unit.costs):
            return [gpu]
        return [gpu, ("dla", tuple(limit_accelerators(network, is_dla) for network in self._networks)), mixed]

    def solve(self, choice: Choice) -> Placement:
        """Return the best placement by the objective, or the fastest where none reaches the requested rates."""
        networks = choice[1]
        objective = self._planner.objective
        best = partial(solve, networks, limits=self._limits, contention=self._contention, time_limit_s=_SOLVE_S)
        most = best("throughput")
        if objective == "throughput" or most.value < 1:
            return most
        try:
            return best(objective)
        except PlacementError:  # one engine for each model is not enough
            return most

    def row(self, choice: Choice, placement: Placement) -> Row:
        """Return the row of a placement with its numbers."""
        planner = self._planner
        maker = RowMaker(
            planner.file,
            planner.board.name,
            self._mode.name,
            planner.board.memory.most_bytes,
            plan_rows.board_parts,
            tuple(subject.macs for subject in planner.subjects),
            board_stages(planner.file, planner.board, self._mode, profiles=planner.shared),
        )
        platform = platform_of(planner.board, self._mode, planner.costs)
        row = maker.row(choice, placement, platform, self._error)
        words = {name: one.words for name, one in self.measured.items()}
        models = tuple(replace(one, measured=words.get(one.name, "")) for one in row.models)
        wall = None if row.power_w is None else wall_w(planner.board, row.power_w)
        row = replace(row, models=models, wall_w=wall, estimated=self._mode.estimated)
        if {"sms", "gpu_mhz", "emc_mhz"} & set(self._mode.estimated):  # the error of estimated clocks is unknown
            return replace(row, error=None, power_error=None)
        return replace(row, power_error=power_error(planner.board, self._mode, row.power_w))

    def _error(self, models: Sequence[ModelRow]) -> float | None:
        found: list[float | None] = []
        for model, subject in zip(models, self._planner.subjects, strict=True):
            for name in sorted({name for engine in model.engines for name in engine.accelerators}):
                precision = (
                    subject.precision if is_dla(name) else executed_precision(self._planner.board, subject.precision)
                )
                bar = self._planner.costs.bar(name, precision)
                known = self.measured.get(subject.demand.model)
                if known is not None and name.rstrip("01") in known.kinds:
                    bar = known.measured.bar(bar, self._planner.board.soc, name, precision)
                found.append(bar)
        return None if None in found else max(filter(None, found), default=0.0)


def frames_of(config: PipelineConfig, model: str) -> int:
    """Return the number of frames, crops or tiles that share a run of a model.

    A batch takes one frame of each stream, or all crops or tiles, up to the rows of the model. Of several stages that
    use the model, the one with the fewest counts.
    """
    streams, found = sources_of(config.stages), []
    for name, stage in config.stages.items():
        if isinstance(stage, InferStage) and stage.infer == model:
            rows = rows_of(config.models[model], stage)
            most = min(stage.batch.max, len(streams[name])) if stage.batch is not None else 1
            found.append(rows if stage.parts is not None else min(rows, most))
    return max(1, min(found, default=1))


def _allowed_nodes(found: Survey | None) -> Collection[str]:
    return found.allowed if found else ()
