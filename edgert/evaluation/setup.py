"""What every version of one model is evaluated with: images, labels, input preprocessing, decoder and scorer."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from edgert.backend import Engine
from edgert.backend.base import Array
from edgert.config import ClassifyTask, DetectTask, ModelConfig, TaskConfig
from edgert.dataset import ImageFeed, LabeledDataset, feed_of
from edgert.engine import build_engine, one_image
from edgert.errors import EdgertError, ModelError
from edgert.evaluation.score import Agreement, BoxScorer, Scorer, scorer_for
from edgert.graph import Model
from edgert.stages.decode.decoder import Decoder
from edgert.stages.decode.kinds import decoder_for, read_labels

LOWEST_SCORE = 0.01
"""Average precision is taken over all of a detector's confidence, so boxes count from here on whatever ``score`` the
task asks for: the 0.01 of YOLOX's and the order of most published evaluations."""
LEAST_BOXES = 100
_LEAST_CLASSES = 5

Run = Callable[[Mapping[str, Array]], Mapping[str, Array]]
"""A model as a function: input name → (1, …) array, to output name → array; called from several threads at once. A
:class:`~edgert.backend.ort.Function` is one."""


@dataclass(frozen=True, slots=True, eq=False)
class EvaluationSetup:
    """What all candidates of one evaluation share. Made by :func:`open_evaluation`.

    Attributes:
        config: the model's section; its backend and profiles compile candidates that are models.
        dataset: images and labels.
        feed: the images as input tensors.
        decoder: reads the outputs.
        scorer: judges what the decoder read.
        outputs: names of the outputs, in the decoder's order.
        batched: for every output, whether its first dimension is the batch.
    """

    config: ModelConfig
    dataset: LabeledDataset
    feed: ImageFeed
    decoder: Decoder
    scorer: Scorer
    outputs: tuple[str, ...]
    batched: tuple[bool, ...]

    def __len__(self) -> int:
        return len(self.feed)

    def image_outputs(self, found: Mapping[str, Array]) -> list[Array]:
        """One image's outputs as the decoder wants them.

        Raises:
            ModelError: an output is missing; a candidate has the outputs of the model it was made from.
        """
        if missing := [name for name in self.outputs if name not in found]:
            raise ModelError(f"the model gives no {missing[0]!r}", why=f"it gives {', '.join(found)}")
        return [
            found[name][0] if batched else found[name] for name, batched in zip(self.outputs, self.batched, strict=True)
        ]


def open_evaluation(
    model: Model,
    config: ModelConfig,
    dataset: LabeledDataset,
    *,
    labels: Sequence[str] | None = None,
    directory: Path | None = None,
    where: str = "",
) -> EvaluationSetup:
    """Puts together how a model is evaluated, as its pipeline would run it.

    Two settings of the task differ, for detectors with labels and for classifiers: boxes count from a score of
    :data:`LOWEST_SCORE` on, and five classes are told. Agreement without labels is of what the task itself asks for.

    Args:
        model: gives the names and shapes of inputs and outputs; candidates have the same.
        labels: the model's class names; read from the task's file by default.
        directory: of the pipeline file, where ``python:`` looks first.
        where: the model's place in it, for errors.

    Raises:
        ModelError: not a model of one image, or the task does not fit its outputs.
        ConfigError: a task that makes what the labels are not for.
        BuildError: the backend refuses the model.
    """
    try:
        names = labels_of(config, where) if labels is None else tuple(labels)
        scorer = Agreement() if dataset.ground_truth is None else scorer_for(dataset.ground_truth)
        task = _judged(config.task, isinstance(scorer, BoxScorer))
        decoder = decoder_for(task, names, where, directory)
        feed = feed_of(dataset.images, model, config)
        with closing(build_engine(model, config, threads=1)) as engine:
            if engine.outputs_known:
                decoder.check(one_image(engine), feed.size)
            outputs, batched = tuple(tensor.name for tensor in engine.outputs), engine.batched
    except EdgertError as error:
        raise error.at(where)  # noqa: B904 - the same error, with its place
    return EvaluationSetup(config, dataset, feed, decoder, scorer, outputs, batched)


def labels_of(config: ModelConfig, where: str = "") -> tuple[str, ...]:
    """Names of the model's classes; empty when there are none."""
    return read_labels(config.task.labels, where) if config.task.labels else ()


def runner(engine: Engine) -> Callable[[], Run]:
    """Makes runs on an engine, one for each thread: each has bound tensors of its own.

    A run raises ModelError for a version of the model that wants to see something else than the model does.
    """

    def make() -> Run:
        session = engine.session()
        names = [tensor.name for tensor in engine.outputs]

        def run(feeds: Mapping[str, Array]) -> Mapping[str, Array]:
            for name, array in feeds.items():
                if name not in session.inputs or session.inputs[name].shape[1:] != array.shape[1:]:
                    takes = ", ".join(f"{own} {list(bound.shape)}" for own, bound in session.inputs.items())
                    raise ModelError(
                        f"a version to compare does not take {name!r} {list(array.shape)}",
                        why=f"it takes {takes}; both versions are shown the same images, prepared once",
                        fix="compare versions of one model; another model is evaluated by itself, with its own --input",
                    )
                session.inputs[name][:1] = array
            return dict(zip(names, session.run(1), strict=True))

        return run

    return make


def _judged(task: TaskConfig, by_boxes: bool) -> TaskConfig:
    if isinstance(task, DetectTask) and by_boxes:
        most = {"score": min(task.score, LOWEST_SCORE), "limit": max(task.limit, LEAST_BOXES)}
        return task.model_copy(update=most)
    if isinstance(task, ClassifyTask):
        return task.model_copy(update={"top": max(task.top, _LEAST_CLASSES)})
    return task
