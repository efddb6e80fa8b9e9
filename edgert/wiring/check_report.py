"""The report of ``edgert check``, as plain records."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from edgert.runtime import Record
from edgert.runtime.frame import U8
from edgert.wiring.settings import GROUPS, Setting

Verdict = Literal["fine", "wrong", "unclear"]


@dataclass(frozen=True, slots=True)
class Row:
    """One setting's evidence, summed up.

    Attributes:
        setting: ``input`` and ``task`` as they would be written.
        names: the same in a few words, by group.
        written: whether it is what the file has.
        score: what settings are ranked by: ``answers`` plus every ``memory``.
        answers: 0 to 1, mean over photos.
        memory: source → 0 to 1, how well the input fits what the model remembers of its training.
        found, confirmed, chance: means of :class:`~edgert.wiring.evidence.Evidence` over photos.
        behind: standard errors behind the best; below 2 the photos do not distinguish the two.
        same: 0 to 1, how far its records agree with the best one's.
        photos: how many photos it was tried on; hopeless settings on fewer.
    """

    setting: Mapping[str, Any]
    names: Mapping[str, str]
    written: bool
    score: float
    answers: float
    memory: Mapping[str, float]
    found: float
    confirmed: float
    chance: float
    behind: float
    same: float
    photos: int


@dataclass(frozen=True, slots=True)
class Finding:
    """A line of the pipeline file that looks wrong.

    Attributes:
        where: ``file:line key.path`` of the line, or of the section it is missing from.
        key: ``input.color``, ``task.detect``, ...
        written: the file's value, as YAML; for a missing key the default.
        missing: whether the file has no such key.
        better: what to write instead, as YAML.
        sure: whether the photos alone show this line's fault; otherwise it goes with the other findings.
        behind: how many standard errors the file's value costs, with everything else right.
    """

    where: str
    key: str
    written: str
    missing: bool
    better: str
    sure: bool
    behind: float

    def __str__(self) -> str:
        problem = (
            f"is not written, which means {self.written}"
            if self.missing
            else f"{self.written} {'looks' if self.sure else 'is probably'} wrong"
        )
        return f"{self.where}: {problem}; write {self.better}"


@dataclass(frozen=True, slots=True)
class CheckReport:
    """The result of a check.

    Attributes:
        model: name of the model in the pipeline file.
        photos: the photos it was tried on.
        verdict: ``fine``; ``wrong``: another setting is clearly better; ``unclear``: photos cannot decide, or nothing
            was found on them.
        summary: the verdict in a sentence.
        findings: lines that look wrong, the costliest first.
        ties: sentences about what these photos cannot distinguish.
        known: what the model's file or its family declares about its input, and where; empty when nothing does.
        more_photos: about how many more may decide it; None where photos will not.
        rows: all settings that were tried, the best first.
        runs: how often the engine ran.
        best: the best setting itself; ``written`` the file's; not part of the JSON.
        metric: what settings were ranked by, where the images have labels; empty otherwise.
        record, image: of the first photo with the best setting; not part of the JSON.
    """

    model: str
    photos: tuple[str, ...]
    verdict: Verdict
    summary: str
    findings: tuple[Finding, ...]
    ties: tuple[str, ...]
    known: str
    more_photos: int | None
    rows: tuple[Row, ...]
    runs: int
    best: Setting
    written: Setting
    record: Record
    image: U8
    metric: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        names = ("model", "photos", "verdict", "summary", "ties", "known", "more_photos", "runs", "metric")
        lists = {"findings": [asdict(one) for one in self.findings], "rows": [asdict(one) for one in self.rows]}
        return {**{name: _plain(getattr(self, name)) for name in names}, **_plain(lists)}


def yaml_value(value: object) -> str:
    """Return a value as the pipeline file writes it."""
    if isinstance(value, (tuple, list)):
        return yaml_value(value[0]) if len(value) == 1 else f"[{', '.join(map(yaml_value, value))}]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {yaml_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, float):
        return f"{value:.7g}"
    if isinstance(value, (bool, Path)):
        return json.dumps(str(value)) if isinstance(value, Path) else str(value).lower()
    return str(value)


def described(setting: Setting) -> dict[str, Any]:
    """Return a setting as the file would write it, without keys that have no effect."""
    parts = {key: value for group in GROUPS for key, value in setting.part(group).items()}
    order = ("resize", "anchor", "pad", "crop", "color", "mean", "std")
    return {"input": {key: _plain(parts[key]) for key in order if key in parts}, "task": _plain(setting.part("task"))}


def _plain(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return _plain(value[0]) if len(value) == 1 and isinstance(value[0], float) else [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return round(value, 6) if isinstance(value, float) else value
