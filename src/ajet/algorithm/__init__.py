"""Advantages and losses: verl's own, by their registered names, applied to episodes.

What is kept here (invariant 4): the unit that a loss sees is one row per (episode, agent) with every token it sampled,
in order, however the calls were merged for the forward pass. Advantages come from one row per (episode, tag), with
groups keyed by (task, tag), so that an agent with many calls counts once and opposed tags never share a baseline.

:mod:`ajet.algorithm.support` knows which of verl's algorithms are right here and needs neither torch nor verl, so a
configuration can be checked anywhere. The other modules import verl lazily (4-5 s): only the backbone process does.
"""

from ajet.algorithm.support import check_algorithm

__all__ = ["check_algorithm"]
