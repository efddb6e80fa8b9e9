"""The version of edgert; the build reads it here."""

__version__ = "0.1.0"
