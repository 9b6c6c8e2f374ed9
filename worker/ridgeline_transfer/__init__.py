"""KV memory that others can read, and the ways to move it."""
