"""A small real tokenizer with a Qwen-style chat template, made on the spot."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

QWEN_TEMPLATE = (
    "{%- if tools %}<|im_start|>system\n"
    "{%- if messages[0]['role'] == 'system' %}{{ messages[0]['content'] }}{% endif %}\n# Tools\n"
    "{%- for tool in tools %}{{ '\n' + (tool | tojson) }}{% endfor %}\n"
    'Answer a call as <tool_call>{"name": …, "arguments": …}</tool_call><|im_end|>\n'
    "{%- elif messages[0]['role'] == 'system' %}<|im_start|>system\n{{ messages[0]['content'] }}<|im_end|>\n{% endif %}"
    "{%- for m in messages %}"
    "{%- if m['role'] == 'system' and loop.first %}"
    "{%- elif m['role'] == 'assistant' %}{{ '<|im_start|>assistant\n' + m['content'] }}"
    "{%- for c in m.tool_calls or [] %}"
    "{{ '\n<tool_call>\n' + ({'name': c.function.name, 'arguments': c.function.arguments} | tojson)"
    " + '\n</tool_call>' }}"
    "{%- endfor %}{{ '<|im_end|>\n' }}"
    "{%- else %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endif %}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def save_tokenizer(directory: Path, template: str = QWEN_TEMPLATE, added: Sequence[str] = ()) -> Path:
    """Write a byte-level BPE tokenizer (no merges but a few) with ``template`` into ``directory``.

    ``added``: further tokens that are found in plain text but are not special, as ``<think>`` is in real vocabularies.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["the quick brown fox said I vote for Player3 user assistant system"] * 3, trainer)
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in added])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>", chat_template=template
    )
    directory.mkdir(parents=True, exist_ok=True)
    fast.save_pretrained(str(directory))
    return directory
