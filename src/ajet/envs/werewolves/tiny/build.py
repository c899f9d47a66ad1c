"""Makes the embedded default model from nothing: tokenizer, random weights, then imitation of random legal play.

    python -m ajet.envs.werewolves.tiny.build --out DIR      # some minutes on one core; deterministic per machine

The model speaks and answers in the required form and has no strategy (see :mod:`~ajet.envs.werewolves.imitation`).
Where a name was drawn at random, the loss is the cross-entropy to the *distribution it was drawn from*, not to the
draw: that is what makes a small model put 99% of its mass on legal names. Needs torch; nothing imports this module.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import random
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AddedToken,
    GenerationConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2Tokenizer,
)

from ajet.envs.werewolves.compact import SYSTEM
from ajet.envs.werewolves.imitation import Example, examples

PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
TEMPLATE = (
    "{%- for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}{% endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
SHAPE: dict[str, Any] = {
    "hidden_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 288,
}
VOCABULARY = 448
PROMPT_WEIGHT = 0.05
"""Weight of prompt tokens in the loss; a reply token weighs 1."""
RECORDED = 60
"""Losses of so many first steps are kept in ``build.json``, for the test that building reproduces them."""
CHUNK_GAMES = 2000
"""Games per batch of fresh examples: few examples are seen twice."""


def chat(user: str) -> str:
    """A prompt as the chat template writes it."""
    return f"{START}system\n{SYSTEM}{END}\n{START}user\n{user}{END}\n{START}assistant\n"


def build_tokenizer() -> PreTrainedTokenizerFast:
    """A BPE trained on the game's prompts, and each name with its space as one token."""
    texts = (chat(e.user) + e.reply for e in examples(1, 400))
    return make_tokenizer(texts, [f" Player{i}" for i in range(1, 10)], TEMPLATE)


def make_tokenizer(texts: Iterable[str], whole: Iterable[str], template: str) -> PreTrainedTokenizerFast:
    """Qwen2's own pre-tokenization, a BPE trained on ``texts``, and each of ``whole`` as one token.

    ``AutoTokenizer`` gives a Qwen2 model Qwen2's pre-tokenization whatever ``tokenizer.json`` says, and that splits
    digits off; so what must be one token is an added token.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = Qwen2Tokenizer().backend_tokenizer.pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[PAD, START, END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, pad_token=PAD, chat_template=template)
    added: list[str | AddedToken] = [AddedToken(text, normalized=False) for text in whole]
    fast.add_tokens(added)
    return fast


def build_model(vocabulary: int, seed: int, shape: dict[str, Any] | None = None) -> Qwen2ForCausalLM:
    """Random weights; ``shape``: sizes by their names in ``Qwen2Config``, default :data:`SHAPE`."""
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=vocabulary,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        initializer_range=0.05,
        bos_token_id=None,
        eos_token_id=2,
        pad_token_id=0,
        **(shape or SHAPE),
    )
    return Qwen2ForCausalLM(config).float()


class Corpus:
    """Tokenized examples."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self.tokenizer = tokenizer
        self.names = [tokenizer.encode(f" Player{i}", add_special_tokens=False) for i in range(1, 10)]
        if any(len(ids) != 1 for ids in self.names):
            raise RuntimeError("a player's name must be one token")
        self.names = [ids[0] for ids in self.names]
        self.end = tokenizer.convert_tokens_to_ids(END)

    def encode(self, batch: list[Example]) -> list[tuple[list[int], int, list[tuple[int, tuple[int, ...]]]]]:
        """Per example: ids, where the reply starts, and (position, legal seats) of each free choice."""
        out = []
        for e in batch:
            prompt = self.tokenizer.encode(chat(e.user), add_special_tokens=False)
            reply = self.tokenizer(e.reply, add_special_tokens=False, return_offsets_mapping=True)
            starts = [begin for begin, _ in reply["offset_mapping"]]
            choices = []
            for choice in e.choices:
                # The name's token begins at the space before it.
                at = max(i for i, begin in enumerate(starts) if begin <= choice.start)
                if reply["input_ids"][at] not in self.names:
                    raise RuntimeError(f"no name at {choice.start} of {e.reply!r}")
                choices.append((len(prompt) + at, choice.seats))
            out.append((prompt + reply["input_ids"] + [self.end], len(prompt), choices))
        return out


def imitation_loss(model: Qwen2ForCausalLM, batch: list[Any], names: torch.Tensor) -> tuple[torch.Tensor, float]:
    """Mean loss over the batch, and the mass on legal names where a name is due."""
    longest = max(len(ids) for ids, _, _ in batch)
    ids_B_T = torch.zeros(len(batch), longest, dtype=torch.long)
    weight_B_T = torch.zeros(len(batch), longest)
    rows, columns, wanted = [], [], []
    for b, (ids, start, choices) in enumerate(batch):
        ids_B_T[b, : len(ids)] = torch.tensor(ids)
        weight_B_T[b, :start] = PROMPT_WEIGHT
        weight_B_T[b, start : len(ids)] = 1.0
        for at, seats in choices:
            rows.append(b)
            columns.append(at)
            wanted.append([1.0 / len(seats) if i in seats else 0.0 for i in range(9)])
    logits = model(input_ids=ids_B_T).logits[:, :-1]
    loss_B_T = F.cross_entropy(logits.flatten(0, 1), ids_B_T[:, 1:].flatten(), reduction="none").view(len(batch), -1)
    row, column, wanted_C_9 = torch.tensor(rows), torch.tensor(columns), torch.tensor(wanted)
    chosen_C_9 = F.log_softmax(logits[row, column - 1], -1)[:, names]
    loss_B_T = loss_B_T.index_put((row, column - 1), -(wanted_C_9 * chosen_C_9).sum(-1))
    legal = float((chosen_C_9.detach().exp() * (wanted_C_9 > 0)).sum(-1).mean())
    return (loss_B_T * weight_B_T[:, 1:]).sum() / weight_B_T[:, 1:].sum(), legal


def train(
    model: Qwen2ForCausalLM,
    corpus: Corpus,
    *,
    steps: int,
    batch: int,
    lr: float,
    seed: int,
    stop_after: int | None = None,
    log_every: int = 100,
) -> tuple[list[float], float]:
    """Imitate for ``steps`` steps, or leave that schedule at ``stop_after``.

    Returns:
        The loss of every step, and the legal mass of the last hundred.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.98), weight_decay=0.01)
    names = torch.tensor(corpus.names)
    rng = random.Random(seed)
    pool: list[Any] = []
    chunk, recent, losses, started = 0, [], [], time.monotonic()
    for step in range(stop_after or steps):
        if len(pool) < batch:
            chunk += 1
            fresh = list(examples(10_000 + chunk, CHUNK_GAMES))
            pool = corpus.encode(fresh)
            rng.shuffle(pool)
        now, pool = pool[:batch], pool[batch:]
        for group in optimizer.param_groups:
            group["lr"] = lr * schedule(step, steps)
        loss, legal = imitation_loss(model, now, names)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        recent = [*recent[-99:], legal]
        losses.append(loss.item())
        if step % log_every == log_every - 1 or step == steps - 1:
            print(
                f"step {step + 1}/{steps}  loss {loss.item():.4f}  legal mass {sum(recent) / len(recent):.4f}"
                f"  {time.monotonic() - started:.0f} s",
                flush=True,
            )
    return losses, sum(recent) / len(recent)


def schedule(step: int, steps: int) -> float:
    """Share of the learning rate: 50 steps of warm-up, then a cosine to 5%."""
    return min(1.0, (step + 1) / 50) * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * step / steps)))


def digest(model: Qwen2ForCausalLM) -> str:
    """SHA-256 over the weights, by name."""
    sha = hashlib.sha256()
    for key, value in sorted(model.state_dict().items()):
        sha.update(key.encode())
        sha.update(value.detach().contiguous().numpy().tobytes())
    return sha.hexdigest()


def save(model: Qwen2ForCausalLM, tokenizer: PreTrainedTokenizerFast, out: Path) -> None:
    """Write a transformers directory."""
    out.mkdir(parents=True, exist_ok=True)
    model.generation_config = GenerationConfig(eos_token_id=2, pad_token_id=0)
    model.save_pretrained(out)
    tokenizer.save_pretrained(str(out))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "model")
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    tokenizer = build_tokenizer()
    model = build_model(len(tokenizer), args.seed)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, vocabulary {len(tokenizer)}")
    plan = {"steps": args.steps, "batch": args.batch, "lr": args.lr, "seed": args.seed}
    losses, legal = train(model, Corpus(tokenizer), **plan)
    save(model, tokenizer, args.out)
    record = {
        "plan": plan,
        "first_losses": [round(x, 4) for x in losses[:RECORDED]],
        "legal_mass": round(legal, 4),
        "digest": digest(model),
    }
    (args.out / "build.json").write_text(json.dumps(record) + "\n")
    print(f"{args.out}  {record['digest']}")


if __name__ == "__main__":
    main()
