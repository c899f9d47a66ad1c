"""Chat templates in the manner of well-known families, each with the trait that makes it hard to render faithfully.

They are written for these tests; what matters is the trait, not the family's exact words.
"""

from __future__ import annotations

CALLS_JSON = (
    "{%- for c in m.tool_calls or [] %}{%- if (loop.first and text) or not loop.first %}{{ '\\n' }}{%- endif %}"
    '{{ \'<tool_call>\\n{"name": "\' + c.function.name + \'", "arguments": \' }}'
    "{{ c.function.arguments if c.function.arguments is string else c.function.arguments | tojson }}"
    "{{ '}\\n</tool_call>' }}{%- endfor %}"
)
TOOL_TURN = (
    "{%- elif m.role == 'tool' %}"
    "{%- if loop.index0 == 0 or messages[loop.index0 - 1].role != 'tool' %}{{ '<|im_start|>user' }}{%- endif %}"
    "{{ '\\n<tool_response>\\n' + m.content + '\\n</tool_response>' }}"
    "{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{ '<|im_end|>\\n' }}{%- endif %}"
)
HEAD = (
    "{%- if tools %}{{ '<|im_start|>system\\n' }}"
    "{%- if messages[0].role == 'system' %}{{ messages[0].content }}{%- else %}{{ 'You help.' }}{%- endif %}"
    "{{ '\\n\\n# Tools\\n<tools>' }}{%- for tool in tools %}{{ '\\n' + (tool | tojson) }}{%- endfor %}"
    "{{ '\\n</tools><|im_end|>\\n' }}"
    "{%- elif messages[0].role == 'system' %}{{ '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}"
)
GENERATE = "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{%- endif %}"

TOOLS = (
    HEAD
    + "{%- else %}{{ '<|im_start|>system\\nYou help.<|im_end|>\\n' }}{%- endif %}"
    + "{%- for m in messages %}{%- set text = m.content %}"
    + "{%- if m.role == 'system' and loop.first %}"
    + "{%- elif m.role == 'assistant' %}{{ '<|im_start|>assistant\\n' + text }}"
    + CALLS_JSON
    + "{{ '<|im_end|>\\n' }}"
    + TOOL_TURN
    + "{%- else %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{%- endif %}{%- endfor %}"
    + GENERATE
)
"""In the manner of Qwen2.5: a default system message; tool calls as JSON; neighbouring tool results in one turn."""

THINKING = (
    HEAD
    + "{%- endif %}"
    + "{%- set ns = namespace(last=-1) %}"
    + "{%- for m in messages %}{%- if m.role == 'user' %}{%- set ns.last = loop.index0 %}{%- endif %}{%- endfor %}"
    + "{%- for m in messages %}"
    + "{%- if m.role == 'system' and loop.first %}"
    + "{%- elif m.role == 'assistant' %}"
    + "{%- set ns.text = m.content %}{%- set ns.thought = '' %}"
    + "{%- if m.reasoning_content is string %}{%- set ns.thought = m.reasoning_content %}"
    + "{%- elif '</think>' in ns.text %}"
    + "{%- set ns.thought = ns.text.split('</think>')[0].split('<think>')[-1] %}"
    + "{%- set ns.text = ns.text.split('</think>')[-1].lstrip('\\n') %}{%- endif %}"
    + "{%- if loop.index0 > ns.last and (loop.last or ns.thought) %}"
    + "{{ '<|im_start|>assistant\\n<think>\\n' + ns.thought.strip('\\n') + '\\n</think>\\n\\n' + ns.text.lstrip('\\n') }}"
    + "{%- else %}{{ '<|im_start|>assistant\\n' + ns.text }}{%- endif %}"
    + "{%- set text = ns.text %}"
    + CALLS_JSON
    + "{{ '<|im_end|>\\n' }}"
    + TOOL_TURN
    + "{%- else %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{%- endif %}{%- endfor %}"
    + GENERATE
)
"""In the manner of Qwen3: reasoning is kept within a turn of tools and left out once the user speaks again."""

TRIMMING = (
    "{{ '<|begin|>' }}{%- for m in messages %}"
    "{{ '<|start|>' + m.role + '<|end_header|>\\n\\n' + (m.content | trim) + '<|im_end|>' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|start|>assistant<|end_header|>\\n\\n' }}{%- endif %}"
)
"""In the manner of Llama 3: a beginning token, no line ends between turns, every text trimmed."""

PREFILLED = (
    "{%- for m in messages %}{%- if m.role == 'assistant' %}"
    "{{ '<|im_start|>assistant\\n' + m.content.split('</think>')[-1] + '<|im_end|>\\n' }}"
    "{%- else %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n<think>\\n' }}{%- endif %}"
)
"""In the manner of DeepSeek-R1: the generation prompt opens the reasoning; history never shows it."""

XML = TOOLS.replace(
    CALLS_JSON,
    "{%- for c in m.tool_calls or [] %}{{ '\\n<tool_call>\\n<function=' + c.function.name + '>\\n' }}"
    "{%- for k, v in c.function.arguments.items() %}"
    "{{ '<parameter=' + k + '>\\n' + (v if v is string else v | tojson) + '\\n</parameter>\\n' }}{%- endfor %}"
    "{{ '</function>\\n</tool_call>' }}{%- endfor %}",
)
"""In the manner of Qwen3.5 and Qwen3-Coder: tool calls as XML."""

ADDED = ("<think>", "</think>", "<tool_response>", "</tool_response>", "<|begin|>", "<|start|>", "<|end_header|>")
FAMILIES = {"tools": TOOLS, "thinking": THINKING, "trimming": TRIMMING, "prefilled": PREFILLED, "xml": XML}
