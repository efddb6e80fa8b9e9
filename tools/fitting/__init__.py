"""Fits the coefficients of ``edgert.placement.cost`` to published speeds. Needs scipy; run by ``tools/fit_costs``."""
