"""Builders and drivers that tests of several components share. Never part of the product.

`tiny_llama.build_tiny_llama` writes a small random model, `smollm2.smollm2_folder` finds the real small one.
"""
