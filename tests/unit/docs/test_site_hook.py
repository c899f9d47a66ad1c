"""What the site builder's hook changes in a page, and what not."""

from __future__ import annotations

from types import SimpleNamespace

from docs.generate.site_hook import join_lines, on_config, on_page_markdown


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
