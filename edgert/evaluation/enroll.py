"""Enrollment of images: their vectors are stored in a gallery under a name."""

from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from edgert.config import EmbedTask, ModelConfig, PipelineFile, PipelineSource, load_pipeline
from edgert.dataset import feed_of, open_images
from edgert.engine import build_engine, output_shapes
from edgert.errors import CONTROL, ConfigError, nearest
from edgert.evaluation.evaluate_model import runner
from edgert.graph import load
from edgert.stages.decode.decoder import image_outputs
from edgert.stages.decode.kinds import fitting_decoder
from edgert.stages.gallery import Gallery


@dataclass(frozen=True, slots=True)
class Enrolled:
    """Image whose vector was added.

    Attributes:
        nearest: name of the most similar vector that was there before; empty if there was none.
        similarity: cosine of the two vectors, -1 to 1.
    """

    image: str
    nearest: str
    similarity: float


def enroll(
    pipeline: PipelineSource,
    name: str,
    images: str | Path | Sequence[str | Path],
    *,
    model: str | None = None,
    overrides: Iterable[str] = (),
) -> tuple[Enrolled, ...]:
    """Add the vectors of images to the gallery of a pipeline's model (``match:``).

    If an image cannot be read, none is added. Running pipelines see new vectors within a second. Images are not
    cropped: for a pipeline that crops objects, they must each show one object.

    Args:
        pipeline: path, or any other value that :func:`edgert.load_pipeline` takes or returns.
        name: name of what the images show.
        images: folder, glob or image, or several of these.
        model: name of the model in the file; optional if only one has a gallery.
        overrides: ``key.path=value``, as for ``--set``.

    Raises:
        ConfigError: there is no model with a gallery, the name is empty, an image cannot be read, or the gallery
            belongs to another model.
        ModelError: the model does not compute one vector of one image.
        ArtifactError: the gallery cannot be written.
    """
    file = load_pipeline(pipeline, overrides)
    config, where = gallery_model(file, model)
    if not name.strip() or CONTROL.search(name):
        raise ConfigError(f"{name!r} is not a name", why="a name is printable text", fix="give one, like --add 'Anna'")
    assert isinstance(config.task, EmbedTask) and config.task.match is not None
    plain = config.model_copy(update={"task": config.task.model_copy(update={"match": None})})
    found, graph, added = Gallery(config.task.match), load(config.onnx), []
    sources = [images] if isinstance(images, (str, Path)) else images
    feeds = [feed_of(open_images(one), graph, plain) for one in sources]
    with closing(build_engine(graph, plain, None)) as engine:
        decoder = fitting_decoder(plain, (), tuple(output_shapes(engine)), feeds[0].size, where)
        run = runner(engine)()
        for feed, index in [(one, index) for one in feeds for index in range(len(one))]:
            tensor, geometry = feed.image(index)
            outputs = list(run({feed.input_name: tensor}).values())
            vector = decoder(image_outputs(outputs, engine.batched, 0), geometry).vector
            added.append((vector, Enrolled(feed.name(index), *found.match(vector))))
    for vector, _ in added:
        found.add(name, vector)
    return tuple(one for _, one in added)


def gallery_model(file: PipelineFile, model: str | None) -> tuple[ModelConfig, str]:
    """Return the pipeline's model with a gallery, and its place in the file.

    Raises ConfigError: no model has a gallery, or several have one and ``model`` is None.
    """
    models = {
        name: config
        for name, config in file.config.models.items()
        if isinstance(config.task, EmbedTask) and config.task.match is not None
    }
    where = file.where("models")
    if model is not None and model not in models:
        known = f"models with a gallery: {', '.join(models)}" if models else "no model of this pipeline has a gallery"
        raise ConfigError(f"no model {model!r} with a gallery{nearest(model, models)}", why=known, where=where)
    if not models:
        fix = "write it: task: {embed: l2, match: staff.npz}"
        raise ConfigError("this pipeline has no gallery", why="no model's task has match:", where=where, fix=fix)
    if model is None and len(models) > 1:
        raise ConfigError(
            f"{len(models)} models of this pipeline have a gallery; name one",
            where=where,
            fix=f"--model {' or '.join(models)}",
        )
    name = next(iter(models)) if model is None else model
    return models[name], file.where("models", name)
