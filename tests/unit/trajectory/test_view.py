"""Claims about the view of an episode: it shows every token once, with the mask that training uses."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ajet.trajectory import EpisodeTrajectory, build_rows
from ajet.trajectory.view import NOT_TRAINED, view_samples
from tests.fakes.conversations import steps
from tests.unit.trajectory.test_fidelity import Episode


def arrays(samples, agent):
    """Ids and masks of an agent's samples as the view shows them, those with nothing trained left out."""
    found = []
    for sample in samples:
        ids = [i for piece in sample["pieces"] for i in piece["ids"]]
        mask = [
            flag
            for piece in sample["pieces"]
            for flag in (piece["trained"] if piece["kind"] == "reply" else [False] * len(piece["ids"]))
        ]
        if sample["agent"] == agent and any(mask):
            found.append((ids, mask))
    return found


@given(steps(), st.sampled_from([(10**6, 10**6, 10**6), (40, 10**6, 10**6), (10**6, 60, 10**6), (10**6, 10**6, 90)]),
       st.integers(0, 3))  # fmt: skip
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_view_shows_what_is_trained_and_why_the_rest_is_not(renderer, plan, limits, min_version):
    episode = Episode(renderer)
    for step in plan:
        episode.play(step)
    calls = list(episode.trajectory.calls.values())
    rows, dropped = build_rows("e", "t", calls, 1.0, limits=limits, min_version=min_version)
    samples = view_samples(calls, limits=limits, min_version=min_version, texts=renderer.token_texts)
    for agent in episode.minds:
        trained = [(s.ids_T.tolist(), s.trained_T.tolist()) for row in rows if row.agent == agent for s in row.samples]
        shown = arrays(samples, agent)
        assert [
            (ids[: len(kept)], mask[: len(kept)]) for (ids, mask), (kept, _) in zip(shown, trained, strict=True)
        ] == trained
        assert not any(any(mask[len(kept) :]) for (_, mask), (kept, _) in zip(shown, trained, strict=True))
    own = [p for s in samples for p in s["pieces"] if p["first_sample"] is None]
    assert sorted((p["call"], p["kind"]) for p in own) == sorted(
        (c.call_id, kind) for c in calls for kind in ("prompt", "reply")
    )
    lost = sum(flag is False for p in own if p["kind"] == "reply" for flag in p["trained"])
    assert lost == sum(dropped.values())
    assert all((p["why"] is None) == all(p["trained"]) for p in own if p["kind"] == "reply")
    assert {why for p in own if p["why"] for why in p["why"].split(", ")} == set(dropped)
    for p in own:
        assert "".join(p["texts"]) == renderer.tokenizer.decode(
            p["ids"], skip_special_tokens=False
        ) or "\ufffd" in "".join(p["texts"])


def test_an_episode_that_takes_no_part_is_shown_untrained(renderer):
    trajectory = EpisodeTrajectory(renderer)
    prepared = trajectory.prepare("a", "a", [{"role": "user", "content": "x"}])
    trajectory.record(
        prepared, call_id="c1", reply_ids=[80, 2], logprobs=[-1.0, -2.0], versions=[0, 0], temperature=1.0,
        finish_reason="stop", message={"role": "assistant", "content": "x"}, created=0.0,
    )  # fmt: skip
    (sample,) = view_samples(trajectory.calls.values(), limits=(10**6,) * 3, takes_part=False)
    prompt, reply = sample["pieces"]
    assert (prompt["why"], reply["why"], reply["trained"]) == (None, NOT_TRAINED, [False, False])
