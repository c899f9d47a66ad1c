"""The terminal view of a replay, by day and night. Needs Textual.

Left the seats as the view knows them, right what happened in the night or day that is shown. Fits 80×24. A view is
chosen by a key; ``r`` adds the prompts, private words and replies of the seats whose eyes it has.
"""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.widgets import Footer, Static

from ajet.envs.werewolves.replay import Replay, View
from ajet.envs.werewolves.wording import Language
from ajet.monitor.replay.story import fates, phases
from ajet.monitor.replay.text import head, phase_word, seat_lines, summary, told, view_word

SEATS = 27
"""Cells of the left column."""


class Told(VerticalScroll):
    """What happened."""

    def on_resize(self) -> None:
        if isinstance(self.app, ReplayApp):
            self.app.draw()


class ReplayApp(App[None]):
    """See the module."""

    TITLE = "ajet-swarm replay"
    ENABLE_COMMAND_PALETTE = False
    CSS = f"""
    Screen {{ background: ansi_default; color: ansi_default; }}
    #head {{ height: 1; }}
    #strip {{ height: 1; margin-bottom: 1; }}
    #seats {{ width: {SEATS}; height: 1fr; padding-right: 1; }}
    #told {{ height: 1fr; scrollbar-size-vertical: 1; scrollbar-gutter: stable; background: ansi_default; }}
    #words {{ width: 100%; height: auto; }}
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q,ctrl+c", "quit", "Quit", priority=True, key_display="q"),
        Binding("right,n", "go(1)", "On", key_display="→"),
        Binding("left,b", "go(-1)", "Back", key_display="←"),
        Binding("g", "see('god')", "God"),
        Binding("1,2,3,4,5,6,7,8,9", "seat", "Seat", key_display="1-9", show=True),
        Binding("w", "see('wolves')", "Wolf"),
        Binding("p", "see('public')", "Public"),
        Binding("r", "private", "Replies"),
        Binding("t", "tables", "Tables"),
        Binding("l", "language", "Lang"),
        Binding("v", "next_seat", show=False),
        Binding("home", "first", show=False),
        Binding("end", "last", show=False),
    ]

    def __init__(self, replay: Replay, view: View = "god", language: Language = "en") -> None:
        super().__init__(ansi_color=True)
        self.replay = replay
        self.view: View = view
        self.words: Language = language
        self.at = 0
        self.private = False
        self.tables = False
        self._phases = phases(replay)

    def compose(self) -> ComposeResult:
        yield Static(id="head", markup=False)
        yield Static(id="strip", markup=False)
        with Horizontal():
            yield Static(id="seats", markup=False)
            with Told(id="told"):
                yield Static(id="words", markup=False)
        yield Footer(compact=True, show_command_palette=False)

    def on_mount(self) -> None:
        self.query_one("#told").focus()
        self.draw()

    def draw(self) -> None:
        """Show the phase, view and language that are chosen."""
        scroll = self.query(Told)
        if not scroll or not scroll.first().scrollable_content_region:
            return  # no layout yet
        width = scroll.first().scrollable_content_region.width
        phase = self._phases[self.at]
        title = head(self.replay, self.words, short=True)
        title.truncate(self.size.width, overflow="ellipsis")
        self.query_one("#head", Static).update(title)
        self.query_one("#strip", Static).update(self._strip())
        seats = seat_lines(self.replay, self.view, phase.end, self.words, SEATS - 1)
        view = Text.assemble("", (view_word(self.replay, self.view, self.words), "bold reverse"))
        self.query_one("#seats", Static).update(Text("\n").join([*seats, Text(), view]))
        shown = (
            summary(self.replay, self.view, self.words)
            if self.tables
            else told(self.replay, phase, self.view, self.words, width, private=self.private)
        )
        self.query_one("#words", Static).update(Text("\n").join(shown))

    def _strip(self) -> Text:
        """All nights and days on one line, with those who fell; the shown one marked. Around it where the line is short."""
        parts: list[Text] = []
        for n, phase in enumerate(self._phases):
            before, after = (fates(self.replay, self.view, k) for k in (phase.start, phase.end))
            fell = " ".join(str(seat + 1) for seat in after if seat not in before)
            mark = "☾" if phase.kind == "night" else "☀"
            label = phase_word(phase, self.words) if n == self.at else str(phase.day)
            style = "bold reverse" if n == self.at else "blue" if phase.kind == "night" else "yellow"
            parts.append(Text(f" {mark} {label}{f' †{fell}' if fell else ''} ", style))
        first = 0
        while sum(p.cell_len for p in parts[first : self.at + 1]) > self.size.width - 6 and first < self.at:
            first += 1
        line = Text.assemble(*parts[first:], no_wrap=True)
        line.truncate(self.size.width, overflow="ellipsis")
        return line

    def _turn(self) -> None:
        self.draw()
        self.query_one("#told", Told).scroll_home(animate=False)

    def action_go(self, by: int) -> None:
        """To another night or day."""
        self.at = max(0, min(len(self._phases) - 1, self.at + by))
        self.tables = False
        self._turn()

    def action_first(self) -> None:
        self.action_go(-len(self._phases))

    def action_last(self) -> None:
        self.action_go(len(self._phases))

    def action_see(self, view: View) -> None:
        """Through other eyes."""
        self.view = view
        self._turn()

    def action_private(self) -> None:
        """Prompts, private words and replies, or none."""
        self.private = not self.private
        self.tables = False
        self._turn()

    def action_tables(self) -> None:
        """Votes, nights, suspicion and players, or back."""
        self.tables = not self.tables
        self._turn()

    def action_language(self) -> None:
        self.words = "zh" if self.words == "en" else "en"
        self.draw()

    def on_key(self, event: object) -> None:
        """A seat's number is a view."""
        key = getattr(event, "key", "")
        if len(key) == 1 and key.isdigit() and 0 < int(key) <= len(self.replay.seats):
            self.action_see(int(key) - 1)

    def action_next_seat(self) -> None:
        """The next seat's view: for tables of more than nine."""
        seat = self.view if isinstance(self.view, int) else -1
        self.action_see((seat + 1) % len(self.replay.seats))

    def action_seat(self) -> None:
        """Named in the footer; the number itself is read in :meth:`on_key`."""
