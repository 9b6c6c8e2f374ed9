"""Compute kernels of the worker, each beside a plain torch reference that says what it computes.

`cpu` holds operators in C for CPU inference, `triton` kernels for GPUs.
"""
