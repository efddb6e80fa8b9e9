"""Cost of a network on a board it has not run on: units of work, and formulas whose coefficients were fitted."""
