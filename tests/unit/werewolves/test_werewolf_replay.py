"""Claims about replays: they hold what was sent, tell private from public, and never hurt a game."""

from __future__ import annotations

import errno
import json
import os
from typing import Any

import pytest

from ajet.envs.werewolves.full import Conversation
from ajet.envs.werewolves.recording import SUFFIX, ReplayFolder, tables_of
from ajet.envs.werewolves.replay import Replay, eyes, load, save, sees
from ajet.schema.errors import ConfigError, InfrastructureFault
from tests.unit.werewolves.fake_openai import serve
from tests.unit.werewolves.model_table import MARKER, ModelTable
from tests.unit.werewolves.test_werewolf_workflow import BIG, TINY, episode, legal_reply, refused_url, task_of

GAMES = int(os.environ.get("AJET_MARKER_GAMES", "40"))
"""Games of the private-marker test; 1000 were played for docs/replays.md."""


def markers(texts: list[str]) -> set[str]:
    return {marker for text in texts for marker in MARKER.findall(text)}


def leaks(table: ModelTable, replay: Replay) -> list[str]:
    """Everything in a replay that somebody read who must not."""
    found = []
    for seat in table.seats:
        prompts = [json.dumps(prompt, ensure_ascii=False) for _, _, prompt in replay.prompts(seat)]
        found += [f"{m} in a prompt of seat {seat}" for m in markers(prompts) if seat not in table.readers[m]]
        lines = {line for _, _, prompt in replay.prompts(seat) for m in prompt for line in m["content"].split("\n")}
        for event in table.game.events:
            if event.audience is not None and seat not in event.audience:
                told = Conversation(table.game, min(event.audience), table.language).describe(event)  # type: ignore[arg-type]
                if told and told in lines:
                    found.append(f"{told!r} in a prompt of seat {seat}")
    everyone = frozenset(table.seats)
    for decision in replay.decisions:
        heard = everyone if decision.kind != "kill" else table.game.wolves
        found += [f"{m} said aloud" for m in markers([decision.action.say]) if not heard <= table.readers[m]]
    public = [event.text for event in replay.events if sees(event, eyes(replay, "public"))]
    found += [f"{m} in the public view" for m in markers(public) if table.readers[m] != everyone]
    return found


def test_no_private_word_or_fact_stands_in_another_players_prompts():
    thoughts = talk = spoken = unusable = 0
    for seed in range(GAMES):
        table = ModelTable(seed, "zh" if seed % 2 else "en")
        replay = table.play()
        assert leaks(table, replay) == []
        wolf_talk = {m for m, readers in table.readers.items() if readers == table.game.wolves}
        for decision in replay.decisions:
            for exchange in decision.exchanges:
                thoughts += bool(markers([exchange.private]))
                unusable += not exchange.used
        heard = {s: markers([json.dumps(p) for _, _, p in replay.prompts(s)]) for s in table.seats}
        talk += any(m in heard[s] for m in wolf_talk for s in table.game.wolves)
        spoken += sum(len(heard[s]) for s in table.seats)
    # The markers are not merely lost.
    assert thoughts > 30 * GAMES
    assert talk > GAMES // 2
    assert spoken > 100 * GAMES
    assert unusable > GAMES


def test_a_leak_would_be_found():
    table = ModelTable(3)
    replay = table.play()
    secret = next(m for m, readers in table.readers.items() if readers == {table.sent_order()[0]})
    decision = next(d for d in replay.decisions if d.seat != table.sent_order()[0] and d.exchanges)
    exchange = decision.exchanges[0].model_copy(update={"messages": ({"role": "user", "content": secret},)})
    forged = decision.model_copy(update={"exchanges": (exchange,)})
    decisions = tuple(forged if d is decision else d for d in replay.decisions)
    assert leaks(table, replay.model_copy(update={"decisions": decisions}))


@pytest.mark.parametrize("compact", [frozenset(), frozenset({0, 4, 8}), frozenset(range(9))])
def test_prompts_and_replies_are_exactly_those_that_were_sent(compact, tmp_path):
    for seed in range(3):
        table = ModelTable(seed, compact=compact)
        path = tmp_path / f"{seed}.json"
        save(table.play(), path)
        replay = load(path)
        for seat in table.seats:
            recorded = [(prompt, exchange.reply) for _, exchange, prompt in replay.prompts(seat)]
            assert recorded == [(sent.messages, sent.reply) for sent in table.sent.get(seat, [])]
        assert "secret-key" not in path.read_text()


def test_private_words_and_public_words_of_one_reply_are_apart():
    table = ModelTable(1)
    replay = table.play()
    seen = set()
    for decision in replay.decisions:
        for exchange in decision.exchanges:
            if not exchange.used:
                continue
            mine = {m for m in markers([json.dumps(exchange.reply)]) if table.readers[m] == {decision.seat}}
            assert markers([exchange.private]) == mine
            assert mine.isdisjoint(markers([decision.action.say]))
            assert decision.action.say == "" or decision.action.say not in exchange.private
            assert '"vote"' not in exchange.private
            seen.add(decision.kind)
    assert {"kill", "check", "witch", "speak", "vote"} <= seen


def test_outcomes_say_how_a_reply_could_be_used():
    table = ModelTable(5)
    replay = table.play()
    outcomes = {d.outcome for d in replay.decisions}
    assert outcomes <= {"valid", "repaired", "fallback"}
    for decision in replay.decisions:
        assert decision.outcome == (
            "fallback" if not decision.exchanges[-1].used else "repaired" if len(decision.exchanges) > 1 else "valid"
        )
    assert "repaired" in outcomes


def test_tables_say_what_the_events_say():
    for seed in range(6):
        table = ModelTable(seed)
        replay = table.play()
        tables = replay.tables
        assert tables == tables_of(replay.events, 9)
        ballots = [(i, e.votes) for i, e in enumerate(replay.events) if e.kind == "votes"]
        assert [(b.event, b.votes) for b in tables.votes] == ballots
        ties = {e.day: i for i, e in enumerate(replay.events) if e.kind == "tie"}
        assert [b.revote for b in tables.votes] == [b.event > ties.get(b.day, len(replay.events)) for b in tables.votes]
        for night in tables.nights:
            today = {e.kind: e for e in replay.events if e.day == night.day}
            assert night.died == today["deaths"].players
            assert night.attacked == today["wolf_target"].target
            assert night.checked == (today["check"].target if "check" in today else None)
            assert night.saved == (today["witch_saved"].target if "witch_saved" in today else None)
        for moment in tables.suspicion:
            alive = replay.alive_after(moment.event + 1)
            assert all(
                0 <= share <= 1 and (lives or share == 0) for share, lives in zip(moment.shares, alive, strict=True)
            )
        after = {m.event: m.shares for m in tables.suspicion}
        first = tables.votes[0]
        for seat in range(9):
            voters = {v for v, t in first.votes if t == seat}
            assert after[first.event][seat] >= len(voters) / 8 - 1e-4 or not replay.alive_after(first.event)[seat]


# ── the workflow's option ────────────────────────────────────────────────────────────────────────────────────────────


def files(folder: Any) -> list[Any]:
    return sorted(folder.glob(f"*{SUFFIX}"))


@pytest.mark.parametrize("model", [TINY, BIG])
async def test_a_workflow_leaves_replays_of_the_games_that_are_wanted(model, tmp_path):
    record = ReplayFolder(tmp_path / "kept", every=3, label="a trial")
    async with serve(legal_reply) as server:
        for number in (6, 7):
            await episode(server.url, task_of(number), model=model, record=record, uuid="ep1")
        output = await episode(server.url, task_of(7, split="eval"), model=model, record=record, uuid="ep2")
    first, second = (load(path) for path in files(tmp_path / "kept"))
    assert (first.seed, first.episode.kind, second.seed, second.episode.kind) == ("eval-7", "eval", "train-6", "train")
    assert (first.episode.episode_id, first.episode.task_id, first.episode.label) == ("ep2", "task-7", "a trial")
    assert [s.role for s in first.seats] == output.metadata["roles"]
    assert {s.name: s.reward for s in first.seats if s.reward is not None} == output.reward
    assert {s.player for s in first.seats} == {"policy", "scripted"}
    assert all(s.model == model for s in first.seats if s.player == "policy")
    assert second.winner in ("wolf", "good", "draw")
    assert not [call for call in server.calls if call.key in files(tmp_path / "kept")[0].read_text()]


async def test_a_static_models_prompts_are_recorded_as_its_own(tmp_path):
    async with serve(legal_reply) as policy, serve(legal_reply) as other:
        await episode(
            policy.url, task_of(6), model=BIG, record=ReplayFolder(tmp_path, every=1),
            big_external_opponent_llm_name="other-model", big_external_opponent_llm_url=other.url,
        )  # fmt: skip
    (path,) = files(tmp_path)
    replay = load(path)
    assert {s.model for s in replay.seats if s.player == "static"} == {"other-model"}
    assert sum(len(d.exchanges) for d in replay.decisions if replay.seats[d.seat].player == "static") == len(
        other.calls
    )


async def test_a_folder_that_cannot_be_written_never_hurts_a_game(tmp_path, caplog):
    blocked = tmp_path / "a-file"
    blocked.write_text("")
    async with serve(legal_reply) as server:
        output = await episode(server.url, task_of(6), record=ReplayFolder(blocked / "replays", every=1))
        plain = await episode(server.url, task_of(6))
    assert (output.reward, output.metadata) == (plain.reward, plain.metadata)
    assert "a replay could not be kept" in caplog.text


def test_a_full_disk_leaves_no_half_of_a_file(tmp_path, monkeypatch):
    record = ReplayFolder(tmp_path, every=1)
    replay = ModelTable(0).play()

    def full(path: Any, *_: Any, **__: Any) -> None:
        with open(path, "w") as half:
            half.write('{"format": ')
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr("pathlib.Path.write_text", full)
        assert record.write(lambda: replay) is None
        assert list(tmp_path.iterdir()) == []
    assert record.write(lambda: replay) in files(tmp_path)


async def test_a_void_game_leaves_no_replay(tmp_path):
    with pytest.raises(InfrastructureFault):
        await episode(refused_url(), task_of(6), record=ReplayFolder(tmp_path, every=1), policy_budget_s=0.0)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_keeps_the_newest_and_no_more(tmp_path):
    record = ReplayFolder(tmp_path, every=1, keep=3)
    other = tmp_path / "not-a-replay.json"
    other.write_text("{}")
    replay = ModelTable(0).play()
    for n in range(6):
        path = record.write(lambda n=n: replay.model_copy(update={"seed": f"s{n}"}))
        assert path is not None
        os.utime(path, ns=(n, n))
    assert [load(path).seed for path in files(tmp_path)] == ["s3", "s4", "s5"]
    assert other.exists()


def test_which_deals_are_kept():
    every = ReplayFolder(folder=__file__, every=10, evaluation=False)  # type: ignore[arg-type]
    assert [n for n in range(25) if every.wants(task_of(n), n)] == [0, 10, 20]
    assert not every.wants(task_of(0, split="eval"), 0)
    none = ReplayFolder(folder=__file__)  # type: ignore[arg-type]
    assert not none.wants(task_of(0), 0)
    assert none.wants(task_of(0, split="eval"), 0)
    with pytest.raises(ConfigError):
        ReplayFolder(folder=__file__, keep=0)  # type: ignore[arg-type]


# ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda tree: tree.update(version=2), "version 2"),
        (lambda tree: tree.update(format="other"), "is no replay"),
        (lambda tree: tree.pop("seats"), "damaged replay: seats"),
        (lambda tree: tree["events"][12].update(target=40), "a seat that is not at the table"),
        (lambda tree: tree["seats"].reverse(), "not in order"),
        (lambda tree: tree["tables"]["suspicion"][0]["shares"].pop(), "suspicion"),
        (lambda tree: tree.update(winner="nobody"), "winner"),
    ],
)
def test_what_is_no_replay_is_refused_with_its_reason(change, words, tmp_path):
    path = tmp_path / "game.json"
    tree = json.loads(ModelTable(0).play().model_dump_json())
    change(tree)
    path.write_text(json.dumps(tree))
    with pytest.raises(ConfigError, match=words):
        load(path)


@pytest.mark.parametrize("content", [b"", b"[1]", b"\xff\xfe", b'{"format"', b"[" * 100_000])
def test_a_file_of_anything_is_refused(content, tmp_path):
    path = tmp_path / "game.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError):
        load(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path / "nowhere.json")


def test_a_later_minor_field_is_passed_over(tmp_path):
    path = tmp_path / "game.json"
    tree = json.loads(ModelTable(0).play().model_dump_json())
    tree["mood"] = tree["events"][0]["mood"] = "new"
    path.write_text(json.dumps(tree))
    assert load(path).winner == tree["winner"]
