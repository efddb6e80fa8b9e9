"""Stages that a pipeline file can name: sources, inference, decoders, tracking, drawing, sinks."""
