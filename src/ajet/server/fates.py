"""How episodes ended, by id: the newest from memory, any from the journal."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path

from ajet.pool import journal_read
from ajet.pool.records import Done
from ajet.schema.errors import EpisodeGone, NotFound

REMEMBERED = 20_000
"""Episodes whose end is kept in memory."""


@dataclass
class Fates:
    """The ends of one experiment's episodes.

    Args:
        path: of its journal.
    """

    path: Path
    _newest: OrderedDict[str, Done] = field(default_factory=OrderedDict)

    def remember(self, done: Done) -> None:
        self._newest[done.episode] = done
        while len(self._newest) > REMEMBERED:
            self._newest.popitem(last=False)

    async def of(self, episode_id: str) -> Done:
        """How an episode ended. Raises :class:`NotFound` where it never was."""
        done = self._newest.get(episode_id)
        if done is None:
            record = await asyncio.to_thread(journal_read.episode, self.path, episode_id)
            if record is None:
                raise NotFound(
                    f"There is no episode {episode_id}. Name the id that begin_episode of this server returned."
                )
            if record.done is None:
                raise EpisodeGone(f"Episode {episode_id} is not open.")
            done = record.done
            self.remember(done)
        return done


def gone_error(done: Done) -> EpisodeGone:
    """Why nothing can be done with an episode that ended so."""
    what = (
        "Its result stands: report each once." if done.how == "end" else "Nothing of it is trained: begin another one."
    )
    return EpisodeGone(f"{done.reason.rstrip('.')}. {what}", details={"fate": done.fate})
