"""A person at the table: told what their seat learns, asked what they decide, in English or Chinese.

The person is a :class:`~ajet.envs.werewolves.play.Player` like any other and learns through
:meth:`~ajet.envs.werewolves.engine.Game.visible` alone. Knows nothing of terminals: words go out by ``tell`` and lines
come in by ``ask``. What cannot be done is asked again with what can; nothing typed is ever an illegal action.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Literal

from ajet.envs.werewolves.engine import Action, Game, Request
from ajet.envs.werewolves.full import Conversation, Language, rules_text
from ajet.envs.werewolves.recording import Record
from ajet.envs.werewolves.replies import MAX_SPEECH, ParsedReply, as_bool, as_seat
from ajet.envs.werewolves.rules import Role
from ajet.envs.werewolves.wording import ROLES, put, seat_word, seat_words

Tone = Literal["news", "public", "ask", "wrong", "help", "title"]
Tell = Callable[[str, Tone], None]
Ask = Callable[[str], Awaitable[str]]
"""Returns one line. Raises EOFError where no more will come."""

_LOUD = frozenset({"deaths", "exile", "no_exile", "shot", "tie", "game_over"})
_NO = frozenset({"n", "no", "否", "不", "不救"})
_YES = frozenset({"y", "yes", "是", "救"})

_W: dict[Language, dict[str, str]] = {
    "en": {
        "you": "You are {name}, the {role}.", "fellows": "Your fellow wolves: {seats}.",
        "hint": "Answer with a player's number. ? shows what you may do, /who the table, /rules the rules, /quit leaves.",
        "protect": "Whom do you protect?", "kill": "Whom do the wolves attack?", "check": "Whom do you check?", "save": "{name} was attacked. Use the antidote? (y/n)",
        "poison": "Poison whom?", "shoot": "You are dying. Whom do you shoot?", "speak": "Your turn to speak:",
        "last_words": "Your last words:", "vote": "Your vote:", "revote": "Your vote among the tied:",
        "wolf_talk": "Say to your fellow wolves (Enter: nothing):",
        "may": "You may name {seats}{nobody}.", "or_nobody": ", or 0 for nobody", "only_nobody": "You may name nobody: 0.",
        "wrong": "“{what}” is not possible now.", "yes_no": "Answer y or n.",
        "free": "Say what you like; everybody hears it. Scripted players understand: I suspect Player3. / I trust Player3. / "
        "I am the seer. Player3 is a wolf. / … is good. / I am a villager.",
        "wolves_hear": "Only your fellow wolves hear it.", "night": "— Night {day} —", "day": "— Day {day} —",
        "dead": "dead", "alive": "alive", "silent": "(you say nothing)", "witch_none": "The antidote cannot be used tonight.",
    },
    "zh": {
        "you": "你是{name}，身份：{role}。", "fellows": "你的狼同伴：{seats}。",
        "hint": "用玩家号码回答。? 查看可以做什么，/who 查看座位，/rules 查看规则，/quit 离开。",
        "protect": "守护谁？", "kill": "今晚袭击谁？", "check": "查验谁？", "save": "{name}被袭击，使用解药吗？（y/n）",
        "poison": "毒谁？", "shoot": "你即将死亡，开枪带走谁？", "speak": "轮到你发言：",
        "last_words": "你的遗言：", "vote": "你的投票：", "revote": "在平票者中投票：",
        "wolf_talk": "对狼同伴说（回车为不说）：",
        "may": "可选：{seats}{nobody}。", "or_nobody": "，或 0（无人）", "only_nobody": "只能选 0（无人）。",
        "wrong": "现在不能选“{what}”。", "yes_no": "请回答 y 或 n。",
        "free": "随意发言，所有人都能听到。脚本玩家听得懂：我怀疑3号。/ 我相信3号。/ 我是预言家。3号是狼人。/ ……是好人。/ 我是村民。",
        "wolves_hear": "只有狼同伴能听到。", "night": "— 第{day}夜 —", "day": "— 第{day}天 —",
        "dead": "死亡", "alive": "存活", "silent": "（你没有发言）", "witch_none": "今晚不能使用解药。",
    },
}  # fmt: skip


class PersonLeft(Exception):
    """The person left the table before the game was over."""


class Person:
    """One seat, played by a person.

    Args:
        game: the game, for what the seat may see.
        seat: which player.
        tell: shows words. ask: asks for a line.
        record: told of what was asked and decided, for a replay.
    """

    def __init__(self, game: Game, seat: int, language: Language, tell: Tell, ask: Ask, record: Record | None) -> None:
        self.game, self.seat = game, seat
        self.language: Language = language
        self._tell, self._ask, self._record = tell, ask, record
        self._words = Conversation(game, seat, language)
        self._read = 0
        self._heading = ""
        self._shown: list[str] = []
        """What was shown since the last decision."""

    def _w(self, key: str, **values: object) -> str:
        return _W[self.language][key].format(**values)

    def say(self, text: str, tone: Tone) -> None:
        """Show a line."""
        self._shown.append(text)
        self._tell(text, tone)

    def greet(self) -> None:
        """Say who the person is. Call it once the roles are dealt."""
        role = self.game.roles[self.seat]
        self.say(
            self._w("you", name=seat_word(self.seat, self.language), role=ROLES[self.language][role.value]), "title"
        )
        if role is Role.WEREWOLF:
            fellows = sorted(self.game.wolves - {self.seat})
            self.say(self._w("fellows", seats=seat_words(fellows, self.language)), "news")
        self.say(self._w("hint"), "help")

    def catch_up(self) -> None:
        """Show what this seat has learned since the last time."""
        seen = self.game.visible(self.seat)
        news, self._read = seen[self._read :], len(seen)
        for event in news:
            if event.kind in ("role", "teammates"):
                continue
            self._head(event.day, night=event.audience is not None)
            words = self._words.describe(replace(event, text=put(event.text, self.language)))
            if words:
                self.say(words, "public" if event.kind in _LOUD else "news")

    def _head(self, day: int, *, night: bool) -> None:
        heading = self._w("night" if night else "day", day=day)
        if heading != self._heading:
            self._heading = heading
            self.say(heading, "title")

    # ── deciding ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def act(self, request: Request) -> Action:
        """Ask the person until the answer can be done.

        Raises:
            PersonLeft: they left, or no more lines will come.
        """
        self.catch_up()
        self._head(request.day, night=request.kind in ("protect", "kill", "check", "witch"))
        try:
            action = await self._decide(request)
        except EOFError as end:
            raise PersonLeft from end
        if self._record is not None:
            prompt, self._shown = "\n".join(self._shown), []
            reply = {"role": "assistant", "content": _reply(request, action)}
            self._record(request, [{"role": "user", "content": prompt}], reply, ParsedReply(action))
        return action

    async def _decide(self, request: Request) -> Action:
        if request.kind in ("speak", "last_words"):
            return Action(say=await self._line(request, request.kind, self._w("free")))
        if request.kind == "witch":
            return await self._witch(request)
        if request.kind == "day":
            say = await self._line(request, "speak", self._w("free"))
            return Action(await self._target(request, "vote"), say)
        target = await self._target(request, "revote" if request.kind == "vote" and request.revote else request.kind)
        if request.kind == "kill" and len(self.game.wolves) > 1:
            return Action(target, await self._line(request, "wolf_talk", self._w("wolves_hear")))
        return Action(target)

    async def _witch(self, request: Request) -> Action:
        if request.may_save:
            save = await self._yes_no(request, self._w("save", name=seat_word(request.victim, self.language)))
            if save:
                return Action(save=True)
        else:
            self.say(self._w("witch_none"), "help")
        return Action(await self._target(request, "poison")) if request.may_poison else Action()

    async def _target(self, request: Request, question: str) -> int | None:
        allowed = self._allowed(request)
        while True:
            line = await self._answer(request, f"{self._w(question)} [{self._numbers(request)}]", allowed)
            seat = None if line.strip() in ("0", "") and request.may_pass else as_seat(line)
            if seat is None and line.strip() == "":  # an empty line is a slip, not a choice
                self.say(allowed, "wrong")
                continue
            if (seat is None and request.may_pass) or (isinstance(seat, int) and seat in request.legal):
                return seat
            self.say(f"{self._w('wrong', what=line.strip()[:40])} {allowed}", "wrong")

    async def _yes_no(self, request: Request, question: str) -> bool:
        while True:
            line = (await self._answer(request, question, self._w("yes_no"))).strip().lower()
            if line in _YES or as_bool(line):
                return True
            if line in _NO:
                return False
            self.say(self._w("yes_no"), "wrong")

    async def _line(self, request: Request, question: str, help_: str) -> str:
        line = (await self._answer(request, self._w(question), help_)).strip()
        said = line.encode("utf-8", "replace").decode()[:MAX_SPEECH]
        if not said and question != "wolf_talk":
            self.say(self._w("silent"), "help")
        return said

    async def _answer(self, request: Request, question: str, help_: str) -> str:
        """One line that is no command."""
        while True:
            self._shown.append(question)
            line = await self._ask(question)
            command = line.strip().lower()
            if command in ("?", "？", "/help", "/?"):
                self.say(help_, "help")
                self.say(self._w("hint"), "help")
            elif command == "/who":
                for seat, lives in enumerate(self.game.alive):
                    self.say(f"{seat + 1}  {self._w('alive' if lives else 'dead')}", "help")
            elif command == "/rules":
                self.say(rules_text(self.game.options, self.language), "help")
            elif command in ("/quit", "/q", "/exit"):
                raise PersonLeft
            else:
                return line

    def _numbers(self, request: Request) -> str:
        return " ".join(map(str, [*(i + 1 for i in request.legal), *([0] if request.may_pass else [])]))

    def _allowed(self, request: Request) -> str:
        if not request.legal:
            return self._w("only_nobody")
        nobody = self._w("or_nobody") if request.may_pass else ""
        return self._w("may", seats=seat_words(request.legal, self.language), nobody=nobody)


def _reply(request: Request, action: Action) -> str:
    """A decision as the line a model would have sent."""
    if request.kind in ("speak", "last_words"):
        return action.say
    name = "nobody" if action.target is None else f"Player{action.target + 1}"
    verb = {"day": "vote", "witch": "poison"}.get(request.kind, request.kind)
    line = "save: yes" if action.save else f"{verb}: {name}"
    return f"{action.say}\n{line}" if action.say else line
