"""Comparison of edgert's engine with other runtimes, in turn, on the same input and with the same threads."""

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from edgert.backend.base import Array
from edgert.benchmark.measure import Figure, interleave, median_ratio, wall_ms
from edgert.board.host import core_count
from edgert.bundle.bundle import is_bundle, open_bundle
from edgert.compiler.model_steps import uniform_feeds
from edgert.compiler.unpack import unpacked
from edgert.config import EmbedTask, ModelConfig, engine_choice, load_pipeline
from edgert.errors import BuildError, ConfigError, DeviceError, nearest, raised_as
from edgert.graph import Model, load
from edgert.quantization import run as follower
from edgert.quantization.precision import in_precision
from edgert.quantization.run import is_quantized
from edgert.tuner.candidates import Tactic
from edgert.tuner.rounds import Candidate
from edgert.user_code import load_object

Run = Callable[[], Mapping[str, Array]]


def module_run(spec: str, feeds: Mapping[str, Array], outputs: Sequence[str], threads: int) -> tuple[str, Run]:
    """Return name and version of PyTorch, and a function that runs a user's module once, in inference mode.

    ``spec`` is ``module:function``, which returns an ``nn.Module``. Feeds and outputs are in the order of its arguments
    and results. Only this function imports torch.
    """
    with raised_as(DeviceError, "PyTorch is not installed", of=ImportError, fix="pip install torch"):
        torch: Any = import_module("torch")
    torch.set_num_threads(threads)
    network = _module(torch, spec)
    tensors = [torch.from_numpy(array) for array in feeds.values()]

    def run() -> Mapping[str, Array]:
        with torch.inference_mode():
            found = network(*tensors)  # a tensor, several, or several by name
        several = list(found.values()) if isinstance(found, Mapping) else found
        arrays = several if isinstance(several, (list, tuple)) else [several]
        return {name: array.detach().numpy() for name, array in zip(outputs, arrays, strict=False)}

    try:
        run()
    except (RuntimeError, TypeError, ValueError) as error:
        takes = ", ".join(f"{name} {list(array.shape)} {array.dtype}" for name, array in feeds.items())
        raise BuildError(
            f"the module of {spec!r} cannot run",
            why=str(error).strip().partition("\n")[0],
            where="--torch",
            fix=f"it is called with the model's inputs: {takes}",
        ) from error
    return f"torch {torch.__version__.partition('+')[0]}", run


def _module(torch: Any, spec: str) -> Any:
    make: Any = load_object(spec, "--torch", Path.cwd())
    network = make()
    if not isinstance(network, torch.nn.Module):
        raise ConfigError(
            f"{spec!r} returns {type(network).__name__}",
            why="only a torch.nn.Module can be run",
            where="--torch",
            fix="def load(): return Network().eval(), and --torch file:load",
        )
    return network.eval()


PEERS = ("onnxruntime", "openvino", "torch")
_RUN_MS, _FRAMES, _MOST_FRAMES = 20.0, 4, 256


@dataclass(frozen=True, slots=True)
class Subject:
    """Model to compare: its section, the model as edgert runs it, and the original or float file that the peer runs."""

    name: str
    config: ModelConfig
    model: Model
    plain: Path


def compare_with_peer(target: Path, peer: str, torch: str | None = None, rounds: int = 41) -> Iterator[Figure]:
    """Yield the speed of edgert relative to a peer, for each model of an ONNX file, pipeline or bundle.

    A bundle that was tuned here runs as tuned. ``torch`` is ``module:function``, for the peer ``torch``.
    """
    if peer not in PEERS:
        raise ConfigError(f"no peer {peer!r}{nearest(peer, PEERS)}", where="--peer", fix=f"--peer {' or '.join(PEERS)}")
    if (peer == "torch") != (torch is not None):
        raise ConfigError(
            "PyTorch cannot run an ONNX file" if torch is None else "--torch is for --peer torch",
            where="--peer",
            fix="--peer torch --torch module:function, which returns the nn.Module that the model was exported from",
        )
    with _subjects(target) as subjects:
        if torch is not None and len(subjects) != 1:
            raise ConfigError(
                f"cannot tell which of {len(subjects)} models {torch!r} is",
                why="a module is one model",
                where="--torch",
                fix="name an ONNX file, or a pipeline of one model",
            )
        for subject in subjects:
            yield _race(subject, peer, torch, rounds)


@contextmanager
def _subjects(target: Path) -> Iterator[list[Subject]]:
    """Yield the models of a target; files of a bundle exist only inside the block."""
    if target.suffix == ".onnx":
        config = ModelConfig(onnx=target, task=EmbedTask(embed="none"))
        yield [Subject(target.stem, config, load(target), target)]
    elif is_bundle(target):
        with TemporaryDirectory(prefix="edgert-") as folder, open_bundle(target) as bundle, unpacked(target) as found:
            plain = {name: entry.forms["float"] for name, entry in bundle.manifest.models.items()}
            bundle.extract(Path(folder), plain.values())
            models = found.file.config.models
            yield [Subject(name, one, load(one.onnx), Path(folder) / plain[name]) for name, one in models.items()]
    else:
        file = load_pipeline(target)
        directory = file.document.path.parent
        yield [
            Subject(name, one, in_precision(one, follower.Run(file.where("models", name), directory)), one.onnx)
            for name, one in file.config.models.items()
        ]


def _race(subject: Subject, peer: str, torch: str | None, rounds: int) -> Figure:
    feed = next(uniform_feeds(subject.model, subject.config, 1))
    tactic = _tactic(subject.config, subject.model)
    threads = tactic.replicas * tactic.threads
    with Candidate(tactic, subject.model, subject.config, feed) as ours:
        mine = ours.outputs()
        if torch is not None:
            title, run = module_run(torch, feed, list(mine), threads)
        elif peer == "openvino":
            from edgert.backend import openvino

            title, run = openvino.reference_run(subject.plain, feed, threads)
        else:
            from edgert.backend.ort import cpu

            title, run = cpu.reference_run(subject.plain, feed, threads)
        frames = _FRAMES * min(_MOST_FRAMES, math.ceil(_RUN_MS / (_FRAMES * ours.frame_ms(_FRAMES))))

        def theirs() -> float:
            run()  # gives spinning threads of the other engine time to sleep, as in ``ours``
            return wall_ms(lambda: [run() for _ in range(frames)]) / frames

        own_ms, peer_ms = interleave(rounds, lambda: ours.frame_ms(frames), theirs)
        detail = {
            "edgert": str(tactic),
            "edgert_ms": statistics.median(own_ms),
            "peer_ms": statistics.median(peer_ms),
            "threads": threads,
            "relative_error": _difference(run(), mine),
        }
    return Figure(
        f"{subject.name}: edgert against {title}", median_ratio(peer_ms, own_ms), "×", None, "higher", rounds, detail
    )


def _tactic(config: ModelConfig, model: Model) -> Tactic:
    """Return a section's tactic, by default with one frame at a time like the peer."""
    replicas = config.replicas or 1
    threads = max(1, (config.threads or core_count()) // replicas)
    pinned = isinstance(config.placement, engine_choice.ReplicateConfig)
    backend = "ort" if config.backend == "auto" else config.backend
    form = "ort" if is_quantized(model) else "float"
    return Tactic(backend, form, replicas, threads, pinned, config.tuning)


def _difference(wanted: Mapping[str, Array], made: Mapping[str, Array]) -> float | None:
    """Return the RMS difference relative to the peer's RMS; None if the outputs are different tensors."""
    if any(name not in wanted or wanted[name].shape != array.shape for name, array in made.items()):
        return None
    pairs = [(wanted[name].astype(float).ravel(), array.astype(float).ravel()) for name, array in made.items()]
    first, second = (np.concatenate(part) for part in zip(*pairs, strict=True))
    norm = float(np.linalg.norm(first))
    return float(np.linalg.norm(first - second)) / norm if norm else None
