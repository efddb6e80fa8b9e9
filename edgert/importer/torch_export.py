"""PyTorch's two exporters to ONNX: torch.export, and the older TorchScript, which is tried if the first fails.

TorchScript's exporter traces one run, and keeps the branches that this run took. Its models are therefore compared on a
second input, too.
"""

import inspect
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgert.errors import BuildError
from edgert.importer.conversion_process import Request

_NEWEST_TORCHSCRIPT_OPSET = 20
"""Newest opset that TorchScript's exporter writes."""
_TRACE_ERRORS = (RuntimeError, TypeError, ValueError, IndexError, KeyError, AttributeError)
"""Errors of a traced module; the exporter's own errors are RuntimeErrors."""


@dataclass(frozen=True, slots=True)
class Call:
    """A module in evaluation mode or exported program, and one call of it with its results.

    ``is_traced_first``: TorchScript's exporter is tried first, since the other one is known to fail.
    """

    module: Any
    inputs: Sequence[Any]
    named: Mapping[str, Any]
    results: Any
    is_traced_first: bool = False


@dataclass(frozen=True, slots=True)
class Exported:
    """A written ONNX model: input shapes by name, output names, and its exporter, maybe one that traced a run."""

    inputs: Mapping[str, Any]
    outputs: Sequence[str]
    exporter: str
    is_traced: bool = False


def export(torch: Any, call: Call, dynamic: Any, request: Request, path: Path) -> Exported:
    """Write a module as ONNX with the first exporter that succeeds. Raises BuildError with the reason of each.

    ``dynamic`` are torch.export's open dimensions by parameter; None: all sizes are fixed.
    """
    exporters = [("torch.export", _export_program), ("TorchScript", _export_trace)]
    if not isinstance(call.module, torch.nn.Module):
        exporters.pop()
    elif call.is_traced_first:
        exporters.reverse()
    failed: dict[str, str] = {}
    for name, exporter in exporters:
        try:
            made = exporter(torch, call, dynamic, request, path)
        except (torch.onnx.OnnxExporterError, *_TRACE_ERRORS) as error:
            failed[name] = reason_of(error)
            continue
        if failed:
            made = Exported(made.inputs, made.outputs, f"{made.exporter}; {_join_reasons(failed)}", made.is_traced)
        return made
    fix = "remove what depends on values of the input; torch.export.export(module, inputs) alone shows more"
    raise BuildError(
        f"PyTorch cannot export {request.source}",
        why=_join_reasons(failed),
        fix=f"{fix}, and so does torch.onnx.export(module, inputs, 'm.onnx', dynamo=False)",
    )


def _join_reasons(failed: Mapping[str, str]) -> str:
    return "; ".join(f"{name} cannot: {reason}" for name, reason in failed.items())


def _export_program(torch: Any, call: Call, dynamic: Any, request: Request, path: Path) -> Exported:
    made = torch.onnx.export(
        call.module,
        tuple(call.inputs),
        kwargs=dict(call.named),
        dynamo=True,
        output_names=output_names(call.results),
        opset_version=request.opset,
        dynamic_shapes=dynamic,
        verbose=False,
    )
    made.save(str(path))
    graph = made.model.graph
    inputs = {str(value.name): value.shape for value in graph.inputs}
    return Exported(inputs, [str(value.name) for value in graph.outputs], "torch.onnx.export(dynamo=True)")


def _export_trace(torch: Any, call: Call, dynamic: Any, request: Request, path: Path) -> Exported:
    inputs = dict(_input_names(call))
    outputs = output_names(call.results) or [f"output_{n}" for n, _ in enumerate(tensors(call.results))]
    axes = {
        name: {axis: wanted for axis, wanted in enumerate(names) if wanted} for name, names in request.dynamic.items()
    }
    axes |= {name: {0: "objects"} for name in outputs if detections(call.results) is not None}
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # warnings of branches on values, whose effect a second input shows
        torch.onnx.export(
            call.module,
            (*call.inputs, dict(call.named)) if call.named else tuple(call.inputs),
            str(path),
            dynamo=False,
            input_names=list(inputs),
            output_names=outputs,
            opset_version=min(request.opset, _NEWEST_TORCHSCRIPT_OPSET),
            dynamic_axes=axes,
        )
    shapes = {
        name: [axes.get(name, {}).get(axis, int(size)) for axis, size in enumerate(tensor.shape)]
        for name, tensor in inputs.items()
    }
    return Exported(shapes, outputs, "torch.onnx.export(dynamo=False), of TorchScript", True)


def inverted_inputs(torch: Any, value: Any) -> Any:
    """Return inputs of the same form whose values are inverted between their smallest and largest, as in a negative."""
    if isinstance(value, torch.Tensor):
        if not value.is_floating_point() or not value.numel():
            return value
        low, high = value.min(), value.max()
        return -value if bool(low == high) else low + high - value
    if isinstance(value, Mapping):
        return {name: inverted_inputs(torch, one) for name, one in value.items()}
    if isinstance(value, (tuple, list)):
        return getattr(value, "_make", type(value))(inverted_inputs(torch, one) for one in value)
    return value


def detections(results: Any) -> Mapping[str, Any] | None:
    """Return the boxes, labels and scores that torchvision's detectors return for one image; None for other results."""
    if isinstance(results, (tuple, list)) and len(results) == 1 and isinstance(results[0], Mapping):
        return results[0] if {"boxes", "labels", "scores"} <= results[0].keys() else None
    return None


def output_names(results: Any) -> list[str] | None:
    """Return the names in a dict of outputs; None for other outputs, which PyTorch names."""
    found = detections(results) or results
    if isinstance(found, Mapping) and all(hasattr(one, "detach") for one in found.values()):
        return [str(name) for name in found]
    return None


def tensors(value: Any) -> Iterator[Any]:
    """Yield the tensors in nested tuples, lists and dicts, in order."""
    if hasattr(value, "detach"):
        yield value
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from tensors(one)
    elif isinstance(value, (tuple, list)):
        for one in value:
            yield from tensors(one)


def reason_of(error: BaseException) -> str:
    """Return the first line of the innermost cause, which exporters wrap in long advice."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0].strip() if lines else ''}".rstrip(": ")


def _input_names(call: Call) -> Iterator[tuple[str, Any]]:
    """Yield the name and tensor of each input; a parameter of several tensors gives numbered names.

    The only input of a detector is named ``image``. torchvision's ``images`` is the name in exports of RT-DETR, whose
    outputs have the same names, too.
    """
    if detections(call.results) is not None and len(call.inputs) == 1 and hasattr(call.inputs[0], "detach"):
        yield "image", call.inputs[0]
        return
    parameters = list(inspect.signature(call.module.forward).parameters)
    given = [*zip(parameters, call.inputs, strict=False), *call.named.items()]
    for name, value in given:
        found = list(tensors(value))
        for number, tensor in enumerate(found):
            yield name if len(found) == 1 else f"{name}_{number}", tensor
