"""Prompts for real language models: one growing conversation per player, in English or Chinese.

The rules text is generated from the :class:`BoardOptions` that the engine runs. A player's conversation is only ever
appended to: each request adds one user message with what the player has learned since, and the reply is kept as it
was sent. Nothing but :meth:`Game.visible` gets in, and what others said stands on one line, so that nobody can forge an
announcement.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Literal

from ajet.envs.werewolves.engine import Event, Game, Request
from ajet.envs.werewolves.replies import ParsedReply, parse_reply
from ajet.envs.werewolves.rules import GODS, BoardOptions, Role

Language = Literal["en", "zh"]

ROLES_ZH = {
    "werewolf": "狼人",
    "seer": "预言家",
    "witch": "女巫",
    "hunter": "猎人",
    "guard": "守卫",
    "idiot": "白痴",
    "villager": "村民",
}


def seat_name(seat: int, language: Language) -> str:
    return f"Player{seat + 1}" if language == "en" else f"{seat + 1}号"


def _seats(seats: Any, language: Language) -> str:
    names = [seat_name(i, language) for i in seats]
    return (", " if language == "en" else "、").join(names) or ("nobody" if language == "en" else "无人")


def rules_text(options: BoardOptions, language: Language) -> str:
    """The rules, from the options."""
    return _rules_zh(options) if language == "zh" else _rules_en(options)


def _rules_en(options: BoardOptions) -> str:
    counts = Counter(options.roles)
    roles = ", ".join(f"{n} {_plural(role.value) if n > 1 else role.value}" for role, n in counts.items())
    win = {
        "side_wiped": f"all villagers are dead, or {_all_dead_en(_gods(counts))}",
        "parity": "the living wolves are at least as many as the other living players",
    }[options.wolf_win]
    save = {
        "never": "She may never save herself.",
        "first_night": "She may save herself in the first night only.",
        "always": "She may save herself.",
    }[options.witch_self_save]
    tie = {
        "revote": "After a tie the tied players speak and the others vote again among them; a second tie exiles nobody.",
        "nobody": "A tie exiles nobody.",
    }[options.day_tie]
    wolf_tie = {
        "seeded": "If their choices tie, one of the tied is drawn by lot.",
        "none": "If their choices tie, nobody is attacked.",
    }[options.wolf_tie]
    own = "You may vote for yourself." if options.self_vote else "You may not vote for yourself."
    guard = f"first {_guard_en(options, counts)} The" if Role.GUARD in counts else "the"
    night = [
        f"Night: {guard} wolves name a target one after another: any living player, wolves included, or nobody. {wolf_tie}"
    ]
    if Role.SEER in counts:
        night.append(
            "The seer learns of one other living player whether it is good or a wolf, never twice of the same."
        )
    if Role.WITCH in counts:
        night.append(
            "The witch has one antidote and one poison and may not use both in one night; she learns who was attacked "
            f"only while she holds the antidote. {save}"
        )
    if Role.HUNTER in counts:
        night.append("The hunter may shoot a living player when killed by wolves or exiled, not when poisoned.")
    idiot = f"{_idiot_en(options)} " if Role.IDIOT in counts else ""
    return (
        f"Werewolf with {len(options.roles)} players: {roles}. Everyone but the werewolves is on the good side.\n"
        f"Wolves win when {win}. The good side wins when all wolves are dead; this is checked first. "
        f"A game undecided at the end of day {options.max_days} is a draw.\n"
        f"{' '.join(night)}\n"
        f"Day: everyone speaks in turn, then all vote at once; abstaining is allowed. {own} {tie} {idiot}"
        "The first night's victim and exiled players have last words; poisoned and shot ones have none. "
        "Roles of the dead are not revealed."
    )


def _gods(counts: Counter[Role]) -> list[str]:
    return [role.value for role in Role if role in GODS and role in counts]


def _all_dead_en(gods: list[str]) -> str:
    if len(gods) == 1:
        return f"the {gods[0]} is dead"
    return f"{', '.join(gods[:-1])} and {gods[-1]} are {'both' if len(gods) == 2 else 'all'} dead"


def _guard_en(options: BoardOptions, counts: Counter[Role]) -> str:
    whom = "himself included" if options.guard_self else "but not himself"
    again = "also the same one night after night" if options.guard_repeat else "never the same one two nights running"
    text = f"the guard may protect one living player from the wolves, {whom}, {again}; poison still kills."
    if Role.WITCH in counts:
        text += (
            " The witch is shown the attacked player all the same; one who is both protected and given the antidote "
            f"{options.guard_and_save}."
        )
    return text


def _idiot_en(options: BoardOptions) -> str:
    after = {"immune": "nobody may vote for him", "exiled": "another vote against him exiles him"}[options.idiot_again]
    return f"An idiot who is voted out reveals himself and lives on: he still speaks, votes no more, and {after}."


def _guard_zh(options: BoardOptions, counts: Counter[Role]) -> str:
    whom = "可以守自己" if options.guard_self else "不能守自己"
    again = "可以连续两夜守同一人" if options.guard_repeat else "不能连续两夜守同一人"
    text = f"守卫先选择守护一名存活玩家免受狼人袭击，{whom}，{again}，也可以空守；守护不能抵挡毒药。"
    if Role.WITCH in counts:
        end = "仍会死亡" if options.guard_and_save == "dies" else "可以存活"
        text += f"女巫仍会得知谁被袭击；同时被守护和被救的玩家{end}。"
    return text


def _idiot_zh(options: BoardOptions) -> str:
    after = {"immune": "也不能再被投票", "exiled": "再次被投票放逐则出局"}[options.idiot_again]
    return f"白痴被投票放逐时翻牌，免于出局：之后仍可发言，不能投票，{after}。"


def _plural(role: str) -> str:
    return "werewolves" if role == "werewolf" else f"{role}s"


def _rules_zh(options: BoardOptions) -> str:
    counts = Counter(options.roles)
    roles = "、".join(f"{n} 名{ROLES_ZH[role.value]}" for role, n in counts.items())
    gods = [ROLES_ZH[god] for god in _gods(counts)]
    wiped = f"{'、'.join(gods)}{'全部' if len(gods) > 1 else ''}死亡"
    win = {"side_wiped": f"所有村民死亡，或{wiped}", "parity": "存活狼人数不少于其他存活玩家数"}
    save = {"never": "女巫不能救自己。", "first_night": "女巫只能在第一夜救自己。", "always": "女巫可以救自己。"}
    tie = {
        "revote": "平票者再次发言，其余玩家在他们之中重新投票；再次平票则无人出局。",
        "nobody": "平票则无人出局。",
    }
    wolf_tie = {"seeded": "意见平票时在平票目标中随机选一人。", "none": "意见平票时当夜无人被袭击。"}
    guard = _guard_zh(options, counts) if Role.GUARD in counts else ""
    night = [f"夜晚：{guard}狼人依次选择目标，可以是任何存活玩家（包括狼人），也可以空刀。{wolf_tie[options.wolf_tie]}"]
    if Role.SEER in counts:
        night.append("预言家查验一名其他存活玩家是好人还是狼人，不可重复查验。")
    if Role.WITCH in counts:
        night.append(
            "女巫有一瓶解药和一瓶毒药，同一夜不能同时使用；持有解药时才知道谁被袭击。" + save[options.witch_self_save]
        )
    if Role.HUNTER in counts:
        night.append("猎人被狼人杀死或被放逐时可以开枪带走一名存活玩家，被毒死则不能。")
    return (
        f"{len(options.roles)} 人狼人杀：{roles}。狼人以外都属于好人阵营。\n"
        f"狼人获胜：{win[options.wolf_win]}。好人获胜：所有狼人死亡（先判定）。"
        f"第 {options.max_days} 天结束仍未分出胜负为平局。\n"
        f"{''.join(night)}\n"
        f"白天：依次发言，然后同时投票，可以弃票，{'可以' if options.self_vote else '不能'}投自己。{tie[options.day_tie]}"
        f"{_idiot_zh(options) if Role.IDIOT in counts else ''}"
        "第一夜的死者和被放逐者有遗言，被毒死和被枪杀者没有。死者不公布身份。"
    )


_THINK_FIRST = {
    "en": "You may think first; nobody hears that.",
    "zh": "可以先思考，别人听不到。",
}
_END_WITH = {"en": "End with one line:", "zh": "最后单独一行："}
_WHAT: dict[str, dict[str, tuple[str, str]]] = {
    "en": {
        "protect": ("Whom do you protect?", '{"protect": "PlayerN" or null}'),
        "kill": ("Whom do you attack? Only your fellow wolves hear what you say.", '{"say": "...", "kill": "PlayerN" or null}'),
        "check": ("Whom do you check?", '{"check": "PlayerN" or null}'),
        "witch": ("What do you do?", '{"save": true or false, "poison": "PlayerN" or null}'),
        "shoot": ("You are dying and may shoot.", '{"shoot": "PlayerN" or null}'),
        "speak": ("It is your turn to speak to all players.", '{"say": "what all players hear"}'),
        "vote": ("Vote.", '{"vote": "PlayerN" or null}'),
        "day": ("Speak to all players, and vote; your vote stays secret until all have spoken.", '{"say": "what all players hear", "vote": "PlayerN" or null}'),
        "last_words": ("You are out of the game. Say your last words to all players.", '{"say": "what all players hear"}'),
    },
    "zh": {
        "protect": ("你要守护谁？", '{"protect": "N号" 或 null}'),
        "kill": ("你们要袭击谁？你说的话只有狼同伴能听到。", '{"say": "……", "kill": "N号" 或 null}'),
        "check": ("你要查验谁？", '{"check": "N号" 或 null}'),
        "witch": ("你要怎么做？", '{"save": true 或 false, "poison": "N号" 或 null}'),
        "shoot": ("你即将死亡，可以开枪。", '{"shoot": "N号" 或 null}'),
        "speak": ("轮到你向所有人发言。", '{"say": "所有人听到的话"}'),
        "vote": ("请投票。", '{"vote": "N号" 或 null}'),
        "day": ("请向所有人发言并投票；所有人发言完之前你的投票保密。", '{"say": "所有人听到的话", "vote": "N号" 或 null}'),
        "last_words": ("你已出局，请留下遗言。", '{"say": "所有人听到的话"}'),
    },
}  # fmt: skip


class Conversation:
    """One player's growing conversation, a :class:`~ajet.envs.werewolves.players.Style`."""

    repairs = 2

    def __init__(self, game: Game, seat: int, language: Language = "en") -> None:
        self.game, self.seat = game, seat
        self.language: Language = language
        self._read = 0
        role = game.roles[seat].value
        rules = rules_text(game.options, language)
        if language == "en":
            text = f"You play a game of Werewolf as {seat_name(seat, language)}. Your role: {role}.\n\n{rules}"
        else:
            text = f"你在玩狼人杀，你是{seat_name(seat, language)}，身份：{ROLES_ZH[role]}。\n\n{rules}"
        self._messages: list[dict[str, Any]] = [{"role": "system", "content": text}]

    def messages(self, request: Request) -> list[dict[str, Any]]:
        """Add what is new and the request; returns the conversation so far."""
        lines = [line for event in self._news() if (line := self.describe(event))]
        lines.append(self._question(request))
        return self._say("\n".join(lines))

    def repair(self, problem: str) -> list[dict[str, Any]]:
        """Ask again after a reply that could not be used."""
        if self.language == "en":
            return self._say(f"{problem} Nothing was done yet. Answer again in the required form.")
        return self._say("上一条回复无法使用，尚未生效。请按要求的格式重新回答。")

    def parse(self, text: str, request: Request) -> ParsedReply:
        return parse_reply(text, request)

    def remember(self, reply: dict[str, Any]) -> None:
        """Keep the reply exactly as the model sent it."""
        self._messages.append(reply)

    def _say(self, text: str) -> list[dict[str, Any]]:
        self._messages.append({"role": "user", "content": text})
        return list(self._messages)

    def _news(self) -> list[Event]:
        visible = self.game.visible(self.seat)
        news, self._read = visible[self._read :], len(visible)
        return news

    def _question(self, request: Request) -> str:
        en = self.language == "en"
        night = request.kind in ("protect", "kill", "check", "witch")
        head = (
            (f"Night {request.day}." if night else f"Day {request.day}.")
            if en
            else f"第{request.day}{'夜' if night else '天'}。"
        )
        parts = [head]
        if request.kind == "witch":
            if not request.may_save:
                parts.append("You cannot use the antidote now." if en else "现在不能使用解药。")
            if not request.may_poison:
                parts.append("The poison is used up." if en else "毒药已用完。")
        if request.legal:
            seats = _seats(request.legal, self.language)
            parts.append(f"You may name: {seats}." if en else f"可选：{seats}。")
        what, form = _WHAT[self.language][request.kind]
        parts += [what, _THINK_FIRST[self.language], f"{_END_WITH[self.language]} {form}"]
        return (" " if en else "").join(parts)

    def describe(self, event: Event) -> str:
        """One event in words; empty where the player needs no telling."""
        en = self.language == "en"

        def who(seat: int | None) -> str:
            return ("nobody" if en else "没有人") if seat is None else seat_name(seat, self.language)

        actor, target = who(event.actor), who(event.target)
        mine = event.actor == self.seat
        day = event.day
        words = " ".join(event.text.split()) or ("(nothing)" if en else "（沉默）")
        if event.kind == "teammates":
            names = _seats(event.players, self.language)
            return f"The wolves are {names}." if en else f"狼人是{names}。"
        if event.kind == "wolf_pick" and not mine:
            said = "" if not event.text else f' and says: "{words}"' if en else f"，并说：“{words}”"
            return f"Your fellow wolf {actor} picks {target}{said}" if en else f"狼同伴{actor}选择{target}{said}"
        if event.kind == "guarded":
            return f"You protect {target}." if en else f"你守护了{target}。"
        if event.kind == "wolf_target":
            return f"The wolves attack {target}." if en else f"狼队今晚袭击{target}。"
        if event.kind == "check":
            result = ("a wolf" if event.is_wolf else "good") if en else ("狼人" if event.is_wolf else "好人")
            return f"You checked {target}: {result}." if en else f"你查验了{target}：{result}。"
        if event.kind == "witch_sees":
            return f"{target[0].upper()}{target[1:]} was attacked tonight." if en else f"今晚{target}被袭击。"
        if event.kind == "witch_saved":
            return f"You saved {target}." if en else f"你救了{target}。"
        if event.kind == "witch_poisoned":
            return f"You poisoned {target}." if en else f"你毒了{target}。"
        if event.kind == "deaths":
            names = _seats(event.players, self.language)
            return f"Day {day} breaks. Died in the night: {names}." if en else f"第{day}天天亮，昨夜死亡：{names}。"
        if event.kind == "shot":
            return f"{actor} is the hunter and shoots {target}." if en else f"{actor}是猎人，开枪带走{target}。"
        if event.kind == "speech":
            return "" if mine else f'{actor} says: "{words}"' if en else f"{actor}说：“{words}”"
        if event.kind == "last_words":
            return "" if mine else f'Last words of {actor}: "{words}"' if en else f"{actor}的遗言：“{words}”"
        if event.kind == "votes":
            pairs = [f"{who(v)}→{who(t)}" for v, t in event.votes]
            return f"Votes: {', '.join(pairs)}." if en else f"投票：{'、'.join(pairs)}。"
        if event.kind == "tie":
            names = _seats(event.players, self.language)
            return f"Tie between {names}; they speak again." if en else f"平票：{names}，他们再次发言。"
        if event.kind == "exile":
            return f"{target} is exiled." if en else f"{target}被放逐。"
        if event.kind == "idiot":
            return (
                f"{actor} is voted out, reveals the idiot, and lives on without a vote."
                if en
                else f"{actor}被投票放逐，翻牌为白痴，免于出局，此后不能投票。"
            )
        if event.kind == "no_exile":
            return "Nobody is exiled." if en else "无人被放逐。"
        return ""


__all__ = ["Conversation", "Language", "rules_text", "seat_name"]
