"""What the site builder's hook changes in a page, and what not."""

from __future__ import annotations

import re
from types import SimpleNamespace

from docs.generate.site_hook import join_lines, name_sources, on_config, on_page_markdown, wrap_messages
from tests.fakes.pages import ROOT


def _config(tmp_path, nav=None):
    return SimpleNamespace(docs_dir=str(tmp_path), nav=nav, extra={"coming": ["later", "there"]})


def test_a_missing_page_leaves_the_menu_and_others_stay(tmp_path):
    (tmp_path / "there.md").touch()
    nav = [{"Guides": [{"Later": "later.md"}, {"There": "there.md"}, {"Other": "other.md"}]}]
    assert on_config(_config(tmp_path, nav)).nav == [{"Guides": [{"There": "there.md"}, {"Other": "other.md"}]}]


def test_links_to_a_missing_page_become_words_and_others_stay(tmp_path):
    (tmp_path / "there.md").touch()
    page = SimpleNamespace(file=SimpleNamespace(src_uri="index.md"))
    text = "[A](later.md), [B](later.zh.md#x), [C](there.md), [D](other.md)"
    assert on_page_markdown(text, page=page, config=_config(tmp_path)) == "A, B, [C](there.md), [D](other.md)"


def test_lines_of_a_chinese_sentence_are_joined_without_a_space_and_code_is_not():
    assert join_lines("先落盘，\n后应答。\n\n下一段 token\n再来") == "先落盘，后应答。\n\n下一段 token\n再来"
    assert join_lines("```\n甲\n乙\n```\n") == "```\n甲\n乙\n```\n"
    assert join_lines("- 甲\n- 乙\n  续行") == "- 甲\n- 乙续行"
    assert join_lines("| 甲 |\n| 乙 |") == "| 甲 |\n| 乙 |"


def test_a_link_to_a_source_file_becomes_its_path():
    assert name_sources("[loop.py](../src/loop.py): …") == "<code>src/<wbr>loop.py</code>: …"
    assert name_sources("Replace [`solve`](../src/train.py).") == "Replace `solve` (<code>src/<wbr>train.py</code>)."
    assert name_sources("[D](other.md#part)") == "[D](other.md#part)"


def test_no_page_of_the_site_links_out_of_it():
    for page in (ROOT / "docs").glob("*.md"):
        left = re.findall(r"\]\(\.\./[^)]*\)", name_sources(page.read_text(encoding="utf-8")))
        assert not left, f"{page.name}: {left}"


def test_a_message_wraps_and_a_drawing_does_not():
    assert wrap_messages("```text\nwhat happened\n```\n") == "```{ .text .message }\nwhat happened\n```\n"
    sentence = "what happened, " * 10
    assert wrap_messages(f"```text\n{sentence}\n  more\n```\n") == f"```{{ .text .message }}\n{sentence}\n  more\n```\n"
    aligned = f"```text\n{'left' + ' ' * 90}right\nnext\n```\n"
    for drawing in (aligned, "```text\na →\n  b\n```\n", "```bash\nls\n```\n", "```\nx\n```\n"):
        assert wrap_messages(drawing) == drawing
