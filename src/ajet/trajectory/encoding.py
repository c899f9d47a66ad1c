"""Text ↔ token ids, with the tokenizer's own rules and no token computed twice.

Promises:

- A text encodes to exactly the ids of ``tokenizer.encode(text, add_special_tokens=False)``, but for look-alikes
  (see :class:`Rendered`), which are spelt out as ordinary tokens.
- What follows known ids encodes as it would in the middle of the text.
- Text between two markup tokens is independent of what surrounds it, so it is looked up when it was seen before: the
  rules every player reads, a speech that nine players hear. Where a tokenizer does not promise that (tokens that eat
  the space around them, say), nothing is looked up.

Used by :class:`ajet.trajectory.ChatRenderer` only, in one thread; :meth:`TextEncoder.count` and decoding in any.
"""

from __future__ import annotations

import re
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from ajet.trajectory.template import Rendered

KEPT_CHARS = 1_000_000
"""Text whose ids are kept, in characters; the least recently used go first. Some 10 MB with all that belongs to it."""
_ENTRY = 64
"""A piece counts as so many characters more, for what keeping it costs beside its text."""
_LONGEST = 20_000
"""Pieces longer than this are not kept: documents, which hardly come twice."""
_PROBE = "Grüße, 漢字 🐺!\n  def f(x):\t return 12345 <b>"


class TextEncoder:
    """Encodes and decodes for one tokenizer.

    Args:
        tokenizer: of transformers.
        anchor: a special token; what follows known ids is encoded after it, so that nothing is taken for the
            beginning of a text.
    """

    def __init__(self, tokenizer: Any, anchor: int) -> None:
        self._tokenizer = tokenizer
        self._backend: Any = getattr(tokenizer, "backend_tokenizer", None)
        if self._backend is not None and not self._agrees():
            self._backend = None
        self._anchor = tokenizer.convert_ids_to_tokens(anchor)
        if self._anchor is not None and self._ids(f"{self._anchor}x")[:1] != [anchor]:
            self._anchor = None
        self.added: dict[str, int] = self._added_tokens()
        """Text → id of the tokens that are found in plain text."""
        self._markup = self._independent_markup()
        self._known: OrderedDict[str, array[int]] = OrderedDict()
        self._known_chars = 0

    def _agrees(self) -> bool:
        """Whether the tokenizer proper does what transformers' wrapper of it does."""
        self._backend.no_truncation()
        self._backend.no_padding()
        ids = self._tokenizer.encode(_PROBE, add_special_tokens=False)
        return list(ids) == self._ids(_PROBE) and all(
            self._tokenizer.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
            == self.decode(ids, skip_special=skip)
            for skip in (True, False)
        )

    def _added_tokens(self) -> dict[str, int]:
        if self._backend is not None:
            return {token.content: i for i, token in self._backend.get_added_tokens_decoder().items()}
        special = dict(zip(self._tokenizer.all_special_tokens, self._tokenizer.all_special_ids, strict=True))
        return {**self._tokenizer.get_added_vocab(), **special}

    def _independent_markup(self) -> re.Pattern[str] | None:
        """Splits a text at its added tokens; None where the text in between does not stand for itself."""
        if self._backend is None or self._anchor is None:
            return None
        for token in self._backend.get_added_tokens_decoder().values():
            if token.lstrip or token.rstrip or token.single_word:
                return None
            if token.normalized and self._backend.normalizer is not None:
                return None
        longest_first = sorted(self.added, key=len, reverse=True)
        return re.compile(f"({'|'.join(map(re.escape, longest_first))})")

    # ── to ids ───────────────────────────────────────────────────────────────────────────────────────────────────

    def encode(self, rendered: Rendered, start: int = 0) -> list[int]:
        """Ids of the text from ``start`` on."""
        text = rendered.text
        ids: list[int] = []
        at = start
        for cut in (*(cut for cut in rendered.cuts if cut > start), len(text)):
            ids += self._piece(text[at:cut], first=at == 0)
            at = cut
        return ids

    def count(self, text: str) -> int:
        """How many tokens a text has by itself. Looks nothing up and keeps nothing, so any thread may ask."""
        return len(self._ids(text))

    def _piece(self, text: str, first: bool) -> list[int]:
        if self._markup is None:
            return self._ids(text) if first else self._inside(text)
        ids: list[int] = []
        between = True
        for part in self._markup.split(text):
            if not between:
                ids.append(self.added[part])
            elif part:
                ids += self._ids(part) if first else self._lookup(part)
            first = False
            between = not between
        return ids

    def _lookup(self, text: str) -> Sequence[int]:
        known = self._known.get(text)
        if known is not None:
            self._known.move_to_end(text)
            return known
        ids = self._inside(text)
        if len(text) <= _LONGEST:
            self._known[text] = array("i", ids)
            self._known_chars += len(text) + _ENTRY
            while self._known_chars > KEPT_CHARS:
                self._known_chars -= len(self._known.popitem(last=False)[0]) + _ENTRY
        return ids

    def _inside(self, text: str) -> list[int]:
        """Ids of a text that is not the beginning of one."""
        if self._anchor is None or not text:
            return self._ids(text)
        return self._ids(self._anchor + text)[1:]

    def _ids(self, text: str) -> list[int]:
        if self._backend is None:
            return list(self._tokenizer.encode(text, add_special_tokens=False))
        return self._backend.encode(text, add_special_tokens=False).ids

    # ── from ids ─────────────────────────────────────────────────────────────────────────────────────────────────

    def decode(self, ids: Sequence[int], *, skip_special: bool) -> str:
        """Text of ids, nothing tidied up."""
        if self._backend is None:
            return self._tokenizer.decode(
                list(ids), skip_special_tokens=skip_special, clean_up_tokenization_spaces=False
            )
        return self._backend.decode(ids if isinstance(ids, list) else list(ids), skip_special_tokens=skip_special)
