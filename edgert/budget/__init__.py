"""Budgets of a running pipeline: power, CPU time, memory and latency, and the governor that keeps them."""
