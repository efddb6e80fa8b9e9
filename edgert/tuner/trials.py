"""Results of a search: trials of tactics, the chosen tactic, and the journal from which a search resumes."""

import json
import platform
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from edgert.backend.ort import OrtBackend
from edgert.board.devices import cuda_driver
from edgert.board.host import core_count, cpu_name
from edgert.files import replace_text
from edgert.installation import version_of
from edgert.quantization.throughput import Timing
from edgert.steps import digest_of
from edgert.tuner.candidates import Tactic


def identity() -> dict[str, str]:
    """Return what times depend on besides the model: CPU, cores, system, GPUs, and versions of runtimes.

    Raises DeviceError: ONNX Runtime is not installed.
    """
    driver = cuda_driver()
    gpus = [gpu.name for gpu in driver.gpus] if driver is not None else []
    return {
        "cpu": cpu_name(),
        "cores": str(core_count()),
        "system": f"{platform.system()} {platform.machine()}",
        "onnxruntime": OrtBackend().version,
        "openvino": version_of("openvino"),
        "tensorrt": version_of("tensorrt"),
        "gpu": ", ".join([*gpus, f"CUDA {driver.version}"]) if driver is not None and gpus else "",
    }


def difference(then: Mapping[str, str], now: Mapping[str, str]) -> str:
    """Return the changes of an identity, such as ``"cores 8 → 2, openvino none → 2026.4.1"``; empty if none."""
    keys = [key for key in (*then, *(now.keys() - then.keys())) if then.get(key, "") != now.get(key, "")]
    return ", ".join(f"{key} {then.get(key) or 'none'} → {now.get(key) or 'none'}" for key in keys)


@dataclass(frozen=True, slots=True)
class Trial:
    """Tactic with the results of its last runs.

    Attributes:
        tactic: settings that were tried.
        excluded: why it cannot be chosen; empty if it can.
        frame: milliseconds per frame; None if it never ran.
        gain: speed relative to the default in the same runs, as the median; None if it never ran.
        memory_bytes: peak memory of its engine; None if not measured.
    """

    tactic: Tactic
    excluded: str = ""
    frame: Timing | None = None
    gain: float | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Tuned:
    """Result of a search.

    Attributes:
        default: tactic without tuning.
        chosen: fastest tactic that meets every bound; the default if none was certainly faster.
        gain: speed relative to the default, as the median of ``runs`` runs after the search; 1 for the default.
        runs: number of runs behind ``gain``; 0 for the default.
        live: whether it holds for live sources or for files.
        machine: properties of the machine that times depend on.
        tried: every tactic, fastest first; those that never ran come last.
        left_out: what was not searched → why.
    """

    default: Tactic
    chosen: Tactic
    gain: float
    runs: int
    live: bool
    machine: Mapping[str, str]
    tried: tuple[Trial, ...]
    left_out: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        plain: dict[str, Any] = TypeAdapter(Tuned).dump_python(self)
        return plain

    @property
    def summary(self) -> str:
        """Summary in one line."""
        if self.chosen == self.default:
            return f"{self.default} stays: none of {len(self.tried)} tactics is surely faster"
        return f"{self.chosen}: {self.gain:.2f} × as fast as {self.default} (n={self.runs})"


def tuned_of(data: Mapping[str, Any]) -> Tuned:
    """Return the result that :meth:`Tuned.to_json` stored. Raises ValueError: the data is no such result."""
    return TypeAdapter(Tuned).validate_python(data)


class Journal:
    """File of measurements, from which an interrupted search, or one with other budgets, resumes.

    It is for one machine and model, and used by one search at a time. A damaged file is replaced.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._known = path, dict[str, Any]()
        with suppress(OSError, ValueError, RecursionError):
            found = json.loads(path.read_text(encoding="utf-8"))
            self._known = found if isinstance(found, dict) else {}

    def once(self, question: object, answer: Callable[[], Any]) -> Any:
        """Return the measurement from the file as JSON values, or call ``answer`` and write its result.

        Raises ArtifactError: the file cannot be written.
        """
        key = digest_of(question)
        if key not in self._known:
            self._known[key] = answer()
            replace_text(self._path, json.dumps(self._known))
        return self._known[key]
