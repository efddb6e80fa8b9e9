"""Names for TensorRT's objects in annotations.

The binding has no types that a checker could use, so each name stands for anything. They are still worth writing: a
test resolves every attribute that this package touches by these annotations and looks it up among the names that each
version of TensorRT has.
"""

from __future__ import annotations

from typing import Any, TypeAlias

Trt: TypeAlias = Any
"""The module, ``tensorrt`` or ``tensorrt_rtx``."""
Builder: TypeAlias = Any
DynamicPluginTensorDesc: TypeAlias = Any
EngineInspector: TypeAlias = Any
IBuilderConfig: TypeAlias = Any
ICudaEngine: TypeAlias = Any
IExecutionContext: TypeAlias = Any
IExprBuilder: TypeAlias = Any
IHostMemory: TypeAlias = Any
ILayer: TypeAlias = Any
ILogger: TypeAlias = Any
INetworkDefinition: TypeAlias = Any
IOptimizationProfile: TypeAlias = Any
IPluginRegistry: TypeAlias = Any
IProfiler: TypeAlias = Any
IProgressMonitor: TypeAlias = Any
IRuntimeCache: TypeAlias = Any
IRuntimeConfig: TypeAlias = Any
ITensor: TypeAlias = Any
ITimingCache: TypeAlias = Any
OnnxParser: TypeAlias = Any
ParserError: TypeAlias = Any
PluginField: TypeAlias = Any
PluginTensorDesc: TypeAlias = Any
Runtime: TypeAlias = Any
