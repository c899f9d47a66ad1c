"""Claims about joining a replay with the server's record."""

import pytest

from ajet.envs.werewolves.replay import load, save
from ajet.monitor.replay.join import join
from ajet.schema.errors import ConfigError
from tests.unit.monitor.replays import detail, game


def test_every_reply_gets_its_tokens_and_every_seat_its_advantage(tmp_path):
    replay = game()
    found = join(replay, detail(replay))
    assert found.matched == found.replies == sum(len(d.exchanges) for d in replay.decisions)
    for decision in found.replay.decisions:
        for exchange in decision.exchanges:
            call, reply = exchange.call, exchange.reply
            assert call is not None
            assert reply is not None
            assert "".join(call.texts).strip() == reply["content"].strip()
            assert len(call.logprobs) == len(call.ids) == len(call.trained)
            assert call.trained[-1] is False
    assert [s.advantage for s in found.replay.seats] == [1.25 if s.role == "werewolf" else -0.5 for s in replay.seats]
    assert found.replay.policy_version == (3, 4)
    assert (found.replay.episode.fate, found.replay.episode.step) == ("trained", 5)
    assert "9 seats an advantage; fate trained, step 5" in found.words()
    path = tmp_path / "joined.json"
    save(found.replay, path)
    assert load(path) == found.replay
    assert join(found.replay, detail(replay)).replay == found.replay


def test_a_reply_that_never_arrived_is_passed_over_and_equal_replies_keep_their_order():
    replay = game()
    view = detail(replay)
    lost = {**view["calls"][3], "call_id": "lost", "message": {"role": "assistant", "content": "never arrived"}}
    view["calls"].insert(3, lost)
    same = [c for c in view["calls"] if c["agent"] == "Player1"]
    found = join(replay, view)
    assert found.matched == found.replies
    ids = [x.call.call_id for d in found.replay.decisions for x in d.exchanges if x.call and d.seat == 0]
    assert ids == [c["call_id"] for c in same if c["call_id"] != "lost"]


def test_what_the_server_no_longer_holds_stays_open():
    replay = game()
    found = join(replay, detail(replay, calls=[], samples=[]))
    assert (found.matched, found.replay.policy_version) == (0, None)
    assert found.replay.seats[0].advantage is not None
    assert found.words().startswith(f"0 of {found.replies} replies")


def test_without_a_tokenizer_tokens_are_shown_by_id():
    replay = game()
    view = detail(replay)
    for sample in view["samples"]:
        for piece in sample["pieces"]:
            piece["texts"] = None
    call = next(x.call for d in join(replay, view).replay.decisions for x in d.exchanges)
    assert call is not None
    assert call.texts[0] == "⟨0⟩"


def test_another_episodes_view_is_refused():
    replay = game()
    with pytest.raises(ConfigError, match="is of episode 'ep-2', the server's view is of 'other'"):
        join(replay, detail(replay, episode_id="other"))
