"""Planning a pipeline: every board, power mode and placement as a row, and the row to take."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

from dla import MAX_LOADABLES, USUAL_RELEASE
from edgert.board import HOST
from edgert.board.record import Board, boards, find_board
from edgert.board.sections import Mode
from edgert.bundle.measured_engines import MeasuredEngine, read_measured
from edgert.bundle.shared_profile import SharedProfile, is_shared, read_shared, shipped
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
from edgert.planner import measured_times
from edgert.planner.launches import about_bars, about_launches, launch_named
from edgert.planner.plan_rows import NOT_PLANNED, Choice, RowMaker, board_parts, distinct, is_dla, limited, plan_host
from edgert.planner.plan_text import check_mode, check_objective, releases
from edgert.planner.planned_model import PlannedModel, bound_to, planned_models
from edgert.planner.selection import Machine, judged
from edgert.reporter import Bar, OnProgress, counting
from edgert.simulator.board_platform import contention_of, platform_of, rows_of
from edgert.simulator.board_stages import board_stages
from edgert.simulator.design import check_demands, counterpart, demands, levels_of, with_fallbacks
from edgert.stages.source.delivered import as_delivered

ALL = "all"
_SOLVE_S = 0.5  # for one placement that has to be searched for; the best by then is taken

MODELS_ALONE = "models alone: decoding, drawing, encoding and your own stages take no time in a plan of this machine"

OnBoard = Callable[[BoardPlan, int], object]
"""Called with the rows of a board as soon as they are known, and how many boards there are."""


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
    """Predict what a pipeline does on a board, without running anything.

    It takes seconds for one board, a minute for all.

    Args:
        pipeline: as :func:`edgert.load_pipeline` takes it, or what that returned.
        board: name or file, or ``all``; the pipeline's own by default.
        mode: a power mode's name, or ``all``.
        objective: each placement is optimized for it, and it chooses among those that keep every budget.
        tensorrt: the release that will build engines for the DLA; by default that of the board's usual JetPack.
        profiles: measured on the machine that is planned for, one of each model; needed for ``board="host"``, whose
            speed no model predicts. For a board: bundles that were finished there, or the shared profile of one
            (``edgert bench BUNDLE --share FILE``). Their engines' times are taken. On other boards of the same chip,
            and in other modes, predictions are corrected by them. Those in ``configs/costs`` are always used.
        overrides: ``key.path=value``, as given to ``--set``.
        launch: ``"graph"``: engines on a GPU run as CUDA graphs, as edgert runs them; ``"kernels"``: a CPU starts every
            kernel, as in most published times.
        on_progress: called before each power mode; what it raises ends the plan.

    Raises:
        ConfigError: no such board, mode, objective or release of TensorRT, nothing to plan for, or a profile of another
            model, precision or chip.
        ModelError: a model cannot be read, or its size is open.
        PlacementError: ``placement:`` asks for what a rule forbids on the only board of the plan.
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
    """Predict as :func:`plan` does, whose arguments come first.

    ``on_board`` is called after each board, in order of their size. Without ``look`` no file or camera of this machine
    is opened where the pipeline leaves size or rate out; both are assumed.
    """
    seen, count = tuple[str, ...](), counting(on_progress) or (lambda *_: None)
    if look:
        file, seen = as_delivered(file)
    check_objective(objective)
    start = launch_named(launch)
    board_name = board or file.config.board
    if board_name in (HOST, "auto") and profiles:
        found = plan_host(file, [read_profile(Path(path)) for path in profiles], objective)
        notes = dict.fromkeys(
            [MODELS_ALONE, *seen, *(note for demand in demands(file.config) for note in demand.notes)]
        )
        smallest = found.board if found.verdict == "kept" else None
        return Plan(file.config.name, objective, (found,), smallest, tuple(notes))
    targets = tuple(sorted(_boards(board_name, file), key=_size))
    if mode != ALL:
        check_mode(targets, mode)
    about_trt = releases(targets, tensorrt)
    check_demands(file)
    levels = [(one, planned_models(one)) for one in levels_of(file)]
    planned = levels[0][1]
    measured = _measured([subject for _, subjects in levels for subject in subjects], profiles, targets)
    made, shared, at_mode = [], shared_of(profiles), 0
    total = sum(len(one.modes) for one in targets)
    for number, one in enumerate(targets):
        title = one.title if len(targets) == 1 else f"{one.title}, board {number + 1} of {len(targets)}"
        step = partial(_stepped, count, title, at_mode, total)
        planners = [
            _BoardPlanner(at, subjects, one, objective, tensorrt, start, measured, shared) for at, subjects in levels
        ]
        planner = replace(planners[0], fallbacks=tuple(planners[1:]))
        made.append(planner.plan(mode, strict=len(targets) == 1, step=step))
        at_mode += len(one.modes)
        if on_board is not None:
            on_board(made[-1], len(targets))
    fitting = [board.board for board in made if board.verdict == "kept"]
    smallest = fitting[0] if fitting else None
    rates = (note for subject in planned for note in subject.demand.notes)
    notes = dict.fromkeys(
        [
            *_without_edgert(targets, fitting),
            *(f"{name}: {text}" for name, text in tracker_thresholds(file.config.stages, file.config.models).items()),
            *board_stages(file, targets[-1], targets[-1].peak_mode, profiles=shared).notes,
            *about_watts(tuple(targets)),
            *seen,
            *rates,
            *_sparse(planned),
            *filter(None, (subject.about_bounds for subject in planned)),
            *_corrected(made),
            *about_bars(made, targets, planned),
            about_launches(planned, targets[-1], start),
            *about_trt,
            NOT_PLANNED,
        ]
    )
    return Plan(file.config.name, objective, tuple(made), smallest, tuple(notes))


def _stepped(count: Bar, title: str, before: int, total: int, done: int) -> None:
    count(title, before + done, total)


def _sparse(planned: Sequence[PlannedModel]) -> Iterator[str]:
    """Yield how many products ``tensorrt: sparse`` was counted for, and how well that is known."""
    for subject in planned:
        if subject.config.tensorrt.sparse:
            products = [work for work in units(subject.graph, sparse=True) if work.kind in (CONV, PRODUCT)]
            count, model = sum(work.is_sparse for work in products), subject.demand.model
            saved = (
                "what that saves is estimated from the peaks of GPUs, and on Orin's DLA by what NVIDIA measured"
                if count
                else "so that tensorrt: sparse saves nothing; it takes weights that were trained so"
            )
            yield f"{model}: {count} of {len(products)} products have two zeros in every four input channels; {saved}"


def _size(board: Board) -> tuple[float, float, str]:
    """Return a sort key: memory, then speed; a board of unknown clocks is the last of its memory size."""
    return board.memory.bytes, board.gpu_tops(board.peak_mode, "fp16") or math.inf, board.name


def _without_edgert(targets: Sequence[Board], fitting: Sequence[str]) -> Iterator[str]:
    """Yield a note about boards that edgert itself does not run on; ``fitting`` keep the budgets, smallest first."""
    found = {one.name: one.without_edgert for one in targets if one.without_edgert}
    if not found:
        return
    many = f"edgert itself does not run on {', '.join(found)} (edgert boards NAME has the reason)"
    runs = next((name for name in fitting if name not in found), "")
    smallest = f"; the smallest that it runs on is {runs}" if runs and fitting[0] in found else ""
    way = "edgert export --format onnx writes the models for the TensorRT there"
    yield f"{many if len(found) > 1 else ''.join(found.values())}; {way}{smallest}"


def _measured(
    planned: Sequence[PlannedModel], profiles: Sequence[str | Path], targets: Sequence[Board]
) -> tuple[tuple[MeasuredEngine, ...], ...]:
    """Return engines that ran on a board: of the profiles, and of ``configs/costs``.

    Raises:
        ConfigError: they are of another model or chip.
        ArtifactError: no such bundle, or impossible figures.
    """
    found: list[MeasuredEngine] = []
    for path in map(Path, profiles):
        if is_shared(path):
            engines = measured_times.of_shared(read_shared(path), planned, str(path))
        else:
            engines = read_measured(path)
            for subject in planned:
                for engine in engines:
                    if engine.model == subject.demand.model:
                        engine.check(load(subject.config.onnx).digest, subject.where)
        measured_times.refuse_useless(engines, planned, targets, str(path))
        found += engines
    sent = [engine for one in shipped() for engine in measured_times.of_shared(one, planned, "configs/costs")]
    return tuple(found), tuple(sent)


def shared_of(profiles: Sequence[str | Path]) -> tuple[SharedProfile, ...]:
    """Return the shared profiles among the files, then those in ``configs/costs``.

    Raises:
        ArtifactError: a profile cannot be read.
    """
    return (*(read_shared(Path(path)) for path in profiles if is_shared(Path(path))), *shipped())


def _corrected(made: Sequence[BoardPlan]) -> Iterator[str]:
    """Yield which times are measured, or corrected by measured ones, by what, and on which boards."""
    found: dict[str, list[str]] = {}
    for plan in made:
        texts = (f"{model.name}: {model.measured}" for row in plan.rows for model in row.models if model.measured)
        for text in dict.fromkeys(texts):
            found.setdefault(text, []).append(plan.board)
    yield from (f"{text} (on {', '.join(boards)})" for text, boards in found.items())


def _boards(name: str, file: PipelineFile) -> tuple[Board, ...]:
    if name == ALL:
        return boards()
    if name == HOST:
        raise ConfigError(
            "there are no measured times of this machine",
            why="board: host is planned by measured times of each model, and there is no --profile",
            where=file.where("board"),
            fix="edgert bench --units MODEL.onnx -o profile.json, then --board host --profile profile.json",
        )
    if name == "auto":
        raise ConfigError(
            "cannot plan without a board",
            why="the pipeline has board: auto, which means the machine that it runs on",
            where=file.where("board"),
            fix="--board NAME, or --board all for those that fit (edgert boards lists them); for this machine --board "
            "host --profile FILE, measured by edgert bench --units",
        )
    return (find_board(name, file.document.path.parent),)


@dataclass(frozen=True, eq=False)
class _BoardPlanner:
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
        """Return all rows; ``strict`` raises what forbids the whole board instead of noting it.

        Before each power mode ``step`` is called with the number of finished ones.
        """
        modes, rows, errors = self.board.modes, list[Row](), dict[str, EdgertError]()
        if mode != ALL and not strict and not self.board.has_mode(mode):  # of several boards not every one needs to
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
        return judged(machine, rows, self.file.config.budgets, self.objective, skipped)

    def _rows(self, mode: Mode) -> Iterator[Row]:
        """Yield a mode's rows. Raises PlacementError: the file puts a node on a DLA that the board lacks."""
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
        scene = _Scene(self, mode)
        for choice, placement in distinct(scene.choices(), scene.solved):
            yield scene.row(choice, placement)

    @cached_property
    def costs(self) -> Coefficients:
        return coefficients(self.board.soc)

    @cached_property
    def surveys(self) -> tuple[Survey | None, ...]:
        """The parts of every model that the board's DLA can run."""
        generation = self.board.dla.generation
        if not self.board.dla.cores or generation is None or self.costs.dla is None:
            return (None,) * len(self.subjects)
        release = self.tensorrt or USUAL_RELEASE[generation]
        return tuple(subject.survey(generation, release) for subject in self.subjects)

    @cached_property
    def works(self) -> tuple[Sequence[Work], ...]:
        """The fused units of every model, which no power mode changes."""
        pairs = zip(self.subjects, self.surveys, strict=True)
        return tuple(
            units(subject.graph, _allowed(found), sparse=subject.config.tensorrt.sparse) for subject, found in pairs
        )


class _Scene:
    """One power mode of one board."""

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
        made = self._predicted(subject, planner.board, self._mode, frames_of(planner.file.config, subject.demand.model))
        made = per_frame(made)
        if known := measured_times.nearest(subject, planner.board, self._mode, *planner.measured):
            there = partial(self._there, subject)
            made = measured_times.scaled(made, known.engines, there, known.weight)
            self.measured[subject.demand.model] = measured_times.correction(known, there)
        return bound_to(made, subject.config, subject.where, found)

    def _there(self, subject: PlannedModel, engine: MeasuredEngine) -> Network:
        """Return the prediction for a model where it was measured."""
        at, mode = measured_times.place_of(engine, [self._planner.board])
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
            allowed=_allowed(self._planner.surveys[place]),
            batch=frames,
            rate_hz=subject.demand.rate_hz,
            works=self._planner.works[place],
            launch=self._planner.launch,
        )

    def choices(self) -> list[Choice]:
        """Return placements to compare."""
        mixed = ("mixed", self._networks)
        if all(network.shares for network in self._networks):
            return [mixed]  # the file has chosen
        gpu = ("gpu", tuple(limited(network, lambda name: not is_dla(name)) for network in self._networks))
        if not any(is_dla(name) for network in self._networks for unit in network.units for name in unit.costs):
            return [gpu]
        return [gpu, ("dla", tuple(limited(network, is_dla) for network in self._networks)), mixed]

    def solved(self, choice: Choice) -> Placement:
        """Return the best by the objective; where nothing keeps up with the rates, the one that comes closest."""
        networks = choice[1]
        objective = self._planner.objective
        best = partial(solve, networks, limits=self._limits, contention=self._contention, time_limit_s=_SOLVE_S)
        most = best("throughput")
        if objective == "throughput" or most.value < 1:
            return most
        try:
            return best(objective)
        except PlacementError:  # with one engine for each model
            return most

    def row(self, choice: Choice, placement: Placement) -> Row:
        """Return the row of a placement with its numbers."""
        planner = self._planner
        maker = RowMaker(
            planner.file,
            planner.board.name,
            self._mode.name,
            planner.board.memory.most_bytes,
            self._contention,
            board_parts,
            tuple(subject.macs for subject in planner.subjects),
            board_stages(planner.file, planner.board, self._mode, profiles=planner.shared),
        )
        platform = platform_of(planner.board, self._mode, planner.costs)
        made = maker.row(choice, placement, platform, self._error)
        said = {name: one.words for name, one in self.measured.items()}
        made = replace(made, models=tuple(replace(one, measured=said.get(one.name, "")) for one in made.models))
        wall = None if made.power_w is None else wall_w(planner.board, made.power_w)
        made = replace(made, wall_w=wall, estimated=self._mode.estimated)
        if {"sms", "gpu_mhz", "emc_mhz"} & set(self._mode.estimated):  # the error of these is not known
            return replace(made, error=None, power_error=None)
        return replace(made, power_error=power_error(planner.board, self._mode, made.power_w))

    def _error(self, models: Sequence[ModelRow]) -> float | None:
        """Return the widest error of every precision on every accelerator in use; None where one has none."""
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
    """Return the frames, crops or tiles that share a run of a model.

    That is one of each stream that a batch takes from, and all crops or tiles. It is the least of all stages that use
    the model, and no more than it has rows.
    """
    streams, found = sources_of(config.stages), []
    for name, stage in config.stages.items():
        if isinstance(stage, InferStage) and stage.infer == model:
            rows = rows_of(config.models[model], stage)
            most = min(stage.batch.max, len(streams[name])) if stage.batch is not None else 1
            found.append(rows if stage.parts is not None else min(rows, most))
    return max(1, min(found, default=1))


def _allowed(found: Survey | None) -> Collection[str]:
    return found.allowed if found else ()
