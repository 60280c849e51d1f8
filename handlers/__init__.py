"""Requests become calls here, and answers become bytes."""
