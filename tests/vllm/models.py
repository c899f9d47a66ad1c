"""Small random models with heads that vLLM has CPU kernels for, and their answers by transformers."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM

from ajet.backbone.models import model_dir
from ajet.backbone.protocol import Chunk, Sampling
from ajet.default_config.schema import BUILTIN_MODEL

VOCAB, EOS = 97, 2


def save_qwen2(directory: Path, *, tied: bool, dtype: torch.dtype = torch.float32, seed: int = 0) -> Path:
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=VOCAB, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
        intermediate_size=96, max_position_embeddings=512, tie_word_embeddings=tied, initializer_range=0.2,
        eos_token_id=EOS, bos_token_id=0, pad_token_id=0, rope_theta=1000.0,
    )  # fmt: skip
    model = Qwen2ForCausalLM(config)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith("bias"):
                p.normal_(0, 0.2)
    model.to(dtype).save_pretrained(directory)
    return directory


@torch.no_grad()
def reference_logprobs(
    directory: Path, prompt: Sequence[int], reply: Sequence[int], how: Sampling, dtype: torch.dtype = torch.float32
) -> list[float]:
    """Log-probs of ``reply``'s tokens under the distribution that ``how`` samples from, by transformers."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=dtype).eval()
    logits_T_V = model(torch.tensor([[*prompt, *reply]])).logits[0].float()
    return [float(distribution(logits_T_V[len(prompt) - 1 + i], how)[token]) for i, token in enumerate(reply)]


def distribution(logits_V: torch.Tensor, how: Sampling) -> torch.Tensor:
    """Log-probs: temperature, then top_k, then the smallest set that reaches top_p; written for reading, not for speed."""
    if how.temperature == 0:
        return logits_V.log_softmax(-1)
    logits_V = logits_V / how.temperature
    order = logits_V.argsort(descending=True, stable=True)
    kept = order[: how.top_k] if how.top_k else order
    p = logits_V[kept].softmax(-1)
    before = p.cumsum(-1) - p
    kept = kept[before < how.top_p]
    out = torch.full_like(logits_V, float("-inf"))
    out[kept] = logits_V[kept].log_softmax(-1)
    return out


def save_werewolves(directory: Path) -> Path:
    """The built-in Werewolves model as the same function with heads of 32 in the place of 24, which vLLM serves on a CPU.

    Zeros fill up hidden units and heads. RMS norms see the mean over more of them: their weights and epsilon make up for
    it. A head's rotation frequencies are ``theta ** (-2 i / dim)``: another theta gives the first pairs the old ones;
    queries make up for attention's scale.
    """
    source = model_dir(BUILTIN_MODEL)
    old = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    config = old.config
    heads, kv, width = config.num_attention_heads, config.num_key_value_heads, config.hidden_size
    dim, wide = width // heads, 32
    hidden = heads * wide
    theta = config.rope_parameters["rope_theta"]
    new_config = Qwen2Config(
        **{
            **config.to_dict(), "hidden_size": hidden, "rms_norm_eps": config.rms_norm_eps * width / hidden,
            "rope_parameters": {"rope_type": "default", "rope_theta": theta ** (wide / dim)},
        }
    )  # fmt: skip
    new = Qwen2ForCausalLM(new_config).float()
    place = torch.cat([torch.arange(dim // 2), wide // 2 + torch.arange(dim // 2)])
    state = {name: torch.zeros_like(p) for name, p in new.state_dict().items()}
    for name, w in old.state_dict().items():
        if "_proj" in name and name.split(".")[-2] in ("q_proj", "k_proj", "v_proj"):
            n = heads if "q_proj" in name else kv
            scale = (wide / dim) ** 0.5 if "q_proj" in name else 1.0
            rows = (torch.arange(n)[:, None] * wide + place).reshape(-1)
            target = state[name][:, :width] if w.ndim == 2 else state[name]
            target[rows] = w * scale
        elif name.endswith("o_proj.weight"):
            columns = (torch.arange(heads)[:, None] * wide + place).reshape(-1)
            state[name][:width, columns] = w
        elif "norm" in name:
            state[name][:width] = w * (width / hidden) ** 0.5
        else:  # embedding, output, feed-forward: zeros at the end
            state[name][tuple(slice(s) for s in w.shape)] = w
    new.load_state_dict(state)
    new.save_pretrained(directory)
    for beside in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
        shutil.copy(source / beside, directory / beside)
    return directory


def logprob_gap(
    directory: Path, prompt: Sequence[int], reply: Chunk, how: Sampling, part: slice = slice(None), *, like: float = 0.0
) -> float:
    """How far the reply's log-probs are from transformers', at most; ``part`` of its tokens only.

    Args:
        like: the tolerance; from 0.01 on transformers computes in bfloat16, too, and the mean is compared.
    """
    dtype = torch.bfloat16 if like >= 0.01 else torch.float32
    expected = reference_logprobs(directory, prompt, reply.ids, how, dtype)[part]
    gaps = [abs(a - b) for a, b in zip(expected, reply.logprobs[part], strict=True)]
    if not gaps:
        return 0.0
    return sum(gaps) / len(gaps) if like >= 0.01 else max(gaps)
