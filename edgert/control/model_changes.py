"""Operations on the models of a running pipeline: swap and back."""

from pathlib import Path
from typing import Any

from edgert.control.controlled import Controlled
from edgert.errors import StageError, nearest

SHADOW, MIN_AGREEMENT, KEEP_S = 500, 0.97, 600.0
"""Default number of shadow frames, least agreement, and seconds for which the old model is kept."""


def swap(
    run: Controlled,
    model: str,
    path: str,
    shadow: int = SHADOW,
    min_agreement: float = MIN_AGREEMENT,
    keep: float = KEEP_S,
) -> dict[str, Any]:
    """Begin to swap a model; see :meth:`Control.swap`."""
    from edgert.swap.model_swap import ModelSwap  # imported for the first swap
    from edgert.swap.swap_page import render_page
    from edgert.swap.verdict import Terms

    for name, other in run.swaps.items():
        if not other.wait(0) and (name == model or other.state.phase != "switched"):
            fix = f"wait until it has ended, or edgert ctl back {name}"
            raise StageError("a swap is under way", why=f"model {name!r}: {other.state}", fix=fix)
    made = ModelSwap(run, model, Path(path), Terms(shadow, min_agreement, keep))
    made.start()
    run.swaps[model] = made
    run.assembly.hooks.swap_page = lambda: render_page(run.file.config.name, made.state, made.disagreements)
    return made.state.to_json()


def back(run: Controlled, model: str) -> dict[str, Any]:
    """Switch back to the previous model; see :meth:`Control.back`."""
    models = run.file.config.models
    if model not in models:
        raise StageError(f"unknown model {model!r}{nearest(model, models)}", fix=f"models: {', '.join(models)}")
    if model not in run.swaps:
        raise StageError(f"model {model!r} was not swapped", fix=f"edgert ctl swap {model} NEW.onnx")
    run.swaps[model].back("edgert ctl back requested it")
    return run.swaps[model].state.to_json()
