"""The terminal: keeps looking at a server through a :class:`Looks` and shows frames. Needs Textual.

Promises: the screen always shows what was last known and says how old it is; a server's absence never ends it; it ends
by ``q``, or by a key that does not open the server.
"""

from __future__ import annotations

import asyncio
from typing import ClassVar, Protocol

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.geometry import Region
from textual.message import Message
from textual.widgets import Footer, Static

from ajet.monitor.overwatch.feed import View
from ajet.monitor.overwatch.frame import frame
from ajet.schema.errors import AjetError


class Looks(Protocol):
    """What is shown: :class:`ajet.monitor.overwatch.feed.Feed`."""

    @property
    def view(self) -> View: ...

    async def look(self) -> View: ...

    def pause(self, interval_s: float) -> float: ...

    async def close(self) -> None: ...


class FrameScroll(VerticalScroll):
    """Where the frame stands; says so when its size has changed."""

    class Changed(Message):
        """It is larger or smaller now."""

    def on_resize(self) -> None:
        self.post_message(self.Changed())


class Overwatch(App[None]):
    """See the module.

    Args:
        interval_s: seconds between two looks at a server that answers.

    Attributes:
        fault: why it ended, where that was not the user's wish.
    """

    TITLE = "ajet-swarm overwatch"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Screen { background: ansi_default; color: ansi_default; }
    #scroll { height: 1fr; scrollbar-size-vertical: 1; scrollbar-gutter: stable; background: ansi_default; }
    #frame { width: 100%; height: auto; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q,ctrl+c", "quit", "Quit", priority=True, key_display="q"),
        Binding("a", "all", "Show all, ↑ ↓ scroll"),
        Binding("r", "look", "Look now"),
    ]

    def __init__(self, feed: Looks, interval_s: float = 2.0) -> None:
        super().__init__(ansi_color=True)
        self.fault: AjetError | None = None
        self._feed = feed
        self._interval_s = interval_s
        self._wake = asyncio.Event()
        self._all = False

    def compose(self) -> ComposeResult:
        with FrameScroll(id="scroll"):
            yield Static(id="frame", markup=False)
        yield Footer(compact=True, show_command_palette=False)

    def on_mount(self) -> None:
        self.query_one("#scroll").focus()
        self._draw()
        self.run_worker(self._watch(), exit_on_error=True)

    def on_frame_scroll_changed(self) -> None:
        self._draw()

    def action_all(self) -> None:
        """Show all that is known, to be scrolled through; or again what fits."""
        self._all = not self._all
        self._draw()
        self.query_one("#scroll").scroll_home(animate=False)

    def action_look(self) -> None:
        """Do not wait for the next look."""
        self._wake.set()

    async def _watch(self) -> None:
        try:
            while True:
                self._wake.clear()
                try:
                    await self._feed.look()
                except AjetError as err:
                    self.fault = err
                    self.exit(return_code=1)
                    return
                self._draw()
                try:
                    await asyncio.wait_for(self._wake.wait(), self._feed.pause(self._interval_s))
                except asyncio.TimeoutError:
                    continue
        finally:
            await self._feed.close()

    def _draw(self) -> None:
        scroll = self.query(FrameScroll)
        room = scroll.first().scrollable_content_region if scroll else Region()
        if not room:  # no layout yet, or none any more
            return
        lines = frame(self._feed.view, room.width, None if self._all else room.height)
        self.query_one("#frame", Static).update(Text("\n").join(lines))
