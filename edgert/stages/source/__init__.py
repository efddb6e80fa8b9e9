"""Video sources: one file per kind, and ``kinds.source_for`` to choose.

Nothing is imported here: images of a dataset need one of these files, not all of them.
"""
