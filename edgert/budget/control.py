"""Changes of the machine's power mode and the GPU's clock cap, only when the user allows them.

Every change is written to a journal before it is made. Changes are undone in reverse order: at exit or, after a crash,
when the next run begins. Nothing here reboots. A mode with another GPU mask needs a reboot and is refused, and
nvpmodel's question whether to reboot is answered NO. Root is needed, as for nvpmodel.
"""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType

from edgert.board.host import read_text
from edgert.board.nvpmodel import current_mode, power_modes
from edgert.errors import BudgetError, DeviceError
from edgert.meters.clocks import gpu_folder
from edgert.meters.reading import failure_of, read_small, shown_path

_LOG = logging.getLogger(__name__)
_JOURNAL = "var/lib/edgert/power.json"
_MODEL = re.compile(r"<\s*POWER_MODEL\b[^>]*\bNAME\s*=\s*(\S+?)\s*>([^<]*)")
_MASK = re.compile(r"^\s*(?:TPC|GPU|FBP)_POWER_GATING\b.*$", re.MULTILINE)
_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Change:
    """Change of ``mode`` or of the file of a clock cap, with the values before and after as the system writes them."""

    what: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.what}: {self.before} -> {self.after}"


def run_nvpmodel(command: Sequence[str]) -> str:
    """Run ``nvpmodel`` for at most 30 s, answer NO to its question, and return its output.

    Raises:
        DeviceError: nvpmodel cannot be run, takes too long, or fails.
    """
    try:
        done = subprocess.run(  # noqa: S603 - a fixed program; the only argument is a number
            command, input="NO\n", capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DeviceError("cannot run nvpmodel", why=str(error)) from error
    output = done.stdout + done.stderr
    if done.returncode or "NVPM ERROR" in output:
        last = output.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        raise DeviceError(
            "nvpmodel refused the power mode", why=last[0], fix="run edgert as root with --allow-power-control"
        )
    return output


class PowerControl:
    """Power settings that are changed inside a ``with`` block and restored at its end.

    Args:
        allow: whether the user allows changes by ``--allow-power-control``.
        dry_run: whether only to log changes, which needs neither permission nor root.
        root: root of the file system.
        run: function that runs ``nvpmodel``.

    Raises:
        BudgetError: a change is not allowed; raised by every change.
        DeviceError: the settings of a crashed run cannot be restored; raised at the start.
    """

    def __init__(
        self,
        *,
        allow: bool = False,
        dry_run: bool = False,
        root: Path = Path("/"),
        run: Callable[[Sequence[str]], str] = run_nvpmodel,
    ) -> None:
        self._allow, self._dry_run, self._root, self._run = allow, dry_run, root, run
        self._journal = root / _JOURNAL
        self._made: list[Change] = []

    @property
    def changes(self) -> tuple[Change, ...]:
        """Changes made, or logged in a dry run, the oldest first."""
        return tuple(self._made)

    def __enter__(self) -> PowerControl:
        if self._allow and not self._dry_run:
            self.recover()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.restore()

    def check(self) -> None:
        """Raise DeviceError if the journal cannot be written; a dry run writes none."""
        if self._dry_run:
            return
        folder = self._journal.parent
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DeviceError(f"cannot write {self._journal}", why=failure_of(error), fix="run as root") from error
        if not os.access(folder, os.W_OK):
            raise DeviceError(f"cannot write {self._journal}", why="not permitted", fix="run as root")

    def modes(self) -> tuple[str, ...]:
        """Return the power modes that can be selected without a reboot, including the present one."""
        masks, now = self._masks(), current_mode(self._root)
        return tuple(name for name, mask in masks.items() if mask == masks.get(now))

    def gpu_steps_hz(self) -> tuple[int, ...]:
        """Return the clocks at which the GPU can be capped; empty without a GPU or without a list of clocks."""
        folder = gpu_folder(self._root)
        if folder is None:
            return ()
        return tuple(int(text) for text in _read(folder / "available_frequencies").split() if text.isdigit())

    def set_mode(self, name: str) -> Change:
        """Switch to a power mode by its name and return the change.

        Raises:
            BudgetError: the change is not allowed, there is no such mode, or it needs a reboot.
            DeviceError: nvpmodel fails.
        """
        before = current_mode(self._root)
        masks = self._masks()
        if not before or name not in masks:
            known = ", ".join(masks) or "none: there is no nvpmodel here"
            raise BudgetError(f"cannot switch to power mode {name!r}", why=f"modes: {known}; now {before or 'unknown'}")
        if masks[name] != masks.get(before):
            why = f"{before} and {name} turn off different parts of the GPU, which needs a reboot"
            fix = f"change to {name} by hand: sudo nvpmodel -m NUMBER"
            raise BudgetError(f"will not switch to power mode {name}", why=why, fix=fix)
        return self._make(Change("mode", before, name))

    def cap_gpu(self, hz: int) -> Change:
        """Cap the GPU's clock at the fastest step up to ``hz`` and return the change.

        Raises:
            BudgetError: the change is not allowed, or all steps are faster.
            DeviceError: there is no GPU clock, or it cannot be written.
        """
        folder = gpu_folder(self._root)
        if folder is None:
            raise DeviceError("cannot cap the GPU clock", why="no GPU in /sys/class/devfreq")
        steps = self.gpu_steps_hz()
        slower = [step for step in steps if step <= hz]
        if not slower:
            slowest = f"the slowest step is {min(steps)} Hz" if steps else "it lists no steps"
            raise BudgetError(f"cannot cap the GPU at {hz} Hz", why=slowest)
        path = folder / "max_freq"
        return self._make(Change(shown_path(path, self._root), _read(path).strip(), str(max(slower))))

    def restore(self) -> None:
        """Undo every change, the newest first; a second call does nothing.

        Raises:
            DeviceError: a change cannot be undone.
        """
        while self._made:
            change = self._made[-1]
            if not self._dry_run:
                self._apply(Change(change.what, change.after, change.before))
            self._made.pop()
            self._write_journal()

    def recover(self) -> tuple[Change, ...]:
        """Undo and return the changes of a crashed run; raise BudgetError if another run is active."""
        left, owner = self._journaled()
        if owner:
            raise BudgetError("another edgert controls the power of this machine", why=f"process {owner}")
        if left:
            _LOG.warning("restoring power settings that a crashed run left: %s", "; ".join(map(str, left)))
            self._made = list(left)
            self.restore()
        return left

    def left(self) -> tuple[Change, ...]:
        """Return the changes that :meth:`recover` would undo; raise DeviceError if the journal cannot be read."""
        left, owner = self._journaled()
        return () if owner else left

    def _journaled(self) -> tuple[tuple[Change, ...], int]:
        """Return the changes in the journal, and the running process that made them, or 0 if it has ended."""
        try:
            data = json.loads(self._journal.read_text(encoding="utf-8"))
            changes = tuple(Change(**change) for change in data["changes"])
            owner, birth = int(data["pid"]), str(data["birth"])
        except FileNotFoundError:
            return (), 0
        except (OSError, ValueError, KeyError, TypeError) as error:
            fix = "check the power settings by hand, then remove the file"
            raise DeviceError(f"cannot read {self._journal}", why=str(error), fix=fix) from error
        lives = owner != os.getpid() and bool(birth) and self._birth(owner) == birth
        return changes, owner if lives else 0

    def _make(self, change: Change) -> Change:
        if not self._allow and not self._dry_run:
            fix = "run as root: edgert run --allow-power-control"
            raise BudgetError(f"cannot change {change}", why="power control is not allowed", fix=fix)
        if change.before == change.after:
            return change
        self._made.append(change)
        if self._dry_run:
            _LOG.info("would change %s", change)
            return change
        self._write_journal()
        try:
            self._apply(change)
        except DeviceError:
            self._made.pop()
            self._write_journal()
            raise
        return change

    def _apply(self, change: Change) -> None:
        _LOG.info("power: %s", change, extra={"code": "power.changed"})
        if change.what == "mode":
            modes = power_modes(self._root)
            numbers = {title: number for number, title in modes.names.items()} if modes else {}
            if change.after not in numbers:
                why = "nvpmodel's configuration file no longer lists it"
                raise DeviceError(f"power mode {change.after} no longer exists", why=why)
            self._run(("nvpmodel", "-m", str(numbers[change.after])))
            return
        path = self._root / change.what.lstrip("/")
        try:
            path.write_text(change.after)
        except OSError as error:
            raise DeviceError(f"cannot write {change.what}", why=failure_of(error), fix="run as root") from error

    def _masks(self) -> dict[str, str]:
        """Return name of a mode → its lines about parts of the GPU that are off."""
        modes = power_modes(self._root)
        if modes is None:
            return {}
        text = "\n".join(line for line in _read(self._root / modes.path.lstrip("/")).splitlines() if line[:1] != "#")
        return {name: " ".join(" ".join(_MASK.findall(body)).split()) for name, body in _MODEL.findall(text)}

    def _birth(self, pid: int) -> str:
        """Return the start time of a process in ticks since boot (proc(5): stat, field 22); empty for no process."""
        fields = read_text(self._root / "proc" / str(pid) / "stat").rpartition(")")[2].split()
        return fields[19] if len(fields) > 19 else ""

    def _write_journal(self) -> None:
        if self._dry_run:
            return
        try:
            if not self._made:
                self._journal.unlink(missing_ok=True)
                return
            self._journal.parent.mkdir(parents=True, exist_ok=True)
            draft, changes = self._journal.with_suffix(".new"), [asdict(change) for change in self._made]
            with draft.open("w", encoding="utf-8") as file:
                json.dump({"pid": os.getpid(), "birth": self._birth(os.getpid()), "changes": changes}, file)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(self._journal)
        except OSError as error:
            raise DeviceError(f"cannot write {self._journal}", why=failure_of(error), fix="run as root") from error


def _read(path: Path) -> str:
    """Return the text of a small system file, or of nvpmodel's longer one; raise DeviceError if it is unreadable."""
    try:
        return path.read_text(encoding="utf-8") if path.suffix == ".conf" else read_small(str(path))
    except OSError as error:
        raise DeviceError(f"cannot read {path}", why=failure_of(error)) from error
