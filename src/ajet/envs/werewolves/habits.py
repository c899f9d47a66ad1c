"""What the live players did, in numbers: the metrics that show which behaviour training changed."""

from __future__ import annotations

from collections import Counter

from ajet.envs.werewolves.board import Board
from ajet.envs.werewolves.engine import Action, Game, Request
from ajet.envs.werewolves.rules import Role
from ajet.envs.werewolves.speech import understand


class Habits:
    """Counts over one game; only seats in ``live`` are watched."""

    def __init__(self, board: Board, live: frozenset[int]) -> None:
        self.board, self.live = board, live
        self._n: Counter[str] = Counter()
        self._yes: Counter[str] = Counter()

    def _see(self, name: str, value: bool) -> None:
        self._n[name] += 1
        self._yes[name] += value

    def watch(self, game: Game, request: Request, action: Action) -> None:
        """Take note of one decision."""
        if request.player not in self.live:
            return
        if request.role is Role.WEREWOLF:
            self._wolf(game, request, action)
        elif request.role is Role.SEER:
            self._seer(game, request, action)

    def _wolf(self, game: Game, request: Request, action: Action) -> None:
        if request.kind == "kill" and action.target is not None:
            self._see("wolf/teammate_kill_share", action.target in game.wolves)
            claimers = [c for c in self.board.refresh().living_claimers() if c not in game.wolves]
            if claimers:
                self._see("wolf/claimer_kill_share", action.target in claimers)
        if request.kind in ("vote", "day") and action.target is not None:
            self._see("wolf/teammate_vote_share", action.target in game.wolves)
        if request.kind in ("speak", "day"):
            self._see("wolf/seer_claim_share", understand(action.say).claims_seer)

    def _seer(self, game: Game, request: Request, action: Action) -> None:
        results = {e.target: e.is_wolf for e in game.visible(request.player) if e.kind == "check"}
        if request.kind == "check" and action.target is not None:
            self._see("seer/hit_share", action.target in game.wolves)
        if request.kind in ("speak", "day"):
            said = understand(action.say)
            true = {(("wolf" if w else "good"), t) for t, w in results.items()}
            self._see("seer/truthful_report_share", said.claims_seer and any(s in true for s in said.stances))
        known = [t for t, wolf in results.items() if wolf and t is not None and game.alive[t]]
        if request.kind in ("vote", "day") and known:
            self._see("seer/known_wolf_vote_share", action.target in known)

    def metrics(self) -> dict[str, float]:
        """Shares, for what occurred at all."""
        return {name: self._yes[name] / n for name, n in self._n.items()}
