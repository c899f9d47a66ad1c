"""The documentation is in two languages, its links lead somewhere, and what is generated is what the code says."""

from __future__ import annotations

import re

import pytest
import yaml

from ajet.copilot.job import AgentJetJob
from ajet.demo.werewolves import config_path
from docs.generate import configuration, http
from docs.generate.build import stale
from tests.fakes.pages import ROOT, pages

DOCS = ROOT / "docs"
SITE = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
COMING = set(SITE["extra"]["coming"])
"""Pages that may be missing for now."""


def test_what_is_generated_is_what_the_code_says():
    assert not stale(), "run: python -m docs.generate"


def test_every_key_and_route_has_its_chinese_words():
    assert not configuration.untranslated(), "add them to docs/generate/configuration_zh.yaml"
    assert not http.untranslated(), "add them to docs/generate/http_zh.yaml"


def test_every_page_is_in_both_languages():
    names = {page.name for page in DOCS.glob("*.md")}
    english = {name for name in names if not name.endswith(".zh.md")}
    assert {name.replace(".md", ".zh.md") for name in english} == names - english


def test_every_page_is_in_the_menu_and_the_menu_has_no_other():
    listed = {next(iter(entry.values())) for group in SITE["nav"] for part in group.values() for entry in part}
    there = {page.name for page in DOCS.glob("*.md") if not page.name.endswith(".zh.md")}
    assert there <= listed
    assert listed - there <= {f"{name}.md" for name in COMING}


def test_the_menu_is_translated():
    titles = {next(iter(entry)) for group in SITE["nav"] for part in group.values() for entry in part}
    titles |= {next(iter(group)) for group in SITE["nav"]}
    languages = next(p["i18n"] for p in SITE["plugins"] if isinstance(p, dict))["languages"]
    assert titles == set(languages[1]["nav_translations"])


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_links_lead_to_files_that_exist(page):
    text = re.sub(r"```.*?```|`[^`]*`", "", page.read_text(encoding="utf-8"), flags=re.S)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        name = target.partition("#")[0]
        if not name or re.sub(r"(\.zh)?\.md$", "", name.removeprefix("docs/")) in COMING:
            continue
        assert (page.parent / name).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", [p for p in pages() if p.name.endswith(".zh.md")], ids=lambda page: page.name)
def test_a_chinese_page_leads_to_chinese_pages(page):
    text = page.read_text(encoding="utf-8")
    others = [name for name in re.findall(r"\]\((?:docs/)?([\w-]+)\.md[)#]", text) if name != "README"]
    assert not others, f"{page.name} links to English pages"


def test_the_page_shows_the_tutorials_script_as_it_is():
    script = (ROOT / "tutorial/your_own_agent/mind_meld.py").read_text(encoding="utf-8").rstrip()
    for name in ("your-own-agent.md", "your-own-agent.zh.md"):
        assert f"```python\n{script}\n```" in (DOCS / name).read_text(encoding="utf-8"), name


@pytest.mark.parametrize("name", ["quickstart.md", "quickstart.zh.md", "../README.md", "../README.zh.md"])
def test_a_first_look_promises_no_rise_and_leads_on_to_the_usual_steps(name):
    text = (DOCS / name).read_text(encoding="utf-8")
    after = text[text.index("ajet-swarm demo werewolves --steps 5 --eval-games 60") :]
    before_next, found, _ = after.partition("ajet-swarm demo werewolves --continue")
    assert found
    assert len(before_next) < 1500, "the next command stands far from the first look"
    usual = AgentJetJob(config_path()).total_training_steps
    assert f" {usual} " in after[: len(before_next) + 300]


def test_pages_load_nothing_from_elsewhere():
    assert SITE["theme"]["font"] is False
    assert not SITE.get("extra_javascript")
    for page in pages():
        text = page.read_text(encoding="utf-8")
        assert not re.search(r"!\[[^\]]*\]\(https?:|<img[^>]+https?:|```mermaid", text), page.name
