"""Training runs as commands read them: their settings, their order step by step, what they will see, how fast."""
