"""Claims about the small model that calls tools: what its script makes, and that its calls are the server's."""

from __future__ import annotations

import itertools
import json

import pytest

from ajet.backbone import model_dir
from ajet.envs.arithmetic import CALCULATOR, math_problems
from ajet.envs.arithmetic.imitation import conversations
from ajet.trajectory import ChatRenderer

torch = pytest.importorskip("torch")
from ajet.envs.arithmetic.tiny import build  # noqa: E402

MODEL = model_dir("ajet-tiny-tools")
RECORD = json.loads((MODEL / "build.json").read_text())


def test_the_script_builds_the_shipped_tokenizer_and_takes_the_recorded_path(tmp_path):
    tokenizer = build.build_tokenizer()
    tokenizer.save_pretrained(str(tmp_path))
    for name in ("tokenizer.json", "chat_template.jinja"):
        assert (tmp_path / name).read_bytes() == (MODEL / name).read_bytes(), name
    torch.set_num_threads(1)
    model = build.build_model(len(tokenizer), RECORD["plan"]["seed"], build.SHAPE)
    losses = build.train(model, tokenizer, **RECORD["plan"], stop_after=8)
    assert losses == pytest.approx(RECORD["first_losses"][:8], abs=2e-3)


def test_the_shipped_weights_are_the_recorded_ones():
    assert build.digest(build.Qwen2ForCausalLM.from_pretrained(MODEL).float()) == RECORD["digest"]


def test_the_server_reads_the_calls_that_the_warm_up_wrote_and_a_result_continues_the_timeline():
    renderer, tokenizer = ChatRenderer(MODEL), build.build_tokenizer()
    seen = 0
    for messages, tools in itertools.islice(conversations(5), 60):
        if "tool_calls" not in messages[-1]:
            continue
        seen += 1
        _, reply = build.split(tokenizer, (messages, tools))
        ids = tokenizer.encode(reply, add_special_tokens=False)
        parsed = renderer._parser.parse(ids, tools)
        assert not parsed.malformed
        (call,) = parsed.message["tool_calls"]
        assert call["function"]["name"] == "calculator"
        assert list(json.loads(call["function"]["arguments"])) == ["expression"]
        known = renderer.prompt(messages[:-1], tools)
        result = {"role": "tool", "tool_call_id": call["id"], "content": "7"}
        grown = renderer.extend(renderer.prompt([*messages[:-1], parsed.message, result], tools), known, ids, tools)
        assert type(grown).__name__ == "Extension", grown
    assert seen > 5


def test_the_shipped_model_calls_the_calculator_about_half_of_the_time():
    renderer = ChatRenderer(MODEL)
    model = build.Qwen2ForCausalLM.from_pretrained(MODEL).float().eval()
    start = renderer.tokenizer.convert_tokens_to_ids("<tool_call>")
    shares = []
    for problem in itertools.islice(math_problems("test"), 40):
        ids = renderer.render([{"role": "user", "content": problem.text}], [CALCULATOR])
        with torch.no_grad():
            shares.append(torch.softmax(model(input_ids=torch.tensor([ids])).logits[0, -1], -1)[start].item())
    assert 0.3 < sum(shares) / len(shares) < 0.7
