"""What reports say: one table of formats, told by content, each read as a stream within bounds."""
