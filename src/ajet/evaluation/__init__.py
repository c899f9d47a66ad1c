"""Measuring policies: `ajet-swarm eval`. Fixed deals, every role and seat, intervals, paired comparison, Elo.

``intervals`` and ``elo`` are mathematics; ``candidates`` finds checkpoints and how they are to be asked; ``serving``
starts a server for them; ``werewolves`` plays; ``report`` prints. The demo uses ``intervals`` for its own evaluations.
"""
