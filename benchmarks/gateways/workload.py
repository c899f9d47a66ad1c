"""What is played through every gateway: one conversation of twelve calls, its tokenizer, and what the model answers.

Each call quotes all before it: 640 characters of system message, 12 user turns of about 330 characters, and replies of 100
tokens (99 and the stop token). The tokenizer is a byte-level BPE of common words, so that a token has some four characters,
as with the vocabularies of real models.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

CALLS = 12
REPLY_TOKENS = 100
SPEECH = "Player {n} speaks: I have watched the votes of the last two nights and I do not believe what Player 4 said. "
_REPLY = "I have listened to all of you. Player 4 was silent when the seer was killed, and the vote was close. "


@dataclass(frozen=True)
class Workload:
    """Attributes:
    model_dir: tokenizer and chat template. bodies: of the twelve requests, as JSON.
    prompts: their token ids. reply_ids, reply_logprobs, reply_text: what the model answers to each.
    pieces: the text of each reply token.
    """

    model_dir: str
    bodies: list[str]
    prompts: list[list[int]]
    reply_ids: list[int]
    reply_logprobs: list[float]
    reply_text: str
    pieces: list[str]

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def load(cls, path: Path | str) -> Workload:
        return cls(**json.loads(Path(path).read_text()))


def make(folder: Path) -> Workload:
    """Make the tokenizer in ``folder`` and everything that hangs on it."""
    from ajet.trajectory import ChatRenderer

    renderer = ChatRenderer(_save_tokenizer(folder / "model"))
    ids = renderer.tokenizer.encode(_REPLY * 20, add_special_tokens=False)[: REPLY_TOKENS - 1]
    text = renderer.decode(ids)
    stop = renderer.stop_token_ids[0]
    messages = [{"role": "system", "content": "You are a wolf. " * 40}]
    bodies, prompts = [], []
    for n in range(CALLS):
        messages.append({"role": "user", "content": SPEECH.format(n=n) * 3})
        bodies.append(json.dumps({"model": "policy", "messages": messages, "temperature": 1.0}))
        prompts.append(list(renderer.render(messages, None)))
        messages.append({"role": "assistant", "content": text})
    reply_ids = [*ids, stop]
    return Workload(
        str(folder / "model"),
        bodies,
        prompts,
        reply_ids,
        [-0.01 - (i % 17) / 9 for i in range(REPLY_TOKENS)],
        text,
        [*(renderer.token_text(i) for i in ids), "<|im_end|>"],
    )


def _save_tokenizer(directory: Path) -> Path:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    from tests.fakes.chat_model import QWEN_TEMPLATE

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=4000,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    text = [SPEECH, _REPLY, "You are a wolf. ", "system user assistant\n"] * 4
    tokenizer.train_from_iterator(text, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>", chat_template=QWEN_TEMPLATE
    )
    directory.mkdir(parents=True, exist_ok=True)
    fast.save_pretrained(str(directory))
    return directory
