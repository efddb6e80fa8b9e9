"""Settings among which a governor chooses: fewer frames or streams, smaller models, lower clocks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from edgert.budget.control import PowerControl
from edgert.budget.rules import Setting


@dataclass(frozen=True, slots=True)
class PowerStep:
    """A clock setting of a board, which is a power mode or a cap of the GPU's clock, with its predictions.

    Attributes:
        power_w: power at the requested frame rates, or at the highest rates that the board sustains if these are lower.
        idle_w: power without work, contained in ``power_w``.
        headroom: sustained frame rates relative to the requested ones.
    """

    name: str
    power_w: float
    idle_w: float
    headroom: float
    latency_ms: float
    mode: str = ""
    gpu_hz: int = 0

    def sustained(self, work: float = 1.0) -> float:
        """Return the sustained fraction of the requested rates; ``work`` is the work per frame relative to the plan."""
        return min(1.0, self.headroom / work)

    def drawn_w(self, share: float, work: float = 1.0) -> float:
        """Return the power drawn at this fraction of the requested frame rates."""
        at_requested_w = (self.power_w - self.idle_w) / self.sustained()
        return self.idle_w + at_requested_w * work * min(share, self.sustained(work))


class PowerSteps:
    """Control of the board's clocks by steps. For one thread.

    The first step is that at the start. ``control`` is owned by the caller.
    """

    def __init__(self, steps: Sequence[PowerStep], control: PowerControl) -> None:
        self.steps, self._control = tuple(steps), control
        self._now = self.steps[0]

    def take(self, step: PowerStep) -> None:
        """Set the board to a step, unless it is set already. Blocks for a second if nvpmodel is called.

        Raises BudgetError: the mode needs a reboot, or no longer exists. Raises DeviceError: the clocks cannot be
        changed.
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


_TENTHS = 10  # steps of the share of frames that pass
LEAST_SHARE = 0.9
"""Smallest share to which a governor may reduce a setting's frames; below it, the next setting takes over."""
_LEAST_TENTHS = 3  # tenths of the frames, below which streams are left out one by one


@dataclass(frozen=True, slots=True)
class RunSetting:
    """A combination of frame shares, models and clocks that a governor can set in a running pipeline.

    Attributes:
        shares: share of frames that pass, by stream; the first stream is the last to stop.
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
    """Return settings with fewer frames of all streams, to 30 %; then fewer streams; then fewer frames of the first.

    The last stream stops first. All settings are repeated for each degradation level.
    """

    def at(level: int, names: tuple[str, ...], tenths: int, count: int) -> RunSetting:
        shares = {stream: tenths / _TENTHS * (place < count) for place, stream in enumerate(streams)}
        return RunSetting(shares, level, names)

    even = [(tenths, len(streams)) for tenths in range(_TENTHS, _LEAST_TENTHS - 1, -1)]
    fewer = [(_LEAST_TENTHS, count) for count in range(len(streams) - 1, 0, -1)]
    steps = (*even, *fewer, *((tenths, 1) for tenths in range(_LEAST_TENTHS - 1, 0, -1)))
    return tuple(at(level, names, *step) for level, names in enumerate(((), *smaller)) for step in steps)


def predicted_setting(
    setting: RunSetting, rates_hz: Mapping[str, float], step: PowerStep, work: float = 1.0
) -> Setting:
    """Return the governor's setting for a run setting, with predicted power, throughput and latency.

    ``work`` is that per frame relative to that of the prediction.
    """
    total_hz, most = sum(rates_hz.values()), step.sustained(work)
    share = sum(rates_hz[stream] * share for stream, share in setting.shares.items()) / total_hz
    least = LEAST_SHARE if share <= most else 1.0  # where frames are too fast anyway, fewer would change nothing
    hz, latency_ms = total_hz * min(share, most), step.latency_ms * work
    return Setting(setting.name, step.drawn_w(share, work), hz, latency_ms, setting.level, step.idle_w, least)


def with_clock_steps(found: Sequence[RunSetting], steps: Sequence[PowerStep]) -> tuple[RunSetting, ...]:
    """Return the settings repeated for every clock setting of the board; unchanged without clock settings."""
    return tuple(replace(setting, step=step) for step in steps for setting in found) or tuple(found)


def pareto_optimal(settings: Sequence[Setting]) -> list[int]:
    """Return the numbers of the first and of all Pareto-optimal settings by frames, power, latency and accuracy.

    A board's clocks multiply the settings, and a governor evaluates all of them twice a second.
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
