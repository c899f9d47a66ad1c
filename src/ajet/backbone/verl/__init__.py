"""verl on Ray: many devices and hosts behind the same protocol as one process. Importing this imports no torch, no Ray.

Rooms, from the server outwards: ``process`` is the server's side and speaks the worker wire with ``driver``, a process of
its own that holds the Ray driver; a server never imports Ray. Inside the driver ``cluster`` starts or joins Ray and puts
verl's workers and replicas on it, ``trainer`` turns rows into verl's batches (``entries``) and one loss over rows,
``rollout`` samples, ``watch`` ends everything once an actor or a host is gone. ``mapping`` maps a job to verl's
configuration. In verl's own processes run ``worker`` (a subclass of its training worker), ``loss``, and, without a GPU,
``platform``, ``engine_cpu`` and ``replica`` through verl's registries.

verl is a dependency: nothing of it is copied or patched. What is touched beyond its public surface is named in
``contract`` and tested against the installed version.
"""
