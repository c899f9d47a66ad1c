"""How a user's loop ends when training is finished."""

from __future__ import annotations

from ajet.schema.errors import TrainingFinished


class StopTraining(TrainingFinished, SystemExit):
    """Raised to blocking code (``SwarmClient.begin_episode``, the executor's ``submit…``) when training is finished.

    It is a :class:`~ajet.schema.errors.TrainingFinished`, so ``except TrainingFinished`` catches it and
    ``with executor:`` swallows it. It is also a ``SystemExit`` with code 0: a plain endless loop that catches nothing
    ends the script without a traceback and with exit code 0. Coroutines get a plain ``TrainingFinished`` instead,
    because a ``SystemExit`` would tear down the event loop.
    """

    def __init__(self, message: str = "Training is finished: total_training_steps is reached.") -> None:
        super().__init__(message)
        self.code = 0  # type: ignore[misc, assignment]  # the process's exit code; the class keeps the wire code
