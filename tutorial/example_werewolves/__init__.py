"""The Werewolves game, for scripts that import it from here. It lives in `ajet.envs.werewolves`."""
