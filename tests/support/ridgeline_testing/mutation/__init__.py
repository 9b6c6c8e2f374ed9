"""Mutation testing of the engine: mutmut changes one thing at a time, and some test has to notice."""
