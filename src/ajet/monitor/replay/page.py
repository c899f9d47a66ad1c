"""A replay as one HTML page that is whole in itself: works offline, makes no request, needs no server.

What each view may see is worked out here, from the audiences that the engine gave each event; the page's script
(``page_words.js`` and ``page.js``, put into ``page.html`` beside this file) only shows it. Words of the replay go into the page as JSON with
every ``<`` escaped, and the script sets text as text, so that nothing a model said becomes markup. A
Content-Security-Policy in the page forbids all requests.

The page holds the whole game, whichever view it opens with.
"""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

from ajet.envs.werewolves.replay import Replay, View, eyes, fallen, sees
from ajet.envs.werewolves.wording import CAUSES, KINDS, RESULTS, ROLES, Language, narrate, put
from ajet.monitor.replay.story import known_roles, phases

SCRIPTS = ("page_words.js", "page.js")
LANGUAGES: tuple[Language, ...] = ("en", "zh")


def page(replay: Replay, *, view: View = "god", language: Language = "en") -> str:
    """The page, opened with a view and a language."""
    room = resources.files("ajet.monitor.replay")
    shell = (room / "page.html").read_text(encoding="utf-8")
    script = "".join((room / name).read_text(encoding="utf-8") for name in SCRIPTS)
    data = json.dumps(page_data(replay, view=view, language=language), ensure_ascii=False, separators=(",", ":"))
    # Inside a script element only "<" could end it; U+2028/9 are line ends to old parsers.
    safe = data.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    head, _, tail = shell.partition("/*DATA*/")
    middle, _, end = tail.partition("/*SCRIPT*/")
    return "".join((head, safe, middle, script, end))


def view_name(view: View) -> str:
    """How the page names a view: a player by its number."""
    return str(view + 1) if isinstance(view, int) else view


def page_data(replay: Replay, *, view: View = "god", language: Language = "en") -> dict[str, Any]:
    """All that the page knows.

    ``views``: name → seats whose eyes it has, indices of the events it sees, and ``known``: (event, seat, role), what it
    learns of roles and when, the surest first.
    """
    whole = replay.model_dump(mode="json")
    events = whole.pop("events")
    for record, event in zip(events, replay.events, strict=True):
        record["falls"] = fallen(event)
        record["told"] = {lang: narrate(event, lang) for lang in LANGUAGES}
        record["words"] = {lang: put(event.text, lang) for lang in LANGUAGES}
    decisions = whole.pop("decisions")
    views: list[View] = ["god", "public", "wolves", *range(len(replay.seats))]
    return {
        "replay": whole,
        "events": events,
        "decisions": decisions,
        "phases": [vars(phase) for phase in phases(replay)],
        "views": {view_name(one): _view(replay, one) for one in views},
        "words": {
            lang: {"roles": ROLES[lang], "kinds": KINDS[lang], "results": RESULTS[lang], "causes": CAUSES[lang]}
            for lang in LANGUAGES
        },
        "view": view_name(view),
        "lang": language,
    }


def _view(replay: Replay, view: View) -> dict[str, Any]:
    seats = eyes(replay, view)
    known: list[tuple[int, int, str]] = []
    before: dict[int, str] = {}
    for place, event in enumerate(replay.events):
        if not sees(event, seats):
            continue
        now = known_roles(replay, view, place + 1)
        known += [(place, seat, role) for seat, role in now.items() if before.get(seat) != role]
        before = now
    return {
        "eyes": sorted(seats),
        "events": [place for place, event in enumerate(replay.events) if sees(event, seats)],
        # Later knowledge is surer ("wolf" → "werewolf"): the page takes the first that applies.
        "known": sorted(known, key=lambda item: -item[0]),
    }
