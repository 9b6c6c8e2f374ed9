"""GPUs, links, number formats and models: what the arithmetic starts from."""
