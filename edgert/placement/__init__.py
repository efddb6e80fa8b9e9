"""Placement of models on accelerators: costs, limits, exact solvers, and schedules in simulated time."""
