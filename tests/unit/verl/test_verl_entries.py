"""Samples to verl's batches and back; digests of sharded weights; adapters folded in."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ajet.backbone.embedded.packing import lay_out
from ajet.backbone.fingerprint import combined, same_weights
from ajet.backbone.lora import merged, plain_name
from ajet.backbone.verl.entries import dealt, entries_of, from_verl
from ajet.trajectory.batch import Row, Sample


def rows_of(seed: int, rows: int) -> list[Row]:
    random = np.random.default_rng(seed)
    out = []
    for r in range(rows):
        samples = []
        for _ in range(int(random.integers(1, 4))):
            n = int(random.integers(2, 30))
            trained = random.random(n) < 0.5
            temperature = np.where(trained, random.choice([0.7, 1.0], n), 1).astype(np.float32)
            ids = random.integers(0, 50, n).astype(np.int32)
            samples.append(Sample(ids, trained, np.zeros(n, np.float32), temperature, np.zeros(n, np.int32)))
        out.append(Row(f"e{r}", "a", "t", "task", 1.0, samples))
    return out


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(1, 5))
def test_every_trained_token_is_scored_once_before_its_token_whatever_the_ranks(seed, rows, ranks):
    table, pieces = lay_out(rows_of(seed, rows))
    order = dealt(entries_of(pieces, table), ranks)
    assert len(order) % ranks == 0
    flat = np.concatenate([e.flat_N for e in order]) if order else np.zeros(0)
    assert sorted(flat.tolist()) == list(range(len(table.id_N)))
    for entry in order:
        assert len(set(table.temperature_N[entry.flat_N].tolist()) - {np.float32(entry.temperature)}) == 0
        assert (entry.ids_T[entry.position_N + 1] == table.id_N[entry.flat_N]).all()
    nested = torch.nested.as_nested_tensor(
        [torch.from_numpy(np.append(e.ids_T[1:], -1)).float() for e in order], layout=torch.jagged
    )
    out = torch.full((len(table.id_N),), -7.0)
    from_verl(order, nested, out)
    assert (out.numpy() == table.id_N).all()


def test_ranks_get_about_as_many_tokens():
    table, pieces = lay_out(rows_of(3, 40))
    order = dealt(entries_of(pieces, table), 4)
    share = len(order) // 4
    tokens = [sum(len(e.ids_T) for e in order[i * share : (i + 1) * share]) for i in range(4)]
    assert max(tokens) - min(tokens) <= 40


def test_digests_tell_rounding_from_another_run():
    sums = [12.0, 400.0, 3.0, 900.0, -1.0, 100.0, 0.5, 25.0]
    one, again = combined([("a", sums)]), combined([("b", [s * (1 + 1e-6) for s in sums])])
    other = combined([("c", [s * 1.01 for s in sums])])
    assert one != again
    assert same_weights(one, again)
    assert not same_weights(one, other)
    assert not same_weights("abc", "abd")
    assert same_weights("abc", "abc")


def test_adapters_are_folded_into_the_weights_they_belong_to():
    base = {"model.q_proj.weight": torch.zeros(3, 4), "model.norm.weight": torch.ones(4)}
    a, b = torch.randn(2, 4), torch.randn(3, 2)
    names = "base_model.model.model.q_proj.lora_{}.weight"
    out = merged(base, {names.format("A"): a, names.format("B"): b}, 2.0)
    assert torch.allclose(out["model.q_proj.weight"], 2.0 * b @ a)
    assert torch.equal(out["model.norm.weight"], torch.ones(4))
    assert plain_name("base_model.model.model.q_proj.base_layer.weight") == "model.q_proj.weight"
