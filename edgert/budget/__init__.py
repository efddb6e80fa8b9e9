"""Budgets: what a pipeline may use, and what it does use."""
