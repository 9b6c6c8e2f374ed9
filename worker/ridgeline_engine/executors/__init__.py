"""Executors behind the seam: `torch_executor` runs real weights. Torch is imported inside that package
alone."""
