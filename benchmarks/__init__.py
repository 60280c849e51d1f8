"""Measurements: Pilothouse compared with its peers and with what the machine allows."""
