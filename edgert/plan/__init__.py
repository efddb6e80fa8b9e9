"""What a pipeline would do on a board: each power mode and placement with its speed, power and memory, and a choice."""
