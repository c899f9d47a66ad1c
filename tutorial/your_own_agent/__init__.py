"""Copy this folder: a game of one's own, and the client that trains it."""
