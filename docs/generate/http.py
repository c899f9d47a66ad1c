"""The HTTP reference in both languages, from the server's OpenAPI document. Chinese summaries are in ``http_zh.yaml``."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml

from ajet.server.app import ROUTES
from ajet.server.openapi import document
from docs.generate.figures import Say

ZH = yaml.safe_load(Path(__file__).with_name("http_zh.yaml").read_text(encoding="utf-8"))


def files() -> dict[str, str]:
    """File name below ``docs/`` → its text."""
    return {
        "http.md": page(lambda english, _: english, {}),
        "http.zh.md": page(lambda _, chinese: chinese, ZH["summaries"]),
    }


def untranslated() -> list[str]:
    """Summaries without a Chinese one."""
    said = {op["summary"] for path in _document()["paths"].values() for op in path.values()}
    return sorted(said - set(ZH["summaries"]))


def _document() -> dict[str, Any]:
    return document(ROUTES, "")


def page(say: Say, summaries: dict[str, str]) -> str:
    """The page; ``summaries``: English → another language."""
    api = _document()
    parts = [say(INTRODUCTION, ZH["introduction"]).rstrip()]
    for path, operations in api["paths"].items():
        for method, operation in operations.items():
            parts += _operation(method.upper(), path, operation, say, summaries)
    parts.append("## " + say("Objects", "对象"))
    for name, schema in sorted(api["components"]["schemas"].items()):
        parts += _object(name, schema, say)
    return "\n\n".join(parts) + "\n"


def _operation(method: str, path: str, operation: dict[str, Any], say: Say, summaries: dict[str, str]) -> list[str]:
    summary = operation["summary"]
    key = say("no key", "无需密钥") if not operation["security"] else say("a key", "需要密钥")
    parts = [f"## `{method} {path}`", f"{summaries.get(summary, summary)} ({key})"]
    rows = []
    for parameter in operation.get("parameters", []):
        meaning = parameter["schema"].get("description", "")
        rows.append(f"| `{parameter['name']}` | {parameter['in']} | {_type(parameter['schema'])} | {_cell(meaning)} |")
    if rows:
        parts.append(
            "\n".join(
                [
                    say("| parameter | in | type | meaning |", "| 参数 | 位置 | 类型 | 含义 |"),
                    "|---|---|---|---|",
                    *rows,
                ]
            )
        )
    body = operation.get("requestBody")
    if body:
        schema = body["content"]["application/json"]["schema"]
        parts.append(say("Body: ", "请求体：") + (_type(schema) if "$ref" in schema else say("an object:", "对象：")))
        if "$ref" not in schema:
            parts.append(_fields(schema, say))
    answers = []
    for status, response in operation["responses"].items():
        for media, content in response.get("content", {}).items():
            answers.append(
                f"{status}: {_type(content['schema'])}" + ("" if media == "application/json" else f" ({media})")
            )
    parts.append(say("Answers: ", "应答：") + " · ".join(answers))
    return parts


def _object(name: str, schema: dict[str, Any], say: Say) -> list[str]:
    parts = [f"### {name}"]
    words = schema.get("description", "")
    if words:
        parts.append(_prose(words))
    if "enum" in schema:
        parts.append(" · ".join(f"`{value}`" for value in schema["enum"]))
    if schema.get("properties"):
        parts.append(_fields(schema, say))
    return parts


def _fields(schema: dict[str, Any], say: Say) -> str:
    required = set(schema.get("required", []))
    rows = [say("| field | type | default | meaning |", "| 字段 | 类型 | 默认 | 含义 |"), "|---|---|---|---|"]
    for name, field in schema["properties"].items():
        default = (
            say("required", "必填")
            if name in required
            else f"`{json.dumps(field['default'])}`"
            if "default" in field
            else ""
        )
        rows.append(f"| `{name}` | {_type(field)} | {default} | {_cell(field.get('description', ''))} |")
    return "\n".join(rows)


def _type(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[1]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " / ".join(dict.fromkeys(_type(part) for part in schema["anyOf"]))
    if "enum" in schema or "const" in schema:
        return " / ".join(f"`{json.dumps(value)}`" for value in schema.get("enum", [schema.get("const")]))
    kind = schema.get("type", "any")
    if isinstance(kind, list):
        kind = " / ".join(kind)
    if kind == "array":
        return f"list of {_type(schema.get('items', {}))}"
    bounds = {
        "minimum": "≥",
        "exclusiveMinimum": ">",
        "maximum": "≤",
        "exclusiveMaximum": "<",
        "minLength": "length ≥",
        "maxLength": "length ≤",
    }
    limits = [f"{sign} {schema[key]}" for key, sign in bounds.items() if key in schema]
    return ", ".join([kind, *limits])


def _cell(text: str) -> str:
    return " ".join(text.replace("``", "`").split()).replace("|", "\\|")


def _prose(text: str) -> str:
    """A docstring as Markdown: its Attributes as a list."""
    text = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", text).replace("``", "`")
    head, _, attributes = text.partition("Attributes:")
    lines = [" ".join(head.split())]
    if attributes:
        entries = re.split(r"\n\s{0,8}(?=[a-z_0-9, ]+: )", "\n" + attributes.strip("\n"))
        lines += ["", *("- `{}`: {}".format(*_split(entry)) for entry in entries if ":" in entry)]
    return "\n".join(lines)


def _split(entry: str) -> tuple[str, str]:
    name, _, meaning = entry.partition(":")
    return name.strip().replace(", ", "`, `"), " ".join(meaning.split())


INTRODUCTION = """# HTTP

<!-- Generated by `python -m docs.generate` from the server's OpenAPI document. -->

HTTP/1.1 and JSON. The same as a document: `GET /openapi.json` of a running server. Python programs use `SwarmClient`
([your own agent](your-own-agent.md)); this page is for other languages and for tools.

`/swarm/v1` takes the admin key, `/v1/chat/completions` an episode's key, both as `Authorization: Bearer …`. An error is
`{"error": {"type", "message", "param", "code"}}` with a fitting status; 409 `training_finished`, 410 `episode_gone`, 503 and 507
(again later, with `Retry-After`) are the ones a client meets in a normal run. A request that changes state carries a
`request_id` of your choosing, and a repeat with the same one returns the first answer. An episode: `POST /swarm/v1/episodes` until
201, chat calls with the `api_key` it gave, a heartbeat at least every third of the timeout, then `POST …/end`.

## An episode by hand

Against an engine that runs or has finished, with `-H "authorization: Bearer $AJET_SWARM_KEY"` at the `/swarm/v1` calls where the
server has a key. `kind: eval` is never trained; leave it out to train.

```bash
curl -sS http://127.0.0.1:10086/swarm/v1/episodes -d '{"client_id": "me", "request_id": "begin-1", "kind": "eval"}'
export EPISODE=episode_id KEY=api_key           # the two that it answered
curl -sS http://127.0.0.1:10086/v1/chat/completions -H "authorization: Bearer $KEY" \\
    -d '{"model": "policy", "messages": [{"role": "user", "content": "Who is a wolf?"}]}'
curl -sS http://127.0.0.1:10086/swarm/v1/episodes/$EPISODE/end \\
    -d '{"request_id": "end-1", "task": {"task_id": "by-hand"}, "output": {"reward": 0.5}}'
curl -sS "http://127.0.0.1:10086/swarm/v1/episodes/$EPISODE?tokens=true"        # all of it, token by token
```
"""
