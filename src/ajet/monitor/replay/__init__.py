"""Looking at a recorded game of Werewolves: in the terminal, as plain text, and as one self-contained page.

story (what a view may see, phase by phase; pure) → app (Textual) or text (``--once``); page (HTML); join (tokens,
log-probs and advantages from the server's view of the episode).
"""
