"""The tracker's part of this room."""
