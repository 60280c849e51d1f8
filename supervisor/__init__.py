"""The engine room: whatever runs, waits or watches on the loop."""
