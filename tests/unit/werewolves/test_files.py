"""The configuration stands in two places; they must not drift apart."""

from importlib import resources
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_the_tutorials_configuration_is_the_shipped_one():
    shipped = (resources.files("ajet.envs.werewolves") / "werewolves.yaml").read_text(encoding="utf-8")
    assert (ROOT / "tutorial/example_werewolves_swarm/werewolves.yaml").read_text(encoding="utf-8") == shipped


def test_the_game_is_importable_from_all_its_addresses():
    from ajet.envs.werewolves import ExampleWerewolves as lazy
    from ajet.envs.werewolves.workflow import ExampleWerewolves
    from tutorial.example_werewolves.start import ExampleWerewolves as tutorial

    assert lazy is ExampleWerewolves
    assert tutorial is ExampleWerewolves
