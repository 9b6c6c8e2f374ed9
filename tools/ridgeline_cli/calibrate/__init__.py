"""`ridgeline calibrate`: measures this machine, fits the step model, and says how well it predicts."""
