"""`ridgeline plan`: questions of capacity and speed, answered with their working."""
