"""Command that fits every chip, prints the results and writes the files."""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from edgert.placement.cost.coefficients import Coefficients, Sisters
from tools.fitting import together
from tools.fitting.chip import Chip, accuracy, fit_chip, text
from tools.fitting.parts import contention_error, fit_contention, fit_transition
from tools.fitting.published import PUBLISHED
from tools.fitting.sisters import fit_sisters
from tools.fitting.solve import Trial

SOCS = ("tegra234", "tegra194", "tegra264", "tegra210")
"""Chips with published rows, the one with the most first."""
_LIKE = {"tegra186": ("tegra210", "nothing is published for TX2 here; Jetson Nano's, which has no tensor cores either")}


def main(arguments: Sequence[str]) -> int:
    """Return the exit code: 1 if ``--check`` finds a file that differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; say which files would change")
    is_check = parser.parse_args(arguments).check
    chips = fit_all()
    for chip in chips:
        _print(chip)
    return _keep([chip.coefficients for chip in chips], sisters_of(chips), is_check=is_check)


def fit_all() -> list[Chip]:
    """Return the fits of all chips with published rows, the one with most rows first."""
    contention = fit_contention()
    print(f"contention: {contention}, mean error {contention_error(contention.ceiling, contention.floor):.1%}")
    chips: list[Chip] = []
    for soc in SOCS:
        chips.append(fit_chip(soc, contention, chips[0] if chips else None))
    transition = fit_transition(next(chip.coefficients.gpu for chip in chips if chip.coefficients.soc == "tegra194"))
    bars = accuracy({**{chip.coefficients.soc: chip for chip in chips}, **dict.fromkeys(_LIKE)})
    made = []
    for chip in chips:
        own, soc = bars[chip.coefficients.soc], chip.coefficients.soc
        known = {"gpu": own["gpu"]} | ({"dla": own["dla"]} if chip.dla else {})
        shares = contention
        if chip.coefficients.dla is not None and soc not in together.CLOSELY:
            shares = together.fit_shares(together.rates(soc), chip.coefficients.gpu, chip.coefficients.dla, contention)
        update = {"transition": transition, "accuracy": known, "contention": shares}
        made.append(replace(chip, coefficients=chip.coefficients.model_copy(update=update)))
    return made


def sisters_of(chips: Sequence[Chip]) -> Sisters:
    return fit_sisters({chip.coefficients.soc: chip.trials() for chip in chips})


def _keep(found: Sequence[Coefficients], sisters: Sisters, *, is_check: bool) -> int:
    texts = {item.soc: text(item) for item in (*found, *_borrowed(found))} | {"sisters": text(sisters)}
    changed = [soc for soc, new in texts.items() if _file(soc).read_text(encoding="utf-8") != new]
    for soc in changed:
        print(f"{_file(soc).name}: {'differs' if is_check else 'written'}")
        if not is_check:
            _file(soc).write_text(texts[soc], encoding="utf-8")
    return int(is_check and bool(changed))


def _borrowed(found: Sequence[Coefficients]) -> Iterator[Coefficients]:
    """Yield chips without published rows, with the coefficients of the most similar chip and no accuracy."""
    for soc, (like, why) in _LIKE.items():
        base = next(item for item in found if item.soc == like)
        nothing = {"rows": 0, "models": 0, "publishers": 0}
        unseen = {
            kind: {name: one.model_copy(update=nothing) for name, one in own.items()}
            for kind, own in base.accuracy.items()
        }
        yield base.model_copy(update={"soc": soc, "accuracy": unseen, "assumed": {**base.assumed, "gpu": why}})


def _file(soc: str) -> Path:
    return PUBLISHED.with_name(f"{soc}.yaml")


def _print(chip: Chip) -> None:
    print(f"\n{chip.coefficients.soc}: published and predicted milliseconds, by a fit that left the network out, ratio")
    for fit in filter(None, (chip.gpu, chip.dla)):
        for trial in fit.trials():
            _print_trial(trial)
    for key, value in chip.coefficients.model_dump(exclude={"sources"}).items():
        print(f"  {key}: {value}")


def _print_trial(trial: Trial) -> None:
    row = trial.row
    part = "" if row.part is None else f" layer {row.part}"
    print(
        f"  {row.board.name:20} {row.mode.name:15} {row.model + part:26} {row.size:5} {row.precision} b{row.batch:<3}"
        f"{row.accelerator:5}{row.time_ms:9.3f}{trial.predicted_ms:9.3f}  x{trial.predicted_ms / row.time_ms:.2f}"
    )
