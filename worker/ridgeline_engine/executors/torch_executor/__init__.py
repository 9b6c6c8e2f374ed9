"""Runs real weights with torch: a CPU with native kernels, or a CUDA device with torch's own operators."""
