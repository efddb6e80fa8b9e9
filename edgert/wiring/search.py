"""Trial of a model's settings on photos, with few runs of the engine."""

import math
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import numpy.typing as npt

from edgert.backend import Engine, Session
from edgert.board.host import core_count
from edgert.config import ModelConfig, TaskConfig
from edgert.config.model_section import verb_of
from edgert.engine import build_engine, default_profile, image_input
from edgert.errors import BuildError, EdgertError
from edgert.graph import load
from edgert.reporter import OnProgress, counting
from edgert.runtime import Record
from edgert.runtime.frame import U8
from edgert.stages.decode.decoder import Decoder
from edgert.stages.preprocess import layout_of
from edgert.wiring.check_report import CheckReport
from edgert.wiring.evidence import Answers, Evidence, counts_objects, relative_to_best, weigh
from edgert.wiring.photos import Photo, ReadPhoto, make_photo, scramble_phase, view_cuts
from edgert.wiring.settings import Setting, colors_and_scales, differs, placements, with_checking_thresholds
from edgert.wiring.training import Memory, memories
from edgert.wiring.trial import Trial, decoder_of, run_on_empty_image

# Evidence over several photos, and when it suffices.

F64 = npt.NDArray[np.float64]
PRIOR_SPREAD, PRIOR_PHOTOS = 0.25, 4
"""Assumed spread of one kind of evidence between photos, and the number of photos that this assumption counts as."""
SYSTEMATIC = 0.02
"""Standard error that remains with any number of photos: the most consistent setting is not always right."""
CLEAR = 2.0
"""Standard errors from which two settings count as different."""
HOPELESS = 3.5
"""Standard errors at which a setting is not tried on further photos."""
SAME = 0.9
"""Similarity of records from which two settings are equally good."""


@dataclass(slots=True, eq=False)
class Tally:
    """Evidence, features for the model's memories, and records of one setting so far, by number of the photo."""

    setting: Setting
    evidence: dict[int, Evidence] = field(default_factory=dict)
    looks: dict[int, tuple[F64, ...]] = field(default_factory=dict)
    records: dict[int, Record] = field(default_factory=dict)


class Ranking:
    """All settings with their evidence.

    Args:
        memories: statistics of the training images that the model stores.
        videos: for each photo, the number of the first photo from the same video, or its own. Photos of a video
            resemble each other, so together they count as one.
    """

    def __init__(self, memories: Sequence[Memory], videos: Sequence[int] = ()) -> None:
        self.memories, self._videos = memories, videos
        self._by_key: dict[str, Tally] = {}
        self._remembered: dict[tuple[Tally, tuple[int, ...]], list[F64]] = {}

    @property
    def tallies(self) -> Collection[Tally]:
        return self._by_key.values()

    def find(self, setting: Setting) -> Tally | None:
        """Return the tally of an equal setting; None without one."""
        return self._by_key.get(setting.key)

    def add(self, setting: Setting) -> Tally:
        """Return the tally of a setting; add one where there is none."""
        return self._by_key.setdefault(setting.key, Tally(setting))

    def drop(self, tally: Tally) -> None:
        """Remove a setting, for example one whose decoder refuses the outputs."""
        self._by_key.pop(tally.setting.key, None)

    def best(self) -> Tally:
        """Return the setting with the highest mean among those tried on the most photos."""
        most = max(len(tally.evidence) for tally in self.tallies)
        return max((tally for tally in self.tallies if len(tally.evidence) == most), key=self.mean)

    def mean(self, tally: Tally) -> float:
        """Return the mean over a setting's photos of the evidence of answers plus the fit with each memory."""
        return float(self.values(tally, sorted(tally.evidence)).mean()) if tally.evidence else -math.inf

    def answers(self, tally: Tally) -> float:
        """Return the part of the mean that is the evidence of the model's answers."""
        return float(np.mean(self._relative(tally, list(tally.evidence))))

    def fits(self, tally: Tally) -> tuple[float, ...]:
        """Return the fit with each memory, over all photos of a setting together."""
        looks = list(tally.looks.values())
        return tuple(memory.fit([look[n] for look in looks]) for n, memory in enumerate(self.memories))

    def lead(self, first: Tally, second: Tally) -> float:
        """Return the standard errors by which ``first`` leads on the photos that both were tried on.

        The standard error is that of paired differences, shrunk towards a prior while there are few photos: the
        moderated t of Smyth, "Linear Models and Empirical Bayes Methods", 2004.
        """
        photos = sorted(first.evidence.keys() & second.evidence.keys())
        # Memories show colors and scales only: placements in training were different ones.
        alone = not any(differs(first.setting, second.setting, group) for group in ("color", "scale"))
        one, other = (
            np.array(self._relative(of, photos)) if alone else self.values(of, photos) for of in (first, second)
        )
        differences = one - other
        if self._videos:
            videos = np.array([self._videos[photo] for photo in photos])
            differences = np.array([differences[videos == video].mean() for video in np.unique(videos)])
        count, mean = len(differences), float(differences.mean())
        kinds = 1 if alone else 1 + len(self.memories)
        prior = PRIOR_SPREAD**2 * kinds  # each kind of evidence adds its variance
        squares = PRIOR_PHOTOS * prior + float(((differences - mean) ** 2).sum())
        error = math.hypot(math.sqrt(squares / (PRIOR_PHOTOS + count - 1) / count), SYSTEMATIC)
        return mean / error

    def as_good(self, first: Tally, second: Tally) -> bool:
        """Return whether ``second`` is known to be no better, even where its answers differ."""
        return False

    def values(self, tally: Tally, photos: Sequence[int]) -> F64:
        """Return one value per photo: the evidence of answers plus the fit with memories."""
        answers = np.array(self._relative(tally, photos))
        key = tally, tuple(photos)
        if key not in self._remembered:
            looks = ([tally.looks[photo][n] for photo in photos] for n in range(len(self.memories)))
            self._remembered[key] = [_pseudo_values(*pair) for pair in zip(self.memories, looks, strict=True)]
        total: F64 = np.sum([answers, *self._remembered[key]], axis=0)
        return total

    def _relative(self, tally: Tally, photos: Sequence[int]) -> list[float]:
        """Return a setting's evidence on each photo; where it counts objects, as a fraction of the best setting's."""
        own, verb = [tally.evidence[photo].value for photo in photos], verb_of(tally.setting.task)
        if not counts_objects(verb):
            return own
        every = ([one.evidence[photo].value for one in self.tallies if photo in one.evidence] for photo in photos)
        return [relative_to_best([value, *others], verb)[0] for value, others in zip(own, every, strict=True)]


def _pseudo_values(memory: Memory, looks: Sequence[F64]) -> F64:
    """Return the jackknife's pseudo-value of each photo for the fit of all photos.

    Their mean is the fit without its bias. Their spread is the influence of single photos (Efron, "The Jackknife, the
    Bootstrap and Other Resampling Plans", 1982).
    """
    count, whole = len(looks), memory.fit(looks)
    if count == 1:
        return np.array([whole])
    left_out = [memory.fit([*looks[:n], *looks[n + 1 :]]) for n in range(count)]
    return count * whole - (count - 1) * np.array(left_out)


Progress = Callable[[int, int], object]
"""A function called with the number of runs so far and at most."""
_MOST_SETTINGS = 96
"""Largest number of combinations of colors, scales and tasks, for heads with many options."""
CPU_SECONDS = 30.0
"""Processor time of all threads together that a search on photos may take."""


def search_progress(on_progress: OnProgress | None) -> Progress | None:
    """Return a function that reports the runs of a search; None without a receiver."""
    count = counting(on_progress)
    return None if count is None else partial(count, "trying settings")


@dataclass(frozen=True, slots=True, eq=False)
class Subject:
    """A compiled model that is checked.

    Attributes:
        engine: compiled model.
        session: session of the engine, whose only input is the image.
        network: width and height of the input.
        dtype: type of the input.
        memories: training statistics that the model stores.
        labels: names of the classes; empty where unknown.
        where: name of the model in errors.
    """

    engine: Engine
    session: Session
    network: tuple[int, int]
    dtype: str
    memories: tuple[Memory, ...]
    labels: tuple[str, ...]
    where: str


def load_subject(config: ModelConfig, labels: tuple[str, ...], where: str) -> Subject:
    """Load and compile a model.

    Raises ModelError: the file is not a model, its input is not one image, or a dimension stays dynamic. Raises
    BuildError: the backend refuses it.
    """
    model = load(config.onnx)
    threads = config.threads or core_count()
    engine = build_engine(model, config, threads)
    session = engine.session()
    tensor = session.inputs[image_input(session.inputs, str(config.onnx))]
    layout = layout_of(tensor.shape, config.input.layout, 1 if config.input.color == "gray" else 3, where)
    height, width = tensor.shape[2:] if layout == "nchw" else tensor.shape[1:3]
    shapes = dict((config.profiles or default_profile(model, config)).get(engine.profiles[0], {}))
    found = memories(model, shapes, threads)
    return Subject(engine, session, (int(width), int(height)), tensor.dtype.name, found, labels, where)


class Search:
    """A search that tries settings of one model, photo by photo.

    A setting whose decoder refuses the model's answers is dropped. For the settings that must be tried, the error is
    raised.

    Args:
        subject: compiled model.
        photos: path and image of each photo.
        verb: verb of the task.
        progress: function called after each run.
        cpu_seconds: processor time after which no further setting is tried; the settings that must be tried then get
            only the first photo.
    """

    def __init__(
        self,
        subject: Subject,
        photos: Sequence[ReadPhoto],
        verb: str,
        progress: Progress | None = None,
        cpu_seconds: float = CPU_SECONDS,
    ) -> None:
        self.subject, self.photos = subject, photos
        self.is_cut_short = False
        self._ends_s = time.process_time() + cpu_seconds
        names = [path for path, _ in photos]
        self.ranking: Ranking = Ranking(subject.memories, [names.index(name) for name in names])
        self.runs, self._planned = 0, 0

        def ran() -> None:
            self.runs += 1
            if progress:
                progress(self.runs, max(self._planned, self.runs))

        self._trial = Trial(subject.session, subject.engine.batched, subject.where, ran)
        self._verb = verb
        self._controls: dict[int, U8] = {}
        self._decoders: dict[str, Decoder] = {}

    @property
    def photo_cpu_s(self) -> float:
        """Processor time of one setting on one photo, estimated by a run on an empty image."""
        began = time.process_time()
        run_on_empty_image(self.subject.engine, self.subject.session)
        return (time.process_time() - began) * (len(view_cuts(self._verb)) + 2)

    def explore(self, base: Setting, tasks: Sequence[TaskConfig], *others: Setting) -> None:
        """Try every color and scale with every task, then every placement with the best of them.

        Args:
            base: setting that must be tried on all photos; its placement is used for colors and scales.
            tasks: tasks that can read the outputs, the likeliest first; :data:`_MOST_SETTINGS` limits their number.
            others: further settings that must be tried on all photos.
        """
        inputs = colors_and_scales(base.input, self.subject.dtype)
        tasks = tasks[: max(_MOST_SETTINGS // len(inputs), 1)]
        self.plan(len(inputs) + len(others) + len(placements(base.input, verb_of(base.task))) - 1)
        always = {base.key, *(other.key for other in others)}
        self.gather([*others, *(Setting(config, task) for config in inputs for task in tasks)], always)
        best = self.ranking.best().setting
        ways = [base, *others, *(Setting(config, best.task) for config in placements(best.input, verb_of(best.task)))]
        self.gather(ways, always)

    def with_summary(self, report: CheckReport) -> CheckReport:
        return report

    def plan(self, inputs: int) -> None:
        self._planned += inputs * len(self.photos) * (len(view_cuts(self._verb)) + 2)

    def gather(self, settings: Sequence[Setting], always: Collection[str] = (), keep_all: bool = False) -> None:
        """Try settings on every photo, except those that fall hopelessly behind.

        Args:
            settings: settings to try.
            always: keys of the settings that must be tried on all photos.
            keep_all: whether all settings are tried on all photos.
        """
        tallies = [self.ranking.add(setting) for setting in settings]
        for number, (path, image) in enumerate(self.photos):
            if number not in self._controls:
                self._controls[number] = scramble_phase(image)
            photo = make_photo(path, image, self._controls[number], self._verb)
            tallies = [one for one in tallies if self._tried(one, number, photo, always, keep_all=keep_all)]
            self._trial.forget()
            if not tallies:
                return
            if not keep_all:
                best = max(tallies, key=self.ranking.mean)
                kept = {best.setting.key, *always}
                leads = {id(one): self.ranking.lead(best, one) for one in tallies if one.setting.key not in kept}
                tallies = [one for one in tallies if leads.get(id(one), 0.0) < HOPELESS]

    def _tried(self, tally: Tally, number: int, photo: Photo, always: Collection[str], *, keep_all: bool) -> bool:
        """Try a setting on a photo; return whether it stays in the search."""
        is_wanted = tally.setting.key in always
        if number in tally.evidence:
            return True
        if time.process_time() > self._ends_s and (number or not (is_wanted or keep_all)):
            self.is_cut_short = True
            if not tally.evidence:
                self.ranking.drop(tally)
            return False
        try:
            self._see(tally, number, photo)
        except EdgertError as error:
            if is_wanted or isinstance(error, BuildError):  # not a decoder's: the engine failed, or took too long
                raise
            self.ranking.drop(tally)
            return False
        return True

    def _see(self, tally: Tally, number: int, photo: Photo) -> None:
        config, task = tally.setting.input, tally.setting.task
        decoder = self._decoders.get(repr(task))
        if decoder is None:
            engine = self.subject.engine
            labels = () if self._verb == "text" else self.subject.labels  # class numbers suffice to compare texts
            decoder = decoder_of(with_checking_thresholds(task), labels, engine, self.subject.network)
            self._decoders[repr(task)] = decoder
        *raw, control = [self._trial.answer(config, view) for view in (*photo.views, photo.control)]
        with np.errstate(all="ignore"):  # numbers of a wrong setting may overflow
            *records, scramble = [decoder(list(outputs), geometry) for outputs, geometry in (*raw, control)]
        answers = Answers(tuple(records), scramble, tuple(raw), control)
        tally.evidence[number] = weigh(answers, photo)
        tally.records[number] = records[0]
        tally.looks[number] = tuple(memory.look(config, photo.views[0]) for memory in self.subject.memories)
