"""Fits the coefficients of ``edgert.placement.cost`` to published speeds. Needs scipy; run by ``scripts/fit_costs``."""
