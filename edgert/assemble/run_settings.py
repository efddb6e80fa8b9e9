"""The settings that a governor chooses among: fewer frames or streams, smaller models, lower clocks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from edgert.budget.control import PowerControl
from edgert.budget.rules import Setting


@dataclass(frozen=True, slots=True)
class PowerStep:
    """A clock setting of a board: a power mode, or a cap of the GPU's clock, with what is predicted of it.

    Attributes:
        name: for people; empty for the clocks it was found with.
        power_w: drawn at the rates that the pipeline asks for, or at what it sustains where that is less.
        idle_w: of that, without work.
        headroom: how many times the asked rates it sustains.
        latency_ms: 99th percentile of engines.
        mode: power mode to switch to; empty: that it was found in.
        gpu_hz: cap of the GPU's clock; 0: none.
    """

    name: str
    power_w: float
    idle_w: float
    headroom: float
    latency_ms: float
    mode: str = ""
    gpu_hz: int = 0

    def sustained(self, work: float = 1.0) -> float:
        """Part of the asked rates that goes through, of frames that are so much of the work that was planned."""
        return min(1.0, self.headroom / work)

    def drawn_w(self, share: float, work: float = 1.0) -> float:
        """At so large a part of the asked rates."""
        at_requested_w = (self.power_w - self.idle_w) / self.sustained()
        return self.idle_w + at_requested_w * work * min(share, self.sustained(work))


class PowerSteps:
    """Steps of the board's clocks, each relative to the clocks found at the start. For one thread.

    Args:
        steps: the first is the clocks it was found with.
        control: restores it at its own end; owned by the caller that entered it.
    """

    def __init__(self, steps: Sequence[PowerStep], control: PowerControl) -> None:
        self.steps, self._control = tuple(steps), control
        self._now = self.steps[0]

    def take(self, step: PowerStep) -> None:
        """Set the board to that step; do nothing if it already is. Blocks for a second where nvpmodel is asked.

        Raises:
            BudgetError: the mode takes a reboot, or is gone.
            DeviceError: it cannot be changed.
        """
        if step == self._now:
            return
        self._control.restore()
        self._now = self.steps[0]
        if step.mode:
            self._control.set_mode(step.mode)
        if step.gpu_hz:
            self._control.cap_gpu(step.gpu_hz)
        self._now = step


_STEPS = 10  # of the share of frames that goes on
FINER = 0.9
"""Least part of a setting's frames that a governor may reduce it to: below it, the next tenth is another setting."""
_FEWER = 3  # tenths: below this, streams are left out one by one


@dataclass(frozen=True, slots=True)
class RunSetting:
    """Combination of frame shares, models and clocks that a governor can set in a running pipeline.

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

    def at(level: int, names: tuple[str, ...], tenths: int, count: int) -> RunSetting:
        shares = {stream: tenths / _STEPS * (place < count) for place, stream in enumerate(streams)}
        return RunSetting(shares, level, names)

    even = [(tenths, len(streams)) for tenths in range(_STEPS, _FEWER - 1, -1)]
    fewer = [(_FEWER, count) for count in range(len(streams) - 1, 0, -1)]
    steps = (*even, *fewer, *((tenths, 1) for tenths in range(_FEWER - 1, 0, -1)))
    return tuple(at(level, names, *step) for level, names in enumerate(((), *smaller)) for step in steps)


def predicted_setting(
    setting: RunSetting, rates_hz: Mapping[str, float], step: PowerStep, work: float = 1.0
) -> Setting:
    """Return the governor's setting for a run setting: its predicted power, throughput and latency.

    Args:
        setting: the run setting.
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
    """Return the settings at every clock of the board; unchanged where the board has only one."""
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
