"""Swap of a model while its pipeline runs: the new model is judged on live frames, and the swap undone if it fails."""
