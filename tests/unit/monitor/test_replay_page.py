"""Claims about the replay page that hold without a browser: it is whole in itself, and its data are the game's.

What a browser makes of it is in ``tests/integration/monitor/test_replay_page_browser.py``.
"""

import json
import re

import pytest

from ajet.envs.werewolves.replay import eyes, sees
from ajet.monitor.replay.page import page, page_data
from ajet.monitor.replay.story import known_roles
from tests.unit.monitor.replays import game, joined


def embedded(html):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.S)[1])


def test_the_page_asks_no_network_for_anything():
    html = page(joined())
    assert "default-src 'none'" in html
    shell = re.sub(r'<script type="application/json".*?</script>', "", html, flags=re.S)
    addresses = set(re.findall(r"(?:https?:)?//[\w.-]+\.[a-z]{2,}[^\s\"'<]*", shell))
    assert addresses == {"http://www.w3.org/2000/svg"}  # a name, never fetched
    for loader in (
        "fetch(",
        "XMLHttpRequest",
        "WebSocket",
        "import(",
        "@import",
        "url(http",
        "sendBeacon",
        "EventSource",
    ):
        assert loader not in shell
    assert re.findall(r"<(?:script|link|img|iframe)[^>]*(?:src|href)=\"(?!data:)[^\"]*\"", shell) == []


def test_the_embedded_data_are_the_game():
    replay = joined()
    data = embedded(page(replay, view=3, language="zh"))
    assert data == json.loads(json.dumps(page_data(replay, view=3, language="zh")))
    assert (data["view"], data["lang"]) == ("4", "zh")
    assert [e["kind"] for e in data["events"]] == [e.kind for e in replay.events]
    assert len(data["decisions"]) == len(replay.decisions)
    assert data["replay"]["seats"][0]["advantage"] == replay.seats[0].advantage
    for event in data["events"]:
        assert event["told"]["en"]
        assert event["told"]["zh"]


@pytest.mark.parametrize("seed", range(4))
def test_each_view_is_given_what_its_eyes_saw_and_learned(seed):
    replay = game(seed)
    data = page_data(replay)
    for name, view in data["views"].items():
        which = name if name in ("god", "public", "wolves") else int(name) - 1
        seats = eyes(replay, which)
        assert view["eyes"] == sorted(seats)
        assert view["events"] == [i for i, e in enumerate(replay.events) if sees(e, seats)]
        for at in range(0, len(replay.events), 7):
            known = {}
            for event, seat, role in view["known"]:  # as the page reads them
                if event <= at and seat not in known:
                    known[seat] = role
            assert known == known_roles(replay, which, at + 1)


def test_nothing_that_was_said_becomes_markup():
    replay = game()
    events = list(replay.events)
    place = next(i for i, e in enumerate(events) if e.kind == "speech")
    evil = "</script><script>alert(1)</script><img src=x onerror=alert(1)> \u2028 <!--"
    events[place] = events[place].model_copy(update={"text": evil})
    html = page(replay.model_copy(update={"events": tuple(events)}))
    assert evil.split(" ")[0] not in html
    assert html.count("</script>") == page(game()).count("</script>")
    assert embedded(html)["events"][place]["text"] == evil


def test_a_replay_that_holds_the_templates_own_words_is_put_in_unharmed():
    replay = game()
    events = list(replay.events)
    place = next(i for i, e in enumerate(events) if e.kind == "speech")
    events[place] = events[place].model_copy(update={"text": "/*SCRIPT*/ /*DATA*/"})
    html = page(replay.model_copy(update={"events": tuple(events)}))
    assert embedded(html)["events"][place]["text"] == "/*SCRIPT*/ /*DATA*/"
    assert html.count('"use strict"') == 1


def test_both_languages_have_every_word():
    html = page(game())
    blocks = re.findall(r"\n  (?:en|zh): \{\n(.*?)\n  \},", html, re.S)
    en, zh = (set(re.findall(r"(\w+):", re.sub(r'"[^"]*"', "", block))) for block in blocks)
    assert en == zh
    assert len(en) > 60
