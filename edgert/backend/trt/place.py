"""Layers put on a DLA core. The calls are the same in every TensorRT that has DLAs."""

from __future__ import annotations

from collections.abc import Sequence

from edgert.backend.trt.mapping import Correspondence
from edgert.backend.trt.request import GPU, BuildRequest
from edgert.backend.trt.vendor import Builder, IBuilderConfig, ILayer, INetworkDefinition, Trt
from edgert.errors import DeviceError


def check_core(builder: Builder, request: BuildRequest) -> None:
    """Raises DeviceError when the engine's DLA core is not there."""
    core, cores = request.dla_core, builder.num_DLA_cores
    if core is not None and core >= cores:
        raise DeviceError(
            f"there is no dla{core}",
            why=f"TensorRT sees {cores} DLA core{'' if cores == 1 else 's'} on this machine",
            where=request.title,
            fix="edgert doctor tells why; placement: gpu does without",
        )


def place(
    trt: Trt, network: INetworkDefinition, config: IBuilderConfig, request: BuildRequest, parts: Correspondence
) -> tuple[str, ...]:
    """Puts layers where the placement says; the GPU may take what the DLA cannot, and it is told which.

    A network that is all on the DLA is put there as ``trtexec --useDLACore`` does, by default. In a mixed one each
    layer is put where its nodes are; a layer that helps nodes on both sides stays on the GPU. Flags for precision
    must be set by now: what a DLA can run depends on them.

    Returns:
        Nodes placed on the DLA that TensorRT says cannot run there.
    """
    core = request.dla_core
    if core is None:
        return ()
    config.set_flag(trt.BuilderFlag.GPU_FALLBACK)
    config.DLA_core = core
    if request.all_on_dla:
        config.default_device_type = trt.DeviceType.DLA
        chosen: Sequence[int] = range(network.num_layers)
    else:
        config.default_device_type = trt.DeviceType.GPU
        chosen = [index for index, names in enumerate(parts.nodes_of) if names and _on_dla(names, request)]
    refused: dict[str, None] = {}
    for index in chosen:
        layer: ILayer = network.get_layer(index)
        if not request.all_on_dla:
            config.set_device_type(layer, trt.DeviceType.DLA)
        if parts.own[index] and not config.can_run_on_DLA(layer):
            refused.update(dict.fromkeys(parts.nodes_of[index]))
    return tuple(refused)


def _on_dla(names: Sequence[str], request: BuildRequest) -> bool:
    return all(request.placement.get(name, GPU) != GPU for name in names)
