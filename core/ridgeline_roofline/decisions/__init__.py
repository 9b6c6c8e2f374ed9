"""Thresholds that the platform lives by, each as a value with its derivation in words.

Facts in, decision out. A caller that overrides a value still prints the derivation beside it.
"""
