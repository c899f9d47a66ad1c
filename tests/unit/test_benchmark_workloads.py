"""Claims about what the benchmarks replay: recorded games still are what their page says they are."""

from benchmarks.game_calls import record_compact, record_full


def test_full_conversations_grow_and_fit():
    conversations = record_full(1, 2000)
    assert len(conversations) == 4
    for conversation in conversations:
        assert [turn.grows for turn in conversation] == [False] + [True] * (len(conversation) - 1)
        assert sum(len(turn.ids) + turn.reply for turn in conversation) <= 2000
        assert all(turn.reply > 0 for turn in conversation)


def test_compact_prompts_stand_alone():
    conversations = record_compact(1, 256)
    assert len(conversations) == 4
    for conversation in conversations:
        assert not any(turn.grows for turn in conversation)
        assert all(0 < len(turn.ids) + turn.reply <= 256 for turn in conversation)
