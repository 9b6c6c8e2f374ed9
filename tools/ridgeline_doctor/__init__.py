"""Diagnosis: evidence in, ranked findings out. Reading the evidence is a thin shell beside each topic."""
