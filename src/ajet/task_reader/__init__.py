"""Where tasks come from. :class:`RouterTaskReader` is the door; each source is one small module.

Invariants: the order of a pass depends on nothing but source, seed and pass number; every task has an id, and no two
tasks of a split share one (a shared id would merge their groups); a reader that loads another's state goes on with
exactly the task that the other would have handed out next.
"""

from ajet.task_reader.router import RouterTaskReader

__all__ = ["RouterTaskReader"]
