"""Chat to tokens and back, the tree of calls of each agent, and the samples that training consumes.

Invariant 3 (token fidelity) lives here: what is trained is exactly the ids that were sampled, with the log-probs and
versions they were sampled with. Nothing sampled is ever tokenized again: a request that extends a known timeline
reuses its ids verbatim, and :func:`build_rows` puts every sampled token into exactly one sample.

May be called by the server and by tools that read a journal. No torch.
"""

from ajet.trajectory.batch import Row, Sample, TrainBatch
from ajet.trajectory.calls import Call
from ajet.trajectory.episode import EpisodeTrajectory, Prepared
from ajet.trajectory.forks import Branch
from ajet.trajectory.renderer import ChatRenderer, ParsedReply
from ajet.trajectory.rows import build_rows

__all__ = [
    "Branch",
    "Call",
    "ChatRenderer",
    "EpisodeTrajectory",
    "ParsedReply",
    "Prepared",
    "Row",
    "Sample",
    "TrainBatch",
    "build_rows",
]
