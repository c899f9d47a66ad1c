"""Nine-player Werewolves: rules engine, scripted and model players, prompts, and the episode that ties them together.

The engine (``rules``, ``engine``) knows nothing of language models; players sit on top. User scripts import
``ExampleWerewolves`` from here or from ``tutorial.example_werewolves.start``.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ajet.envs.werewolves.workflow import ExampleWerewolves

__all__ = ["ExampleWerewolves"]


def __getattr__(name: str) -> Any:
    if name == "ExampleWerewolves":
        from ajet.envs.werewolves.workflow import ExampleWerewolves

        return ExampleWerewolves
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
