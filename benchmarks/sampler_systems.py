"""The systems that ``benchmarks/sampler.py`` compares: each plays conversations and says how long it took.

All get the same recorded conversations and the same weights in float32. Ours and vLLM play them in a closed loop, so
many conversations in flight, a conversation's next call behind its last reply. transformers has no such loop: it gets all
calls at once, in static batches in the better of two orders, with made-up tokens where its own replies would stand.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM

from ajet.backbone.embedded.engine import Engine
from ajet.backbone.embedded.garbage import settle
from ajet.backbone.protocol import Sampling
from ajet.default_config.schema import AjetConfig
from benchmarks.game_calls import Conversation, to_plain

VOCAB = 449
"""The built-in tokenizer's."""
CONTEXT = 2048

Reply = tuple[list[int], list[int], list[float]]
"""Prompt, sampled ids, their log-probs."""


def save_model(directory: Path) -> None:
    """A model of the built-in one's size, with heads of a size that vLLM serves (32; the built-in one has 24)."""
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCAB, hidden_size=96, num_hidden_layers=3, num_attention_heads=3, num_key_value_heads=1,
        intermediate_size=288, max_position_embeddings=CONTEXT, tie_word_embeddings=True, initializer_range=0.1,
        bos_token_id=None, eos_token_id=2, pad_token_id=0,
    )  # fmt: skip
    Qwen2ForCausalLM(config).save_pretrained(directory)


class System(Protocol):
    """One of the compared.

    Attributes:
        logprobs: whether it answers log-probs of what it sampled, as training needs them.
    """

    name: str
    logprobs: bool

    def play(self, conversations: Sequence[Conversation]) -> float:
        """Seconds."""
        ...

    def close(self) -> None: ...


class Ours:
    """The embedded sampler."""

    name, logprobs = "ajet", True

    def __init__(self, model: Path, threads: int, concurrent: int, kv_gib: float | None = None) -> None:
        config = AjetConfig(model={"path": str(model)})
        common = config.trainer_common
        common.n_gpus_per_node, common.cpu_threads, common.use_kl_loss = 0, threads, False
        common.optim.lr = 1e-3
        config.rollout.max_model_len, config.rollout.max_num_seqs = CONTEXT, concurrent
        config.rollout.kv_cache_gib = kv_gib
        self.engine = Engine(config)
        settle()  # as the backbone process does
        self.concurrent = concurrent
        self.replies: list[Reply] = []

    def play(self, conversations: Sequence[Conversation]) -> float:
        self.replies = []
        self.engine._sampler.refresh(self.engine.trainer.step)  # nothing cached
        started = time.perf_counter()
        waiting, live, count = list(reversed(conversations)), {}, 0

        def ask(ids: list[int], conversation: Conversation, at: int) -> None:
            nonlocal count
            count += 1
            live[count] = ids, conversation, at
            sampling = Sampling(max_tokens=conversation[at].reply, ignore_eos=True)
            self.engine.submit(count, ids, sampling, "policy", False)

        while waiting or live:
            while waiting and len(live) < self.concurrent:
                conversation = waiting.pop()
                ask(conversation[0].ids, conversation, 0)
            for key, chunk in self.engine.tick():
                ids, conversation, at = live.pop(key)
                self.replies.append((ids, chunk.ids, chunk.logprobs))
                if at + 1 < len(conversation):
                    turn = conversation[at + 1]
                    ask(ids + chunk.ids + turn.ids if turn.grows else turn.ids, conversation, at + 1)
        return time.perf_counter() - started

    def close(self) -> None:
        pass


class Transformers:
    """``generate`` over static batches."""

    name, logprobs = "transformers generate", False

    def __init__(self, model: Path, batch: int, order: str) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
        self.batch, self.order = batch, order

    @torch.inference_mode()
    def play(self, conversations: Sequence[Conversation]) -> float:
        calls = self._calls(conversations)
        started = time.perf_counter()
        calls.sort(key=lambda c: (c[1], len(c[0])) if self.order == "reply" else (len(c[0]) // 64, c[1]))
        for at in range(0, len(calls), self.batch):
            part = calls[at : at + self.batch]
            longest = max(len(ids) for ids, _ in part)
            ids = torch.zeros(len(part), longest, dtype=torch.long)
            mask = torch.zeros(len(part), longest, dtype=torch.long)
            for b, (prompt, _) in enumerate(part):
                ids[b, longest - len(prompt) :] = torch.tensor(prompt)
                mask[b, longest - len(prompt) :] = 1
            new = max(length for _, length in part)
            self.model.generate(
                input_ids=ids, attention_mask=mask, max_new_tokens=new, min_new_tokens=new, do_sample=True, top_k=0,
                pad_token_id=0,
            )  # fmt: skip
        return time.perf_counter() - started

    @staticmethod
    def _calls(conversations: Sequence[Conversation]) -> list[tuple[list[int], int]]:
        r, calls = random.Random(0), []
        for conversation in conversations:
            context: list[int] = []
            for turn in conversation:
                context = (context if turn.grows else []) + turn.ids
                calls.append((context, turn.reply))
                context = context + [r.randrange(3, VOCAB) for _ in range(turn.reply)]
        return calls

    def close(self) -> None:
        pass


class VLLM:
    """vLLM's own engine in a process of its own, with prefix caching and room for all sequences.

    Args:
        eager: without torch.compile.
        processes: 2: engine core and front end apart, as vLLM's default; 1: in one.
    """

    def __init__(
        self, python: Path, model: Path, threads: int, concurrent: int, *, eager: bool, processes: int, logprobs: bool
    ) -> None:
        self.name = f"vLLM ({'eager' if eager else 'compiled'}, {processes} process{'es' if processes > 1 else ''})"
        self.logprobs, self.concurrent = logprobs, concurrent
        settings = {
            "model": str(model), "skip_tokenizer_init": True, "dtype": "float32", "max_model_len": CONTEXT,
            "max_num_seqs": concurrent, "enforce_eager": eager, "enable_prefix_caching": True, "disable_log_stats": True,
        }  # fmt: skip
        environment = {
            **os.environ, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "2",
            "VLLM_LOGGING_LEVEL": "ERROR", "OMP_NUM_THREADS": str(threads), "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_ENABLE_V1_MULTIPROCESSING": str(processes - 1),
        }  # fmt: skip
        environment.pop("PYTHONPATH", None)
        self.process = subprocess.Popen(
            [str(python), str(Path(__file__).with_name("sampler_vllm.py")), json.dumps(settings)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment,
        )  # fmt: skip
        self.replies: list[Reply] = []
        self.version = self._answer()["ready"]

    def play(self, conversations: Sequence[Conversation]) -> float:
        assert self.process.stdin is not None
        order = {"play": to_plain(list(conversations)), "concurrent": self.concurrent, "logprobs": self.logprobs}
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        answer = self._answer()
        self.replies = [(ids, new, logprobs) for ids, new, logprobs in answer["replies"]]
        return answer["seconds"]

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name} ended with exit code {self.process.wait()}: start it by hand to see why.")
        return json.loads(line)

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(60)
