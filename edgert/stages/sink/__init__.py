"""Outputs of a pipeline. A sink is a stage that passes nothing on."""
