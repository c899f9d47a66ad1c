"""What ``ajet-swarm overwatch`` does."""

from __future__ import annotations

import sys

from ajet.schema.errors import AjetError


def overwatch(url: str, interval_s: float, one_frame: bool) -> None:
    """Watch the server at ``url`` until the user quits, or print one frame.

    Raises:
        AjetError: what it takes is not there: a key that opens the server, a terminal, Textual; or, for one frame, the
            server.
    """
    if one_frame:
        from ajet.monitor.overwatch.once import once

        once(url)
        return
    if not (sys.stdin.isatty() and sys.stdout.isatty() and sys.stderr.isatty()):
        raise AjetError("This is no terminal to draw on. Use --once to print one frame as plain text.")
    try:
        from ajet.monitor.overwatch.app import Overwatch
    except ImportError as err:
        raise AjetError(
            f"The terminal view is not installed ({err.name} is missing). Run: pip install 'agentjet[monitor]', or use --once."
        ) from err
    from ajet.monitor.overwatch.feed import Feed

    app = Overwatch(Feed(url), interval_s)
    app.run()
    if app.fault is not None:
        raise app.fault
