"""`from tutorial.example_werewolves.start import ExampleWerewolves`: the game, re-exported."""

from ajet.envs.werewolves.workflow import ExampleWerewolves

__all__ = ["ExampleWerewolves"]
