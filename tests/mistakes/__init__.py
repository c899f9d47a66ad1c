"""The likeliest mistakes of a user, each made for real, and the one message that each must give."""
