"""The tactics in a bundle: which of them hold on this machine, as keys of the pipeline file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from edgert.bundle.bundle import Bundle, open_bundle
from edgert.compiler.tuning_step import batching, is_live
from edgert.config import PipelineFile
from edgert.errors import ArtifactError

if TYPE_CHECKING:
    from edgert.tuner.trials import Tuned


@dataclass(frozen=True, slots=True)
class Tuning:
    """What comes of a bundle's tactics here.

    Attributes:
        overrides: keys of the models that run by one, as for ``--set``.
        members: the forms that these models run, which need not be those of the bundle's pipeline file.
        told: a line per model that has a tactic: what it is, or why it does not hold here.
    """

    overrides: tuple[str, ...] = ()
    members: tuple[str, ...] = ()
    told: tuple[str, ...] = ()


def tuning_of(bundle: Bundle, file: PipelineFile) -> Tuning:
    """Reads a bundle's tactics. One holds for the machine and the packages that it was measured with, and for cameras
    or for files; elsewhere the default engine runs, and that is said.

    Args:
        file: the bundle's pipeline, with what the user overrides.

    Raises:
        ArtifactError: a tactic cannot be read.
    """
    found = {name: tuned for name in bundle.manifest.models if (tuned := tuned_model(bundle, name)) is not None}
    if not found:
        return Tuning()
    from edgert.tuner.candidates import overrides
    from edgert.tuner.trials import identity

    machine, live = identity(), is_live(file)
    wrong = {name: _why_not(tuned, machine, live) for name, tuned in found.items()}
    forms = {
        name: bundle.manifest.models[name].forms[tuned.chosen.form] for name, tuned in found.items() if not wrong[name]
    }
    given = [overrides(name, found[name].chosen, form, batching(file.config, name)) for name, form in forms.items()]
    return Tuning(
        tuple(chain.from_iterable(given)),
        tuple(forms.values()),
        tuple(_told(name, tuned, wrong[name]) for name, tuned in found.items()),
    )


def tuned_model(bundle: Bundle, name: str) -> Tuned | None:
    """What a search found for a model of a bundle; None where there was none. Raises ArtifactError."""
    from edgert.tuner.trials import tuned_of

    member = bundle.manifest.models[name].files.get("tune")
    if member is None:
        return None
    try:
        return tuned_of(json.loads(bundle.read(member)))
    except (KeyError, TypeError, ValueError) as error:
        raise ArtifactError(
            f"cannot read how model {name!r} was tuned",
            why=str(error),
            where=f"{bundle.path} {member}",
            fix="build the bundle again with this edgert: edgert build PIPELINE --tune",
        ) from error


def tuned_models(path: Path) -> Mapping[str, Tuned]:
    """Model → what a search found for it, of a bundle on disk. Raises ArtifactError."""
    with open_bundle(path) as bundle:
        found = {name: tuned_model(bundle, name) for name in bundle.manifest.models}
    return {name: tuned for name, tuned in found.items() if tuned is not None}


def _why_not(tuned: Tuned, machine: Mapping[str, str], live: bool) -> str:
    from edgert.tuner.trials import difference

    changed = difference(tuned.machine, machine)
    if changed:
        return f"tuned where it was otherwise ({changed})"
    kinds = ("files", "cameras")
    return "" if tuned.live == live else f"tuned for {kinds[tuned.live]}, and this runs on {kinds[live]}"


def _told(name: str, tuned: Tuned, wrong: str) -> str:
    if wrong:
        return f"model {name}: {wrong}; the default engine runs. edgert build PIPELINE --tune tunes it again"
    return f"model {name} runs as tuned: {tuned.told}"
