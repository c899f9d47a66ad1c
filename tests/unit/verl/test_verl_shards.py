"""A rank's files: what a full disk says is an answer, anything else an error; and the export is what peft and transformers read."""

import pytest
import torch
from safetensors.torch import load_file

from ajet.backbone.lora import FOLDER
from ajet.backbone.verl import shards
from ajet.default_config.schema import LoraConfig


def test_a_full_disk_in_any_part_is_told_and_parts_before_it_are_whole(tmp_path):
    parts = {"model": {"w": torch.arange(1000.0)}, "optim": {"m": torch.arange(2000.0)}}
    assert shards.write(tmp_path / "a", parts, rank=1, world=2) is None
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / shards.name("optim", 1, 2)).symlink_to("/dev/full")
    assert shards.write(tmp_path / "b", parts, rank=1, world=2) == "No space left on device"
    for folder in "ab":
        found = torch.load(tmp_path / folder / "model_world_size_2_rank_1.pt", weights_only=True)
        assert torch.equal(found["w"], parts["model"]["w"])


def test_an_error_that_is_not_the_disks_is_raised(tmp_path):
    with pytest.raises(Exception, match=r"pickle|local object"):
        shards.write(tmp_path, {"model": lambda: 0}, rank=0, world=1)


def test_the_export_folds_adapters_in_and_has_them_beside(tmp_path):
    prefix = "base_model.model.model.layers.0.q_proj."
    a, b, w = torch.randn(2, 6), torch.randn(4, 2), torch.randn(4, 6)
    state = {
        f"{prefix}base_layer.weight": w, f"{prefix}lora_A.default.weight": a, f"{prefix}lora_B.default.weight": b,
        "base_model.model.lm_head.weight": torch.zeros(3, 6),
    }  # fmt: skip
    lora = LoraConfig(rank=2, alpha=8)
    assert shards.export(tmp_path, state, torch.float32, True, lora, "/models/m") is None
    weights, adapters = (
        load_file(tmp_path / "model.safetensors"),
        load_file(tmp_path / FOLDER / "adapter_model.safetensors"),
    )
    assert weights.keys() == {"model.layers.0.q_proj.weight"}, "a tied head is left out"
    torch.testing.assert_close(weights["model.layers.0.q_proj.weight"], w + 4 * b @ a)
    assert adapters.keys() == {f"{prefix}lora_A.weight", f"{prefix}lora_B.weight"}
