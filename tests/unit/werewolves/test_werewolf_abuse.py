"""What a policy's replies may not do: let reasoning slip out, or hide behind the replies of another role."""

from __future__ import annotations

import pytest

from ajet.envs.werewolves.engine import Action, Request
from ajet.envs.werewolves.replies import MAX_REPLY, parse_reply
from ajet.envs.werewolves.rules import Role
from tests.unit.werewolves.fake_openai import Call, serve
from tests.unit.werewolves.table import SEER, V1, W1
from tests.unit.werewolves.test_werewolf_workflow import episode, legal_reply, task_of


@pytest.mark.parametrize("kind", ["speak", "last_words", "day", "kill", "vote"])
def test_reasoning_that_never_ends_is_not_heard_however_long_it_is(kind):
    request = Request(W1, Role.WEREWOLF, kind, (SEER, V1), 1)
    reply = "<think>" + "We kill the seer.\n\n" * (MAX_REPLY // 10) + f'{{"say": "secret", "vote": {SEER + 1}}}'
    assert len(reply) > MAX_REPLY
    assert parse_reply(reply, request).action is None


def test_a_statement_after_very_long_reasoning_is_heard():
    request = Request(W1, Role.WEREWOLF, "speak", (), 1)
    reply = "<think>" + "hm " * MAX_REPLY + '</think>{"say": "hello"}'
    assert parse_reply(reply, request).action == Action(say="hello")


async def test_outcomes_of_replies_are_told_by_role():
    def decide(call: Call) -> str:
        return "nonsense\nmore" if ", seer." in call.prompt else legal_reply(call)

    async with serve(decide) as server:
        output = await episode(server.url, task_of(4), live="both")
    shares = {f"{o}/{r}": output.log_metrics[f"{r}/{o}"] for o in ("valid", "fallback") for r in ("werewolf", "seer")}
    assert shares == {"valid/werewolf": 1.0, "fallback/werewolf": 0.0, "valid/seer": 0.0, "fallback/seer": 1.0}
    assert 0 < output.log_metrics["reply/fallback"] < 1
