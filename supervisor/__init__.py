"""Processes, background tasks and network clients, on the event loop or in workers."""
