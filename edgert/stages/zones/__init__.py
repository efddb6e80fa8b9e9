"""Zones, lines, and events that rules derive from the objects in them."""
