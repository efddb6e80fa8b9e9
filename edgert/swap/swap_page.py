"""The report of a swap as a page of the live view, with frames on which the two models disagree."""

import base64
from collections.abc import Sequence

from edgert.report.page import Badge, Figure, Head, render
from edgert.swap import model_swap, shadow

_PHASE_LOOKS = {"refused": "bad", "back": "bad", "switched": "good", "done": "good"}


def render_page(pipeline: str, state: model_swap.State, disagreements: Sequence[shadow.Disagreement]) -> str:
    """Return the report as HTML, with at most eight frames of 480 pixels as images."""
    looked_at = "on every frame" if state.every == 1 else f"on one of {state.every} frames"
    figures = [
        Figure("Agreement", f"{state.agreement.mean:.3f}", f"at least {state.agreement.low:.3f}, with 95 % confidence"),
        Figure("Frames", f"{state.frames}", f"of {state.terms.shadow}; {state.empty} more without objects"),
        Figure("Run of the new model", _ms(state.run_ms), f"at most {_ms(state.allowed_ms)}; {looked_at}"),
    ]
    head = Head(
        f"{pipeline}: swap of {state.model}",
        "Swap of a model",
        f"{state.model} {state.digests[0]}",
        str(state),
        badges=[Badge(state.phase, _PHASE_LOOKS.get(state.phase, "open"))],
        figures=figures,
        advice=[f"New: {state.path} ({state.digests[0]}). Old: {state.digests[1]}."],
    )
    return render("swap.html.j2", head, {"frames": [_frame_row(one) for one in disagreements], "model": state.model})


def _frame_row(one: shadow.Disagreement) -> dict[str, object]:
    images = [f"data:image/jpeg;base64,{base64.b64encode(image).decode()}" for image in one.images]
    return {"images": images, "title": f"{one.stream} {one.frame}, stage {one.stage}: agreement {one.agreement:.2f}"}


def _ms(milliseconds: float | None) -> str:
    return "–" if milliseconds is None else f"{milliseconds:g} ms"
