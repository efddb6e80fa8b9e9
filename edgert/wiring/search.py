"""Trying settings of one model on photographs, with few runs of the engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edgert.backend import Engine, Session
from edgert.board.host import core_count
from edgert.config import ModelConfig, TaskConfig
from edgert.config.model import verb_of
from edgert.graph.load import load
from edgert.ready import build_engine, default_profile, picture_input
from edgert.runtime.frame import U8
from edgert.stages.decode.base import Decoder
from edgert.stages.preprocess import layout_of
from edgert.wiring.candidate import Setting, colors_and_scales, for_checking, placements
from edgert.wiring.evidence import Answers, weigh
from edgert.wiring.photo import Photo, scrambled, with_views
from edgert.wiring.rank import HOPELESS, Ranking, Tally
from edgert.wiring.reading import decoder_of
from edgert.wiring.training import Memory, memories
from edgert.wiring.trial import Trial

Progress = Callable[[int, int], None]
"""Called with the runs made and the most runs there will be."""
_SHIFTED = ("classify", "embed")  # answers without a position, which shifted views must agree on


@dataclass(frozen=True, slots=True, eq=False)
class Subject:
    """A model that is compiled, once, and what is known about it.

    Attributes:
        session: bound tensors; the only input is the picture.
        network: width and height of the picture.
        dtype: of its pixels.
        memories: what it remembers of its training.
        labels: of the pipeline file; empty when there are none.
    """

    engine: Engine
    session: Session
    network: tuple[int, int]
    dtype: str
    memories: tuple[Memory, ...]
    labels: tuple[str, ...]
    where: str


def subject(config: ModelConfig, labels: tuple[str, ...], where: str) -> Subject:
    """Loads and compiles a model.

    Raises:
        ModelError: the file is no model, takes other things than one picture, or has dynamic dimensions left open.
        BuildError: the backend refuses it.
    """
    model = load(config.onnx)
    threads = config.threads or core_count()
    engine = build_engine(model, config, threads)
    session = engine.session()
    tensor = session.inputs[picture_input(session.inputs, str(config.onnx))]
    layout = layout_of(tensor.shape, config.input.layout, 1 if config.input.color == "gray" else 3, where)
    height, width = tensor.shape[2:] if layout == "nchw" else tensor.shape[1:3]
    shapes = dict((config.profiles or default_profile(model, config)).get(engine.profiles[0], {}))
    found = memories(model, shapes, threads)
    return Subject(engine, session, (int(width), int(height)), tensor.dtype.name, found, labels, where)


class Search:
    """The evidence of one model's settings, gathered photograph by photograph."""

    def __init__(
        self, subject: Subject, photos: Sequence[tuple[Path, U8]], verb: str, progress: Progress | None = None
    ) -> None:
        self.subject, self.photos, self._progress = subject, photos, progress
        self.ranking = Ranking(subject.memories)
        self.runs, self._planned = 0, 0
        self._trial = Trial(subject.session, subject.engine.batched, subject.where, self._ran)
        self._many = verb in _SHIFTED
        self._controls: dict[int, U8] = {}
        self._decoders: dict[str, Decoder] = {}

    def explore(self, base: Setting, tasks: Sequence[TaskConfig]) -> None:
        """Tries every colour and scale with every reading, then every placement with the best of them."""
        inputs = colors_and_scales(base.input, self.subject.dtype)
        self.plan(len(inputs) + len(placements(base.input, verb_of(base.task))) - 1)
        kept = base.key
        self.gather([Setting(config, task) for config in inputs for task in tasks], kept)
        best = self.ranking.best().setting
        self.gather([Setting(config, best.task) for config in placements(best.input, verb_of(best.task))], kept)

    def plan(self, inputs: int) -> None:
        """Tells the progress how many more ways to feed the model will be tried."""
        self._planned += inputs * len(self.photos) * (6 if self._many else 4)

    def gather(self, settings: Sequence[Setting], kept: str = "", keep_all: bool = False) -> None:
        """Tries settings on every photograph, less those that fall hopelessly behind.

        Args:
            kept: key of a setting that is tried on all, however bad.
            keep_all: whether all are.
        """
        tallies = [self.ranking.add(setting) for setting in settings]
        for number, (path, picture) in enumerate(self.photos):
            if number not in self._controls:
                self._controls[number] = scrambled(picture)
            photo = with_views(path, picture, self._controls[number], self._many)
            for tally in tallies:
                if number not in tally.evidence:
                    self._see(tally, number, photo)
            self._trial.forget()
            if not keep_all:
                best = max(tallies, key=self.ranking.mean)
                tallies = [t for t in tallies if t.setting.key == kept or not self._hopeless(best, t)]

    def _hopeless(self, best: Tally, other: Tally) -> bool:
        return best is not other and self.ranking.gap(best, other).errors >= HOPELESS

    def _see(self, tally: Tally, number: int, photo: Photo) -> None:
        config, task = tally.setting.input, tally.setting.task
        decoder = self._decoder(task)
        *raw, control = [self._trial.answer(config, view) for view in (*photo.views, photo.control)]
        with np.errstate(all="ignore"):  # a setting that is wrong gives numbers beyond all bounds
            *records, scramble = [decoder(list(outputs), geometry) for outputs, geometry in (*raw, control)]
        answers = Answers(tuple(records), scramble, tuple(raw), control)
        tally.evidence[number] = weigh(answers, photo)
        tally.records[number] = records[0]
        tally.looks[number] = tuple(memory.look(config, photo.views[0]) for memory in self.subject.memories)

    def _decoder(self, task: TaskConfig) -> Decoder:
        key = repr(task)
        if key not in self._decoders:
            subject = self.subject
            self._decoders[key] = decoder_of(for_checking(task), subject.labels, subject.engine, subject.network)
        return self._decoders[key]

    def _ran(self) -> None:
        self.runs += 1
        if self._progress:
            self._progress(self.runs, max(self._planned, self.runs))
