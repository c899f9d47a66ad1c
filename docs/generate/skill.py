"""The page ``your-own-agent`` as a skill file for coding assistants: in ``docs/skills/ajet`` and in the package (``ajet-swarm skill``)."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1]
FRONT = """---
name: ajet
description: Train the language model behind an agent with AgentJet. Use when somebody wants to train an agent, a game or a tool-using workflow that calls an OpenAI-compatible API with reinforcement learning, to write or repair an AgentJet swarm client, or to start, watch and evaluate a training run.
---

"""
NEXT = """

## How to work

1. Ask what one episode is, what a task is, and what earns a reward, where the user has not said so.
2. Write the client in one file, from the script above: `play(task, api)` returns a `WorkflowOutput`; keep the loop as it is.
3. Start `ajet-swarm start` in the background, run two or three steps with `ajet-tiny-werewolves`, and read `reward/mean`, the drops and
   `ajet-swarm inspect last` before anything larger.
4. Never turn an exception into a reward, never rewrite an agent's history, never reuse an `experiment_name` for another job.
"""


def files() -> dict[str, str]:
    """File name below ``docs/`` → its text."""
    page = (DOCS / "your-own-agent.md").read_text(encoding="utf-8")
    page = re.sub(r"\n!\[[^\]]*\]\([^)]*\)\n", "\n", page)  # pictures
    page = re.sub(r"\[([^\]]+)\]\([\w#.-]+\)", r"\1", page)  # links between pages
    text = FRONT + page.rstrip() + NEXT
    return {"skills/ajet/SKILL.md": text, "../src/ajet/copilot/skill/SKILL.md": text}
