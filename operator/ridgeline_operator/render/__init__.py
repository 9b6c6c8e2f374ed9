"""From an accepted pool to the objects that run it. Pure."""
