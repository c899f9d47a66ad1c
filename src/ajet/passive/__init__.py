"""The passive client: an OpenAI endpoint between an application and the model, so that its users' requests train it.

One request of the application becomes the ``num_repeat`` episodes of one task. The model answers in each; a judge of
yours compares the answers; each episode ends with its reward, and the best answer goes back to the application, which
knows nothing of all this.

Promises: the application is answered as long as anything can answer it (the swarm server; else the plain endpoint that
was named; else a 503 that says why). What goes wrong never becomes a reward: a group whose calls or judgement failed is
aborted whole, with a counted reason. What cannot be trained as it was asked (greedy sampling, say) is served as asked,
by an eval episode, and counted. No torch.

- :mod:`~ajet.passive.judge`: what a judge sees and says. :mod:`~ajet.passive.groups`: one request's episodes.
- :mod:`~ajet.passive.service`: what becomes of a request. :mod:`~ajet.passive.endpoints`: calls to models.
- :mod:`~ajet.passive.app`: HTTP. It needs ``agentjet[passive]``; ``ajet-swarm passive`` runs it.
"""

from __future__ import annotations

from ajet.passive.judge import Answer, Asked, Judge
from ajet.passive.service import PassiveClient
from ajet.passive.settings import PlainEndpoint

__all__ = ["Answer", "Asked", "Judge", "PassiveClient", "PlainEndpoint"]
