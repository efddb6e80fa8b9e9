"""Memory of a tactic, measured in a child process, which also protects the search from native crashes."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from edgert import installation
from edgert.config import ModelConfig
from edgert.errors import BuildError, EdgertError, raised_as
from edgert.tuner.candidates import ON_GPU, Tactic, with_tactic

_LIMIT_S = 1800.0


@dataclass(frozen=True, slots=True)
class Footprint:
    """Peak physical memory.

    Attributes:
        base_bytes: memory of a process with all imports but no model.
        engine_bytes: additional memory for engine, tensors and a run of every replica, including that on a GPU.
    """

    base_bytes: int
    engine_bytes: int


def footprint(tactic: Tactic, onnx: Path, config: ModelConfig) -> Footprint:
    """Compile and run a tactic in a child process, and return its memory.

    ``onnx`` is a file with the tactic's form of the model. Raises BuildError: the backend refuses the model, is not
    installed, or crashed.
    """
    section = config.model_dump(mode="json", include={"task", "input", "profiles"}, by_alias=True)
    if config.input.size is not None:  # in the form of a pipeline file
        section["input"]["size"] = "{}x{}".format(*config.input.size)
    question = {"tactic": tactic.to_json(), "section": {**section, "onnx": str(onnx.absolute())}}
    what, where = f"{tactic.backend} did not finish in time", str(config.onnx)
    with raised_as(BuildError, what, of=subprocess.TimeoutExpired, where=where):
        done = subprocess.run(
            [sys.executable, "-m", "edgert.tuner.memory_use"],
            input=json.dumps(question),
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            env={**os.environ, "PYTHONPATH": installation.python_path()},
            start_new_session=True,  # so that Ctrl-C does not reach it and look like a crash
            check=False,
        )
    if done.returncode != 0:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        raise BuildError(f"{tactic.backend} crashed", why=last[0], where=where)
    answer = json.loads(done.stdout)
    if "refused" in answer:
        raise BuildError(answer["refused"], why=answer["why"], where=where)
    return Footprint(**answer)


def _answer(question: dict[str, Any]) -> dict[str, Any]:
    from edgert.engine import build_engine
    from edgert.graph import load
    from edgert.meters import peak_rss_bytes, rss_bytes

    tactic = TypeAdapter(Tactic).validate_python(question["tactic"])
    config = ModelConfig.model_validate(question["section"])
    model = load(config.onnx)
    base_bytes = rss_bytes()
    try:
        free_bytes = _gpu_free_bytes(tactic)
        engine = build_engine(model, with_tactic(config, tactic), tactic.threads, tactic.batch)
        sessions = [engine.session() for _ in range(tactic.replicas)]
        for session in sessions:
            session.run()
        on_gpu_bytes = free_bytes - _gpu_free_bytes(tactic)
    except EdgertError as error:
        return {"refused": error.what, "why": error.why}
    engine_bytes = max(0, peak_rss_bytes() - base_bytes) + max(0, on_gpu_bytes)
    return {"base_bytes": base_bytes, "engine_bytes": engine_bytes}


def _gpu_free_bytes(tactic: Tactic) -> int:
    """Return the free bytes of the GPU that a tactic uses; 0 for a tactic on the CPU."""
    if tactic.backend not in ON_GPU:
        return 0
    from edgert.memory.cuda import open_device

    return open_device().free_bytes()[0]


def main() -> None:
    """Read a question from standard input and write only the answer to standard output."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    json.dump(_answer(json.load(sys.stdin)), out)
    out.flush()


if __name__ == "__main__":
    main()
