"""Where objects are and what they do there: zones, lines, and the events that rules make of them."""
