"""``edgert export``: writes built models for a Triton server, any ONNX runtime, or trtexec.

export.export(source, output, format="triton") → Exported         a pipeline, bundle or ONNX file
source.open_source(path) → Source → export.write_export(source, request) → Exported    several formats of one build
"""
