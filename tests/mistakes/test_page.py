"""The page says what the tests of this folder see, and each of its rows is looked for by one of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.mistakes.page import DOCS, FILES, Language, render
from tests.mistakes.table import ROWS, SECTIONS


@pytest.mark.parametrize("language", FILES)
def test_the_page_is_made_from_the_rows(language: Language) -> None:
    page = (DOCS / FILES[language]).read_text(encoding="utf-8")
    assert page == render(language), "python -m tests.mistakes.page"


def test_every_row_is_provoked_by_a_test() -> None:
    tests = "\n".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    named = set(re.findall(r"\"([^\"\n]+)\"", tests))
    assert not set(ROWS) - named, "no test names them"


def test_rows_are_thirty_at_least_and_no_two_share_a_key() -> None:
    assert len(ROWS) == sum(len(rows) for _, rows in SECTIONS) >= 30


def test_a_pattern_finds_its_message_and_no_other() -> None:
    for row in ROWS.values():
        fixed = max(row.message.split("…"), key=len)
        assert len(fixed) > 20, row.key
        assert row.pattern().search(row.message.replace("…", "ANYTHING"))
        assert not row.pattern().search("something else went wrong")
