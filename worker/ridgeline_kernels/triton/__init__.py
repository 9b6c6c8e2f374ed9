"""Kernels for GPUs in Triton, each in a module beside a torch reference of the same name.

Under TRITON_INTERPRET=1 (set before the module is imported) they run on CPU tensors.
"""
