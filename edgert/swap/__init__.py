"""Swap of a model while its pipeline runs: judged on live frames first, and undone where it then fails."""
