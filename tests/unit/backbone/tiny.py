"""Tiny random models and batches for the backbone's tests."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from ajet.trajectory.batch import Row, Sample, TrainBatch

VOCAB = 61
EOS = 2


def save_qwen2(directory: Path, tied: bool = True, seed: int = 0) -> Path:
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=48, max_position_embeddings=512, tie_word_embeddings=tied, initializer_range=0.3,
        eos_token_id=EOS, bos_token_id=0, pad_token_id=0, rope_theta=1000.0,
    )  # fmt: skip
    _save(Qwen2ForCausalLM(config), directory)
    return directory


def save_llama(directory: Path) -> Path:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=48, max_position_embeddings=512, initializer_range=0.3, eos_token_id=EOS, bos_token_id=0,
    )  # fmt: skip
    _save(LlamaForCausalLM(config), directory)
    return directory


def save_gpt2(directory: Path) -> Path:
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=4, n_positions=512, initializer_range=0.3, eos_token_id=EOS,
        bos_token_id=0, attn_pdrop=0.1, resid_pdrop=0.1, embd_pdrop=0.1,
    )  # fmt: skip
    _save(GPT2LMHeadModel(config), directory)
    return directory


def _save(model: torch.nn.Module, directory: Path) -> None:
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith("bias"):
                p.normal_(0, 0.2)
    model.save_pretrained(directory)
    (directory / "tokenizer.json").write_text('{"a": "tokenizer"}')


def prompt(seed: int, length: int) -> list[int]:
    return [random.Random(seed).randrange(3, VOCAB) for _ in range(length)]


def make_sample(
    ids: list[int], spans: list[tuple[int, int]], version: int = 0, seed: int = 0, temperature: float = 1.0
) -> Sample:
    """A sample trained at ``spans``, with made-up log-probs."""
    trained = np.zeros(len(ids), bool)
    for start, stop in spans:
        trained[start:stop] = True
    logprobs = np.random.default_rng(seed).uniform(-4.5, -3.5, len(ids)).astype(np.float32)
    return Sample(
        np.array(ids, np.int32), trained, np.where(trained, logprobs, 0).astype(np.float32),
        np.where(trained, temperature, 1).astype(np.float32), np.where(trained, version, -1).astype(np.int32),
    )  # fmt: skip


def make_batch(
    step: int = 1, games: int = 6, group: int = 3, temperature: float = 1.0, version: int | None = None
) -> TrainBatch:
    """``games`` games with two wolves and a seer each: opposed rewards, rows of one to three samples."""
    rows: list[Row] = []
    r = random.Random(step)
    for game in range(games):
        won = r.random() < 0.5 if game % group > 1 else game % group == 0
        for agent, tag in (("p1", "werewolf"), ("p2", "werewolf"), ("p5", "seer")):
            samples = []
            for call in range(r.randint(1, 3)):
                ids = prompt(r.randrange(10**6), r.randint(12, 30))
                start = r.randint(4, 8)
                spans = [(start, start + 2), (start + 3, len(ids) - r.randint(0, 1))]
                samples.append(
                    make_sample(ids, spans, step - 1 if version is None else version, game * 7 + call, temperature)
                )
            reward = float(won) if tag == "werewolf" else float(not won)
            rows.append(Row(f"e{step}-{game}", agent, tag, f"t{game // group}", reward, samples))
    return TrainBatch(step, rows)
