"""``edgert export``: what was built, written for any ONNX runtime, or for boards in the field.

export.export(source, output) → Exported                  a pipeline, bundle or ONNX file, as ONNX files
fleet.export_fleet(bundles, format, output)                Ansible, systemd, Docker Compose, Kubernetes
"""
