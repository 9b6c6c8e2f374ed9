"""Policies at work on a virtual clock: made-up traffic, the real engine, an executor that only takes its time."""
