"""Two models, one game: wolves learn on one server, the seer on another."""
