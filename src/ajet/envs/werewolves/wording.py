"""The words of a game for people, in English and Chinese: labels, events told by a narrator, statements put across.

For replays and for a person at the table. Prompts of models are elsewhere (:mod:`~ajet.envs.werewolves.full`): what a
model reads must not change because a label did.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, Protocol

from ajet.envs.werewolves.full import ROLES_ZH
from ajet.envs.werewolves.speech import understand

Language = Literal["en", "zh"]

ROLES: dict[Language, dict[str, str]] = {
    "en": {
        "werewolf": "werewolf",
        "seer": "seer",
        "witch": "witch",
        "hunter": "hunter",
        "guard": "guard",
        "idiot": "idiot",
        "villager": "villager",
    },
    "zh": ROLES_ZH,
}
KINDS: dict[Language, dict[str, str]] = {
    "en": {
        "protect": "protects", "kill": "chooses a victim", "check": "checks", "witch": "witch's night", "shoot": "may shoot", "speak": "speaks",
        "vote": "votes", "day": "speaks and votes", "last_words": "last words",
    },
    "zh": {
        "protect": "守护", "kill": "选择袭击目标", "check": "查验", "witch": "女巫行动", "shoot": "可以开枪", "speak": "发言",
        "vote": "投票", "day": "发言并投票", "last_words": "遗言",
    },
}  # fmt: skip
RESULTS: dict[Language, dict[str, str]] = {
    "en": {"wolf": "The wolves win", "good": "The good side wins", "draw": "A draw"},
    "zh": {"wolf": "狼人获胜", "good": "好人获胜", "draw": "平局"},
}
CAUSES: dict[Language, dict[str, str]] = {
    "en": {
        "wolves_dead": "every werewolf is dead", "side_wiped": "all villagers, or all with a power, are dead",
        "parity": "the wolves are as many as the others", "max_days": "the last day has ended",
    },
    "zh": {
        "wolves_dead": "狼人全部死亡", "side_wiped": "村民全部死亡，或神职全部死亡", "parity": "狼人数不少于其他人",
        "max_days": "已到最后一天",
    },
}  # fmt: skip


class EventLike(Protocol):
    """The fields of an event that are told."""

    @property
    def day(self) -> int: ...
    @property
    def kind(self) -> str: ...
    @property
    def actor(self) -> int | None: ...
    @property
    def target(self) -> int | None: ...
    @property
    def text(self) -> str: ...
    @property
    def players(self) -> tuple[int, ...]: ...
    @property
    def votes(self) -> tuple[tuple[int, int | None], ...]: ...
    @property
    def is_wolf(self) -> bool | None: ...


def seat_word(seat: int | None, language: Language) -> str:
    """``Player3`` or ``3号``; nobody for None."""
    if seat is None:
        return "nobody" if language == "en" else "无人"
    return f"Player{seat + 1}" if language == "en" else f"{seat + 1}号"


def seat_words(seats: Iterable[int], language: Language) -> str:
    names = [seat_word(seat, language) for seat in seats]
    return (", " if language == "en" else "、").join(names) or seat_word(None, language)


def narrate(event: EventLike, language: Language) -> str:
    """One event as a narrator tells it who knows everything."""
    en = language == "en"
    actor, target = seat_word(event.actor, language), seat_word(event.target, language)
    several = seat_words(event.players, language)
    words = put(event.text, language) or ("(says nothing)" if en else "（沉默）")
    kind = event.kind
    if kind == "role":
        role = ROLES[language].get(event.text, event.text)
        return f"{actor} is dealt the {role}." if en else f"{actor}的身份是{role}。"
    if kind == "teammates":
        return f"The wolves are {several}." if en else f"狼人是{several}。"
    if kind == "wolf_pick":
        said = "" if not event.text else f' and says to the wolves: "{words}"' if en else f"，并对狼同伴说：“{words}”"
        return f"{actor} picks {target}{said or '.'}" if en else f"{actor}选择{target}{said or '。'}"
    if kind == "wolf_target":
        return f"The wolves attack {target}." if en else f"狼队今晚袭击{target}。"
    if kind == "check":
        result = ("a wolf" if event.is_wolf else "good") if en else ("狼人" if event.is_wolf else "好人")
        return f"The seer, {actor}, checks {target}: {result}." if en else f"预言家{actor}查验{target}：{result}。"
    if kind == "witch_sees":
        return (
            f"The witch, {actor}, sees who was attacked: {target}." if en else f"女巫{actor}看到被袭击的是：{target}。"
        )
    if kind == "witch_saved":
        return f"The witch saves {target}." if en else f"女巫使用解药救了{target}。"
    if kind == "witch_poisoned":
        return f"The witch poisons {target}." if en else f"女巫使用毒药毒了{target}。"
    if kind == "guarded":
        return f"The guard, {actor}, protects {target}." if en else f"守卫{actor}守护{target}。"
    if kind == "idiot":
        return (
            f"{actor} is voted out, reveals the idiot, and lives on without a vote."
            if en
            else f"{actor}被投票放逐，翻牌为白痴，免于出局，此后不能投票。"
        )
    if kind == "deaths":
        return (
            f"Day {event.day} breaks. Died in the night: {several}."
            if en
            else f"第{event.day}天天亮，昨夜死亡：{several}。"
        )
    if kind == "shot":
        return f"{actor} is the hunter and shoots {target}." if en else f"{actor}是猎人，开枪带走{target}。"
    if kind in ("speech", "last_words"):
        lead = actor if kind == "speech" else f"{actor}, last words" if en else f"{actor}的遗言"
        return f"{lead}: {words}" if en else f"{lead}：{words}"
    if kind == "votes":
        pairs = ", ".join(f"{voter + 1}→{'–' if choice is None else choice + 1}" for voter, choice in event.votes)
        return f"The vote: {pairs}" if en else f"投票：{pairs}"
    if kind == "tie":
        return f"Tie between {several}; they speak again." if en else f"平票：{several}，他们再次发言。"
    if kind == "exile":
        return f"{target} is exiled." if en else f"{target}被放逐。"
    if kind == "no_exile":
        return "Nobody is exiled." if en else "无人被放逐。"
    if kind == "game_over":
        return (
            f"{RESULTS[language].get(event.text, event.text)}."
            if en
            else f"{RESULTS[language].get(event.text, event.text)}。"
        )
    return f"{kind}: {actor} → {target}"


def put(text: str, language: Language) -> str:
    """A statement on one line. The plain sentences of scripted players and small models are put into ``language``;
    whatever else was said stays as it was said."""
    words = " ".join(text.split())
    if language == "en" or not words:
        return words
    return "".join(_sentence_zh(part) for part in _sentences(words)) if _all_plain(words) else words


def _sentences(words: str) -> list[str]:
    return [part.strip() + "." for part in words.split(".") if part.strip()]


def _all_plain(words: str) -> bool:
    return words.isascii() and all(_sentence_zh(part) for part in _sentences(words))


def _sentence_zh(sentence: str) -> str:
    """A plain English sentence in Chinese; empty where it is none."""
    if sentence == "I have no idea.":
        return "我没有头绪。"
    said = understand(sentence)
    if said.claims_seer and sentence == "I am the seer.":
        return "我是预言家。"
    if said.claims in ROLES["zh"] and sentence in (f"I am a {said.claims}.", f"I am the {said.claims}."):
        return f"我是{ROLES['zh'][said.claims]}。"
    if len(said.stances) == 1:
        _, seat = said.stances[0]
        name = f"Player{seat + 1}"
        forms = {
            f"I suspect {name}.": "我怀疑{}。", f"I trust {name}.": "我相信{}。",
            f"{name} is a wolf.": "{}是狼人。", f"{name} is good.": "{}是好人。",
        }  # fmt: skip
        if sentence in forms:
            return forms[sentence].format(f"{seat + 1}号")
    return ""
