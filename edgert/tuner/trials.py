"""Results of a search: trials of tactics, the chosen one, and the journal that an interrupted search resumes from."""

import json
import platform
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from edgert.backend.ort import OrtBackend
from edgert.board.devices import cuda_driver
from edgert.board.host import core_count, cpu_name
from edgert.files import replace_text
from edgert.quantization.throughput import Timing
from edgert.steps import digest_of
from edgert.tuner.candidates import Tactic, tactic_of

# Facts that times depend on besides the model: a tactic holds for this machine, with these packages, and no other.


def identity() -> dict[str, str]:
    """Return processor, cores, system, GPUs, and the versions of the libraries that run models here.

    Raises:
        DeviceError: ONNX Runtime is not installed.
    """
    driver = cuda_driver()
    gpus = [gpu.name for gpu in driver.gpus] if driver is not None else []
    return {
        "cpu": cpu_name(),
        "cores": str(core_count()),
        "system": f"{platform.system()} {platform.machine()}",
        "onnxruntime": OrtBackend().version,
        "openvino": _version("openvino"),
        "tensorrt": _version("tensorrt"),
        "gpu": ", ".join([*gpus, f"CUDA {driver.version}"]) if driver is not None and gpus else "",
    }


def difference(then: Mapping[str, str], now: Mapping[str, str]) -> str:
    """Return ``"cores 8 → 2, openvino none → 2026.4.1"``; empty where nothing differs."""
    keys = [key for key in (*then, *(now.keys() - then.keys())) if then.get(key, "") != now.get(key, "")]
    return ", ".join(f"{key} {then.get(key) or 'none'} → {now.get(key) or 'none'}" for key in keys)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


@dataclass(frozen=True, slots=True)
class Trial:
    """One tactic, with the results of its last runs.

    Attributes:
        tactic: the tactic.
        excluded: why it cannot be chosen, however fast; empty where it can.
        frame: milliseconds per frame; None where it never ran.
        gain: how many times as fast as the default in the same runs, the median; None where it never ran.
        memory_bytes: memory that its engine adds to a process at its peak; None where that was not measured.
    """

    tactic: Tactic
    excluded: str = ""
    frame: Timing | None = None
    gain: float | None = None
    memory_bytes: int | None = None


def trial_of(data: Mapping[str, Any]) -> Trial:
    """Return a trial from its dict."""
    frame = Timing(**data["frame"]) if data["frame"] else None
    return Trial(**{**data, "tactic": tactic_of(data["tactic"]), "frame": frame})


@dataclass(frozen=True, slots=True)
class Tuned:
    """The result of a search.

    Attributes:
        default: what runs without it.
        chosen: the fastest that meets every bound; the default where none was surely faster.
        gain: how many times as fast as the default, the median of ``runs`` runs after the search; 1 for itself.
        runs: runs behind ``gain``; 0 for the default itself.
        live: whether it holds for cameras, or for files.
        machine: what the times depend on.
        tried: every tactic, fastest first; those that never ran come last.
        left_out: what could not be searched here → why.
    """

    default: Tactic
    chosen: Tactic
    gain: float
    runs: int
    live: bool
    machine: Mapping[str, str]
    tried: Sequence[Trial]
    left_out: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)

    @property
    def summary(self) -> str:
        """Summary in one line."""
        if self.chosen == self.default:
            return f"{self.default} stays: nothing of {len(self.tried)} tactics is surely faster"
        return f"{self.chosen}: {self.gain:.2f} × as fast as {self.default} (n={self.runs})"


def tuned_of(data: Mapping[str, Any]) -> Tuned:
    """Return the result that :meth:`Tuned.to_json` stored.

    Raises:
        TypeError: the data is of another edgert.
        KeyError: likewise.
    """
    found = {"default": tactic_of(data["default"]), "chosen": tactic_of(data["chosen"])}
    return Tuned(**{**data, **found, "tried": tuple(map(trial_of, data["tried"]))})


# Measurements on disk: an interrupted search resumes from them, and one with other budgets reads them, too.


class Journal:
    """A file of measurements, keyed by what was measured.

    Args:
        path: made when first written to; a damaged one is started over. It is for one machine and model, and used by
            one search at a time.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._known = path, dict[str, Any]()
        with suppress(OSError, ValueError):
            found = json.loads(path.read_text(encoding="utf-8"))
            self._known = found if isinstance(found, dict) else {}

    def once(self, requested: object, answer: Callable[[], Any]) -> Any:
        """Return the measurement from the file, as plain data; else measure and write it.

        Raises:
            ArtifactError: the file cannot be written.
        """
        key = digest_of(requested)
        if key not in self._known:
            self._known[key] = answer()
            replace_text(self._path, json.dumps(self._known))
        return self._known[key]
