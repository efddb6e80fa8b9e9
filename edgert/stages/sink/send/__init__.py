"""Results and events sent to others: a spool that loses nothing, a courier that sends it on, a door per protocol."""
