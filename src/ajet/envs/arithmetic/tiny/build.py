"""Makes ``ajet-tiny-tools`` from nothing: tokenizer, random weights, then imitation of a careless player.

    python -m ajet.envs.arithmetic.tiny.build --out DIR      # some minutes on one core; deterministic per machine

The model writes tool calls in Qwen's own form (``<tool_call>`` and JSON), so that everything from the server's parser to
an agent framework sees real ones. What it writes is mostly wrong: see :mod:`~ajet.envs.arithmetic.imitation`. Its chat
template names the tools and leaves their schemas out: a model of this size could not read them. Needs torch; nothing
imports this module.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from transformers import PreTrainedTokenizerFast, Qwen2ForCausalLM

from ajet.envs.arithmetic.imitation import Conversation, conversations
from ajet.envs.werewolves.tiny.build import RECORDED, build_model, digest, make_tokenizer, save, schedule

TEMPLATE = """\
{%- if tools %}{{ '<|im_start|>tools' }}{% for tool in tools %}{{ ' ' + tool.function.name }}{% endfor %}{{ '<|im_end|>\\n' }}{% endif %}
{%- for m in messages %}
{{- '<|im_start|>' + m.role + '\\n' + (m.content or '') }}
{%- for call in m.tool_calls or [] %}
{{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' + call.function.arguments | tojson + '}\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
"""
WHOLE = ("<tool_call>", "</tool_call>", *(str(n) for n in range(10, 100)))
"""Texts that are one token each: what the server reads tool calls by, and the numbers of two digits."""
SHAPE = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 256,
}
TEXTS_SEED, TEXTS = 1, 2000
PROMPT_WEIGHT = 0.02
"""Weight of prompt tokens in the loss; a reply token weighs 1."""

Encoded = tuple[list[int], int]
"""Ids, and where the reply starts."""


def build_tokenizer() -> PreTrainedTokenizerFast:
    """A BPE trained on both tasks' conversations."""
    bare = make_tokenizer([], [], TEMPLATE)
    texts = itertools.islice(conversations(TEXTS_SEED), TEXTS)
    return make_tokenizer(("".join(split(bare, example)) for example in texts), WHOLE, TEMPLATE)


def split(tokenizer: PreTrainedTokenizerFast, example: Conversation) -> tuple[str, str]:
    """Prompt and reply of an example, as the chat template writes both; the reply with its end token."""
    messages, offered = example
    tools: Any = offered
    # Templates want arguments as objects, as the server hands them over.
    for message in messages:
        for call in message.get("tool_calls", ()):
            if isinstance(call["function"]["arguments"], str):
                call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    prompt = tokenizer.apply_chat_template(messages[:-1], tools=tools, add_generation_prompt=True, tokenize=False)
    whole = tokenizer.apply_chat_template(messages, tools=tools, tokenize=False)
    if not (isinstance(prompt, str) and isinstance(whole, str) and whole.startswith(prompt)):
        raise RuntimeError("the chat template does not continue its own prompt")
    return prompt, whole[len(prompt) :].rstrip("\n")


def encoded(tokenizer: PreTrainedTokenizerFast, seed: int) -> Iterator[Encoded]:
    """Endless examples as ids."""
    for example in conversations(seed):
        prompt, reply = (tokenizer.encode(text, add_special_tokens=False) for text in split(tokenizer, example))
        yield prompt + reply, len(prompt)


def imitation_loss(model: Qwen2ForCausalLM, batch: list[Encoded]) -> torch.Tensor:
    """Mean cross-entropy over the batch's tokens."""
    longest = max(len(ids) for ids, _ in batch)
    ids_B_T = torch.zeros(len(batch), longest, dtype=torch.long)
    weight_B_T = torch.zeros(len(batch), longest)
    for b, (ids, start) in enumerate(batch):
        ids_B_T[b, : len(ids)] = torch.tensor(ids)
        weight_B_T[b, :start] = PROMPT_WEIGHT
        weight_B_T[b, start : len(ids)] = 1.0
    logits_B_T_V = model(input_ids=ids_B_T).logits[:, :-1]
    loss_B_T = F.cross_entropy(logits_B_T_V.flatten(0, 1), ids_B_T[:, 1:].flatten(), reduction="none")
    return (loss_B_T.view(len(batch), -1) * weight_B_T[:, 1:]).sum() / weight_B_T[:, 1:].sum()


def train(
    model: Qwen2ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    *,
    steps: int,
    batch: int,
    lr: float,
    seed: int,
    stop_after: int | None = None,
) -> list[float]:
    """Imitate for ``steps`` steps, or leave that schedule at ``stop_after``. Returns the loss of every step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.98), weight_decay=0.01)
    examples = encoded(tokenizer, 10_000 + seed)
    losses, started = [], time.monotonic()
    for step in range(stop_after or steps):
        for group in optimizer.param_groups:
            group["lr"] = lr * schedule(step, steps)
        loss = imitation_loss(model, list(itertools.islice(examples, batch)))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        if step % 100 == 99:
            print(f"step {step + 1}/{steps}  loss {loss.item():.4f}  {time.monotonic() - started:.0f} s", flush=True)
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "model")
    parser.add_argument("--steps", type=int, default=2400)
    parser.add_argument("--batch", type=int, default=24)
    parser.add_argument("--lr", type=float, default=4e-3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    tokenizer = build_tokenizer()
    model = build_model(len(tokenizer), args.seed, SHAPE)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, vocabulary {len(tokenizer)}")
    plan = {"steps": args.steps, "batch": args.batch, "lr": args.lr, "seed": args.seed}
    losses = train(model, tokenizer, **plan)
    save(model, tokenizer, args.out)
    record = {"plan": plan, "first_losses": [round(x, 4) for x in losses[:RECORDED]], "digest": digest(model)}
    (args.out / "build.json").write_text(json.dumps(record) + "\n")
    print(f"{args.out}  {record['digest']}")


if __name__ == "__main__":
    main()
