"""One process, one device (CPU or a GPU): sampler and trainer share one set of weights.

Rooms: ``process`` is the server's side (asyncio, no torch) and speaks ``wire`` with ``worker``, the process. Inside it
``engine`` holds the parts: ``net`` (the model: ``qwen2`` by hand or ``generic`` by transformers), ``sampler`` over
``paged`` KV with ``draw``, or with ``native`` (loops in C, ``compiled`` on this machine), ``trainer`` over ``packing`` with
``optimizer``.
"""
