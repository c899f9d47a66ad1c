"""What happens to an episode before it is trained: its lease, its record in the journal, its group, its batch.

:mod:`ajet.pool.leases` and :mod:`ajet.pool.groups` are pure and synchronous: no clock, no I/O, no asyncio; every
method takes ``now``. :mod:`ajet.pool.journal` is the only thing here that touches a disk. The server puts the three
together and keeps their order: journal first, then memory, then the answer.
"""
