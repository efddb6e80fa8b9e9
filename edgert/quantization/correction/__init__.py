"""Corrections that win back accuracy: equalization, bias correction, AdaRound."""
