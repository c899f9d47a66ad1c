"""The swarm server: routes, keys, the life of an episode, the engine's life cycle. No maths here.

What keeps the promises: a chat reply and an ``end`` answer are sent after :mod:`ajet.pool.journal` has resolved their
record (nothing acknowledged is lost); every state-changing request carries a ``request_id`` whose repeat returns the
first answer, and a batch names its episodes in the journal before it is trained (exactly once).
"""
