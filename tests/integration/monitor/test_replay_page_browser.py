"""Claims about the replay page in a headless Chromium.

Without a browser these are skipped and say so; ``AJET_DEMAND_CHROMIUM=1`` (set where CI installs one) makes that a failure.
What the page is given to show is checked without a browser in ``tests/unit/monitor/test_replay_page.py``.
"""

from __future__ import annotations

import os
import struct

import pytest

from ajet.monitor.replay.page import page
from ajet.monitor.replay.story import known_roles
from tests.fakes.chromium import VARIABLE, browse, find
from tests.unit.monitor.replays import game, joined

BROWSER = find()
DEMANDED = os.environ.get("AJET_DEMAND_CHROMIUM") == "1"
pytestmark = pytest.mark.skipif(
    BROWSER is None and not DEMANDED,
    reason=f"no Chromium on the PATH nor in {VARIABLE}; install the package chromium to run the page's browser tests",
)

STATE = "replayState()"


@pytest.fixture
async def tab():
    assert BROWSER, f"AJET_DEMAND_CHROMIUM=1, but no Chromium is on the PATH nor in {VARIABLE}"
    async with browse(BROWSER) as opened:
        await opened.size(1280, 900)
        yield opened
        assert opened.problems == []
        assert opened.requests == []


@pytest.fixture
def address(tmp_path):
    def write(replay, **options):
        path = tmp_path / "game.html"
        path.write_text(page(replay, **options), encoding="utf-8")
        return path.as_uri()

    return write


def shown(selector):
    return f"[...document.querySelectorAll('{selector}')].map(n => n.innerText.trim())"


async def test_the_page_opens_whole_without_a_request_and_is_steered_by_keys(tab, address):
    replay = joined()
    last = len(replay.events) - 1
    await tab.open(address(replay))
    assert await tab.value(STATE) == {"at": last, "view": "god", "lang": "en", "theme": "auto", "colour": "prob", "playing": False}  # fmt: skip
    assert await tab.value("document.querySelectorAll('.seat').length") == 9
    assert await tab.value("document.querySelectorAll('.phase').length") == 2 * replay.days
    await tab.press("Home")
    await tab.until("replayState().at", 0)
    await tab.press("ArrowRight", "ArrowRight", "ArrowLeft")
    await tab.until("replayState().at", 1)
    await tab.press("]")
    await tab.until("document.querySelector('#told').innerText.startsWith('Day 1 breaks')")
    await tab.until("document.querySelector('.entry.now .fact').innerText.startsWith('Day 1 breaks')")
    await tab.press("w")
    await tab.until("replayState().view", "wolves")
    await tab.press("4", "l")
    await tab.until("replayState().view + replayState().lang", "4zh")
    assert await tab.value("document.documentElement.lang") == "zh-CN"
    assert "狼人杀" in await tab.value("document.title")
    await tab.press("t", "t", "c")
    await tab.until("replayState().theme + replayState().colour", "darkadv")
    await tab.press("?")
    await tab.until("document.querySelector('#keys').open")
    await tab.press("Escape")
    await tab.until("document.querySelector('#keys').open", False)
    await tab.until("document.activeElement === document.body")  # where the focus was
    await tab.press(" ")
    await tab.until("replayState().playing")
    await tab.press(" ")
    await tab.until("replayState().playing", False)


async def test_every_control_is_reached_by_tab_and_works_by_enter(tab, address):
    await tab.open(address(joined()), "e=3")
    focused = set()
    for _ in range(60):
        await tab.press("Tab")
        focused.add(await tab.value("document.activeElement.id || document.activeElement.className.baseVal || document.activeElement.className"))  # fmt: skip
    assert {"view", "theme", "help", "first", "prev", "play", "next", "last", "slider", "seat", "entries"} <= focused
    await tab.value("document.querySelectorAll('.seat')[4].focus()")
    await tab.press("Enter")
    await tab.until("replayState().view", "5")
    await tab.value("document.querySelector('#last').focus()")
    await tab.press("Enter")
    await tab.until("replayState().at === Number(document.querySelector('#slider').max)")


async def test_a_view_shows_its_own_roles_events_and_thoughts_and_no_others(tab, address):
    replay = joined()
    n = len(replay.events)
    where = address(replay)
    for view, which in (("god", "god"), ("public", "public"), ("wolves", "wolves"), ("1", 0), ("5", 4)):
        await tab.open(where, f"view={view}&lang=en")
        labels = await tab.value("[...document.querySelectorAll('.seat')].map(n => n.getAttribute('aria-label'))")
        known = known_roles(replay, which, n)
        for seat, label in enumerate(labels):
            assert label.split(", ")[1].split(".")[0] == known.get(seat, "unknown"), label
        seats = {"god": set(range(9)), "public": set(), "wolves": set(replay.wolves)}.get(view) or {which} - {view}
        thoughts = await tab.value(shown(".mind p"))
        own = [x.private for d in replay.decisions if d.seat in seats for x in d.exchanges if x.private]
        assert sorted(" ".join(t.split()) for t in thoughts) == sorted(" ".join(t.split()) for t in own)


async def test_tokens_are_coloured_by_probability_and_by_advantage_and_tell_their_numbers(tab, address):
    replay = joined()
    where = address(replay)
    await tab.open(where, "colour=prob")
    colours = "[...new Set([...document.querySelectorAll('.tokens span')].map(n => n.style.background))].length"
    assert await tab.value(colours) > 5
    calls = [x.call for d in replay.decisions for x in d.exchanges if x.call]
    assert await tab.value("document.querySelectorAll('.tokens').length") == len(calls)
    assert await tab.value("document.querySelectorAll('.tokens span').length") == sum(len(c.ids) for c in calls)
    assert await tab.value("document.querySelectorAll('.tokens span.off').length") == len(calls)
    await tab.value("document.querySelector('.tokens').focus()")
    await tab.press("ArrowRight", "ArrowRight")
    await tab.until(
        "document.querySelector('.read').innerText.includes('probability 0.923 · log-prob −0.080 · trained')"
    )
    await tab.open(where, "colour=adv")
    tints = "[...new Set([...document.querySelectorAll('.tokens span')].map(n => n.style.background))]"
    kinds = await tab.value(tints)
    assert len(kinds) == 3, kinds  # encouraged, discouraged, not trained
    await tab.open(where, "colour=off")
    assert await tab.value("document.querySelectorAll('.tokens').length") == 0


async def test_prompts_are_shown_whole(tab, address):
    replay = joined()
    await tab.open(address(replay))
    seat = replay.decisions[-1].seat
    decision, _, prompt = list(replay.prompts(seat))[-1]
    await tab.value("document.querySelectorAll('details.raw').forEach(d => { d.open = true; })")
    await tab.value(
        "new Promise((done) => { const look = () => ([...document.querySelectorAll('details.raw')].every(d => "
        "d.querySelector('pre')) ? done() : requestAnimationFrame(look)); look(); })"
    )
    texts = await tab.value("[...document.querySelectorAll('details.raw')].map(d => [...d.querySelectorAll('.msg pre:last-of-type')].map(p => p.textContent))")  # fmt: skip
    mine = [m["content"] for m in prompt]
    assert decision.exchanges
    assert any(t[: len(mine)] == mine for t in texts)


async def test_a_replay_without_a_join_says_how_to_get_the_numbers(tab, address):
    await tab.open(address(game()))
    assert "--join" in await tab.value("document.querySelector('#legend').innerText")
    assert await tab.value("document.querySelectorAll('.tokens').length") == 0


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize(("width", "height", "phone"), [(1280, 900, False), (390, 844, True), (320, 640, True)])
async def test_nothing_is_wider_than_the_screen(tab, address, width, height, phone, language):
    await tab.size(width, height, phone=phone)
    await tab.open(address(joined(2, language), language=language), "e=30")
    assert await tab.value("document.documentElement.scrollWidth") <= width
    small = "[...document.querySelectorAll('button, select, summary, input')].filter(n => n.offsetParent && !n.closest('.log .line, .seat') && n.getBoundingClientRect().height < 24).map(n => n.outerHTML.slice(0, 90))"  # fmt: skip
    assert await tab.value(small) == []
    picture = await tab.picture()
    assert struct.unpack(">II", picture[16:24]) == (width, height)
    assert len(picture) > 20_000  # something is drawn


async def test_text_has_contrast_in_both_themes(tab, address):
    where = address(joined())
    contrast = """(() => {
      const lum = (c) => { const v = c.map((x) => { x /= 255; return x <= .03928 ? x / 12.92 : ((x + .055) / 1.055) ** 2.4; }); return .2126 * v[0] + .7152 * v[1] + .0722 * v[2]; };
      const rgb = (s) => s.match(/[\\d.]+/g).map(Number);
      const ground = (n) => { for (; n; n = n.parentElement) { const c = rgb(getComputedStyle(n).backgroundColor); if (c.length < 4 || c[3] > 0) return c.slice(0, 3); } return [255, 255, 255]; };
      const low = [];
      for (const s of ['.lead', '.facts li', '.facts b', '.entries h3', '.entry .who', '.entry .fact', '.say', '.mind p', '.mind .tag', 'details.raw summary', 'th', 'td', '.role', '.num', '.sub', '.legend', '.btn', '.phase .name', 'footer', '.result'])
        for (const n of [...document.querySelectorAll(s)].slice(0, 12)) {
          if (n.closest('.later')) continue;
          const a = lum(rgb(getComputedStyle(n).color).slice(0, 3)), b = lum(ground(n));
          const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
          if (ratio < 4.5) low.push([s, n.innerText.slice(0, 20), +ratio.toFixed(2)]);
        }
      return low;
    })()"""
    for theme in ("light", "dark"):
        await tab.open(where, f"theme={theme}")
        assert await tab.value(contrast) == [], theme
