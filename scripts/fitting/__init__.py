"""Fits the coefficients of ``edgert.place.cost`` to published speeds. Needs scipy; run by ``scripts/fit_costs``."""
