"""The charts' part of this room."""
