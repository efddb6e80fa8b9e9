"""The settings that a governor chooses among: fewer frames or streams, smaller models, lower clocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from edgert.assemble.board_watts import PowerStep
from edgert.budget.governor import Setting
from edgert.config import PipelineFile
from edgert.errors import ConfigError
from edgert.stages.label import read_labels

# What models that can replace each other at run time must have in common, as far as their engines and files show.


def check_labels(file: PipelineFile, variants: Sequence[str]) -> None:
    """Raises ConfigError where models that can replace each other number their classes differently."""
    first, *others = [_labels(file, name) for name in variants]
    for name, labels in zip(variants[1:], others, strict=True):
        if labels != first:
            raise ConfigError(
                f"models {variants[0]!r} and {name!r} have other classes",
                why="tracks, crops and whoever reads results go by the class number, which must mean the same in both",
                where=file.where("models", name, "task"),
                fix="the same labels file for both",
            )


def check_together(file: PipelineFile, on_gpu: Mapping[str, bool]) -> None:
    """Raises ConfigError where of models that can replace each other some are on the GPU and others are not."""
    if len(set(on_gpu.values())) > 1:
        away = [name for name, is_there in on_gpu.items() if not is_there]
        raise ConfigError(
            f"model {away[0]!r} is not on the GPU, unlike the models it takes turns with",
            why="frames come to all of them in the same memory",
            where=file.where("models", away[0]),
            fix="the same engine and backend for all, and an input that can be prepared on the GPU",
        )


def _labels(file: PipelineFile, name: str) -> tuple[str, ...]:
    path = file.config.models[name].task.labels
    return read_labels(path, file.where("models", name, "task")) if path else ()


_STEPS = 10  # of the share of frames that goes on
FINER = 0.9
"""Least part of a setting's frames that a governor may reduce it to: below it, the next tenth is another setting."""
_FEWER = 3  # tenths: below this, streams are left out one by one


@dataclass(frozen=True, slots=True)
class RunSetting:
    """What a governor can change in a running pipeline: one combination of frame shares, models and clocks.

    Attributes:
        shares: stream → share of its frames that go on, those first that are the last to stop.
        level: how far models are degraded; 0: not at all.
        smaller: models that replace others at that level.
        step: how the board is clocked; None: as it is.
    """

    shares: Mapping[str, float]
    level: int = 0
    smaller: tuple[str, ...] = ()
    step: PowerStep | None = None

    @property
    def name(self) -> str:
        """``"40 % of the frames, without yard, with parts-small, GPU at 612 MHz"``."""
        most = max(self.shares.values())
        frames = "all frames" if most >= 1 else f"{round(100 * most)} % of the frames"
        closed = [stream for stream, share in self.shares.items() if share == 0]
        without = f"without {' and '.join(closed)}" if closed else ""
        models = f"with {' and '.join(self.smaller)}" if self.smaller else ""
        return ", ".join(filter(None, (frames, without, models, self.step.name if self.step else "")))


def run_settings(streams: tuple[str, ...], smaller: Sequence[tuple[str, ...]] = ()) -> tuple[RunSetting, ...]:
    """Fewer frames of all streams, evenly, down to 30 %; then fewer streams; then fewer frames of the first.

    Args:
        streams: the last of them stops first; see :func:`edgert.config.flow.streams_of`.
        smaller: for each level of degraded models, those in use; all of the settings once more for each.
    """
    levels = enumerate(((), *smaller))
    return tuple(setting for level, names in levels for setting in _settings_at(level, names, streams))


def _settings_at(level: int, names: tuple[str, ...], streams: tuple[str, ...]) -> tuple[RunSetting, ...]:
    def reduced(tenths: int, count: int) -> RunSetting:
        shares = {stream: tenths / _STEPS * (place < count) for place, stream in enumerate(streams)}
        return RunSetting(shares, level, names)

    even = [reduced(tenths, len(streams)) for tenths in range(_STEPS, _FEWER - 1, -1)]
    fewer = [reduced(_FEWER, count) for count in range(len(streams) - 1, 0, -1)]
    return (*even, *fewer, *(reduced(tenths, 1) for tenths in range(_FEWER - 1, 0, -1)))


def predicted_setting(
    setting: RunSetting, rates_hz: Mapping[str, float], step: PowerStep, work: float = 1.0
) -> Setting:
    """The governor's setting for a run setting: its predicted power, throughput and latency.

    Args:
        rates_hz: stream → frames a second, if all go on.
        step: the board as it is then, under all frames.
        work: of a frame, of that for which the step was predicted.
    """
    total_hz, most = sum(rates_hz.values()), step.sustained(work)
    share = sum(rates_hz[stream] * share for stream, share in setting.shares.items()) / total_hz
    least = FINER if share <= most else 1.0  # of frames that come too fast for it, fewer would change nothing
    hz, latency_ms = total_hz * min(share, most), step.latency_ms * work
    return Setting(setting.name, step.drawn_w(share, work), hz, latency_ms, setting.level, step.idle_w, least)


def clocked(found: Sequence[RunSetting], steps: Sequence[PowerStep]) -> tuple[RunSetting, ...]:
    """The settings at every clock of the board; unchanged where the board has only one."""
    return tuple(replace(setting, step=step) for step in steps for setting in found) or tuple(found)


def worthwhile(settings: Sequence[Setting]) -> list[int]:
    """Those that no other is better than in frames, power, latency and model, by prediction; the first in any case.

    A board's clocks multiply the settings, and a governor looks at all of them twice a second.
    """

    def numbers(setting: Setting) -> tuple[float, ...]:
        return (-setting.throughput, setting.power_w, setting.latency_ms, setting.accuracy_rank)

    def is_worse(index: int) -> bool:
        mine = numbers(settings[index])
        others = ((number, numbers(other)) for number, other in enumerate(settings) if number != index)
        return any(
            all(ours <= own for ours, own in zip(theirs, mine, strict=True)) and (theirs != mine or number < index)
            for number, theirs in others
        )

    return [index for index in range(len(settings)) if index == 0 or not is_worse(index)]
