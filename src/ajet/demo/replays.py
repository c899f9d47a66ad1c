"""The games a demo keeps to be looked at: a few held-out deals under the initial and the final policy, the same deals
for both, and some training games with their advantages.

Replays are never worth a run: what cannot be written or joined is left out, and the log says so.
"""

from __future__ import annotations

import logging
from pathlib import Path

from ajet.client import SwarmClient
from ajet.envs.werewolves.recording import SUFFIX, ReplayFolder
from ajet.envs.werewolves.replay import load, save
from ajet.monitor.replay.join import join
from ajet.schema.errors import AjetError

log = logging.getLogger("ajet.demo.replays")

FOLDER = "replays"
DEALS = 3
"""Held-out deals kept, for each role and policy."""
TRAINING_EVERY, TRAINING_KEPT = 25, 24
"""Of the training deals each so many-th leaves its replays (no multiple of the wolves' turns, so that both sides are
seen); the newest so many games stay."""


def evaluation_replays(folder: Path, which: str, role: str) -> ReplayFolder:
    """For games of an evaluation (``initial`` or ``final``) with ``role`` on the policy."""
    return ReplayFolder(folder / FOLDER / which / role, keep=DEALS, label=f"{which} policy, {role}")


def training_replays(folder: Path) -> ReplayFolder:
    """For training games."""
    return ReplayFolder(folder / FOLDER / "training", every=TRAINING_EVERY, keep=TRAINING_KEPT, label="training")


def join_replays(client: SwarmClient, folder: Path) -> int:
    """Join the kept replays with the server's view of their episodes. Returns how many were."""
    joined = 0
    for path in _files(folder):
        try:
            replay = load(path)
            save(join(replay, client.get_episode(replay.episode.episode_id, tokens=True)).replay, path)
            joined += 1
        except (AjetError, OSError) as err:
            log.warning("the replay %s was not joined with the server's record: %s", path, err)
    return joined


def list_replays(folder: Path) -> dict[str, list[str]]:
    """The kept replays under ``initial``, ``final`` and ``training``, as paths from the run's folder."""
    found: dict[str, list[str]] = {}
    for path in _files(folder):
        where = path.relative_to(folder)
        found.setdefault(where.parts[1], []).append(where.as_posix())
    return found


def _files(folder: Path) -> list[Path]:
    return sorted((folder / FOLDER).glob(f"**/*{SUFFIX}"))
