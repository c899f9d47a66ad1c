"""Claims about the embedded default model: built from nothing by its script, legal, and without strategy."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from ajet.backbone import model_dir
from ajet.default_config.schema import BUILTIN_MODEL
from ajet.envs.werewolves.imitation import examples

torch = pytest.importorskip("torch")
from ajet.envs.werewolves.tiny import build  # noqa: E402

MODEL = model_dir(BUILTIN_MODEL)
RECORD = json.loads((MODEL / "build.json").read_text())


@pytest.fixture(scope="module")
def shipped():
    return build.Qwen2ForCausalLM.from_pretrained(MODEL).float().eval()


@pytest.fixture(scope="module")
def corpus():
    return build.Corpus(build.build_tokenizer())


def test_the_script_builds_the_shipped_tokenizer(tmp_path):
    build.build_tokenizer().save_pretrained(str(tmp_path))
    for name in ("tokenizer.json", "chat_template.jinja"):
        assert (tmp_path / name).read_bytes() == (MODEL / name).read_bytes(), name


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_the_script_takes_the_recorded_path_to_the_shipped_weights(corpus):
    """The first steps of the full build, to four digits; `python -m ajet.envs.werewolves.tiny.build` does the rest."""
    torch.set_num_threads(1)
    plan = RECORD["plan"]
    model = build.build_model(len(corpus.tokenizer), plan["seed"])
    losses, _ = build.train(model, corpus, **plan, stop_after=build.RECORDED, log_every=10**9)
    assert losses == pytest.approx(RECORD["first_losses"], abs=2e-3)


def test_the_shipped_weights_are_the_recorded_ones(shipped):
    assert build.digest(shipped) == RECORD["digest"]


def test_the_model_plays_legally_on_games_it_never_saw(shipped, corpus):
    batch = corpus.encode([e for e in examples(777, 40) if e.choices])
    with torch.no_grad():
        _, legal = build.imitation_loss(shipped, batch, torch.tensor(corpus.names))
    assert legal > 0.95


def test_the_model_has_no_strategy_a_wolf_attacks_its_team_as_often_as_chance(shipped, corpus):
    prompts = [e for e in examples(778, 120) if e.user.endswith("Who to kill?") and "Night 1" in e.user]
    mass: Counter[str] = Counter()
    names = torch.tensor(corpus.names)
    for example in prompts[:80]:
        ids = corpus.tokenizer.encode(build.chat(example.user) + "kill:", add_special_tokens=False)
        team_line = next(line for line in example.user.splitlines() if line.startswith("Team"))
        team = [int(word[6:]) - 1 for word in team_line.split()[1:]]
        with torch.no_grad():
            p = torch.softmax(shipped(input_ids=torch.tensor([ids])).logits[0, -1], -1)[names]
        mass["team"] += float(p[team].sum())
        mass["all"] += float(p.sum())
    assert 0.25 < mass["team"] / mass["all"] < 0.42  # three of nine
