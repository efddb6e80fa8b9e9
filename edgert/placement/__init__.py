"""Which part of a model runs where: costs, limits, exact solvers, and schedules in simulated time."""
