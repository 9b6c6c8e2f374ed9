"""One engine step as operators: bytes, FLOPs, launches, collectives, and the milliseconds they take."""
