"""Memory of a tactic, measured in a separate process, which also contains native crashes."""

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from edgert.config import ModelConfig
from edgert.errors import BuildError, EdgertError
from edgert.tuner.candidates import ON_GPU, Tactic, applied, tactic_of

_LIMIT_S = 1800.0


@dataclass(frozen=True, slots=True)
class Footprint:
    """Physical memory at its peak.

    Attributes:
        base_bytes: of a process that has imported all that is needed, and no model.
        engine_bytes: added by engine, tensors and a run of every replica, on a GPU as well.
    """

    base_bytes: int
    engine_bytes: int


def footprint(tactic: Tactic, onnx: Path, config: ModelConfig) -> Footprint:
    """Compile and run a tactic in a child process, and return its memory.

    Args:
        tactic: to measure.
        onnx: file with the tactic's form.
        config: the model's section.

    Raises:
        BuildError: the backend refuses the model, is not installed, or crashed.
    """
    section = config.model_dump(mode="json", include={"task", "input", "profiles"}, by_alias=True)
    if config.input.size is not None:  # as in a file
        section["input"]["size"] = "{}x{}".format(*config.input.size)
    question = {"tactic": asdict(tactic), "section": {**section, "onnx": str(onnx.absolute())}}
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    try:
        done = subprocess.run(
            [sys.executable, "-m", "edgert.tuner.memory_use"],
            input=json.dumps(question),
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,  # Ctrl-C ends the search between two rounds, not this as if it had crashed
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise BuildError(f"{tactic.backend} did not finish in time", why=str(error), where=str(config.onnx)) from error
    if done.returncode != 0:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        raise BuildError(f"{tactic.backend} crashed", why=last[0], where=str(config.onnx))
    answer = json.loads(done.stdout)
    if "refused" in answer:
        raise BuildError(answer["refused"], why=answer["why"], where=str(config.onnx))
    return Footprint(**answer)


def _answer(question: dict[str, Any]) -> dict[str, Any]:
    from edgert.engine import build_engine
    from edgert.graph import load
    from edgert.meters import peak_rss_bytes, rss_bytes

    tactic = tactic_of(question["tactic"])
    config = ModelConfig.model_validate(question["section"])
    model = load(config.onnx)
    base_bytes = rss_bytes()
    try:
        free_bytes = _gpu_free_bytes(tactic)
        engine = build_engine(model, applied(config, tactic), tactic.threads, tactic.batch)
        sessions = [engine.session() for _ in range(tactic.replicas)]
        for session in sessions:
            session.run()
        on_gpu_bytes = free_bytes - _gpu_free_bytes(tactic)
    except EdgertError as error:
        return {"refused": error.what, "why": error.why}
    engine_bytes = max(0, peak_rss_bytes() - base_bytes) + max(0, on_gpu_bytes)
    return {"base_bytes": base_bytes, "engine_bytes": engine_bytes}


def _gpu_free_bytes(tactic: Tactic) -> int:
    """Return the free bytes of the GPU that a tactic runs on; 0 for one that runs on the processor."""
    if tactic.backend not in ON_GPU:
        return 0
    from edgert.memory.cuda import open_device

    return open_device().free_bytes()[0]


def main() -> None:
    """Answer the question on standard input; standard output carries the answer only."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    json.dump(_answer(json.load(sys.stdin)), out)
    out.flush()


if __name__ == "__main__":
    main()
