"""Which part of a model runs where: costs, exact solvers, simulation of the schedule they choose."""
