"""``edgert export``: writes built models for a Triton server, any ONNX runtime, or trtexec.

export.export(source, output, format="triton") → Exported         a pipeline, bundle or ONNX file
source.open_source(path) → export.write_export(source, format, output) → Exported    several formats of one build
"""
