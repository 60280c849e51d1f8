"""Measurements: ours beside its peers, and beside what the machine allows."""
