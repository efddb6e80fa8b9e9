"""Where results go. Every sink is a stage that passes nothing on."""
