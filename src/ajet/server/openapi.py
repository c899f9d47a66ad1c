"""``/openapi.json``, built from the route tables."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from ajet.server.chat_request import ROLES
from ajet.server.routes.route import Route

Mode: TypeAlias = Literal["validation", "serialization"]
Refs: TypeAlias = Mapping[Any, dict[str, Any]]
"""(model, mode) → a reference to its schema."""

_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["type", "message", "code"],
            "properties": {
                "type": {"type": "string"},
                "message": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": "string"},
                "details": {"type": "object"},
            },
        }
    },
}
_PARTS = {"type": "array", "items": {"type": "object", "properties": {"type": {}, "text": {}}, "required": ["type"]}}
_MESSAGE = {
    "type": "object",
    "required": ["role"],
    "properties": {
        "role": {"enum": sorted(ROLES)},
        "content": {"anyOf": [{"type": "string"}, _PARTS, {"type": "null"}]},
        "name": {"type": "string"},
        "tool_call_id": {"type": "string"},
        "tool_calls": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "id": {"type": "string"},
                    "type": {"const": "function"},
                    "function": {
                        "type": "object",
                        "required": ["name", "arguments"],
                        "properties": {"name": {"type": "string"}, "arguments": {"type": "string"}},
                    },
                },
            },
        },
    },
}
_CHAT_BODY = {
    "type": "object",
    "required": ["messages"],
    "properties": {
        "model": {"type": "string"},
        "messages": {"type": "array", "minItems": 1, "items": _MESSAGE},
        "temperature": {"type": "number", "minimum": 0, "maximum": 10},
        "top_p": {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
        "top_k": {"type": "integer", "minimum": -1},
        "max_tokens": {"type": "integer", "minimum": 1},
        "max_completion_tokens": {"type": "integer", "minimum": 1},
        "n": {"type": "integer", "minimum": 1},
        "stream": {"type": "boolean"},
        "stream_options": {"type": "object", "properties": {"include_usage": {"type": "boolean"}}},
        "stop": {
            "anyOf": [
                {"type": "string", "minLength": 1},
                {"type": "array", "items": {"type": "string", "minLength": 1}},
            ]
        },
        "seed": {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1},
        "tools": {"type": "array", "items": {"type": "object"}},
        "tool_choice": {"enum": ["auto", "none"]},
        "logprobs": {"type": "boolean"},
        "top_logprobs": {"type": "integer", "minimum": 0, "maximum": 20},
    },
}
_CHAT_ANSWER = {
    "type": "object",
    "required": ["id", "object", "created", "model", "choices", "usage"],
    "properties": {
        "id": {"type": "string"},
        "object": {"const": "chat.completion"},
        "created": {"type": "integer"},
        "model": {"type": "string"},
        "choices": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["index", "message", "finish_reason"],
                "properties": {
                    "index": {"type": "integer"},
                    "message": {"type": "object", "required": ["role"]},
                    "finish_reason": {"enum": ["stop", "length", "tool_calls"]},
                },
            },
        },
        "usage": {
            "type": "object",
            "required": ["prompt_tokens", "completion_tokens", "total_tokens"],
            "additionalProperties": {"type": "integer"},
        },
    },
}
_ANY_ERROR = {
    "description": "An error.",
    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
}


def _operation(route: Route, refs: Refs) -> dict[str, Any]:
    responses: dict[str, Any] = {}
    for status in route.statuses:
        model = route.also.get(status) or (route.answer if status == route.statuses[0] else None)
        if model is None and status >= 400:
            responses[str(status)] = _ANY_ERROR
            continue
        schema = refs[(model, "serialization")] if model is not None else {"type": "string"}
        responses[str(status)] = {"description": "See the summary.", "content": {route.media: {"schema": schema}}}
    responses["default"] = _ANY_ERROR
    operation: dict[str, Any] = {
        "summary": route.summary,
        "operationId": f"{route.method.lower()}{re.sub(r'[^a-z0-9]+', '_', route.path)}",
        "responses": responses,
        "security": [] if route.access == "open" else [{"bearer": []}],
    }
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in re.findall(r"{(\w+)}", route.path)
    ] + [{"name": name, "in": "query", "required": False, "schema": schema} for name, schema in route.query.items()]
    if parameters:
        operation["parameters"] = parameters
    if route.request is not None:
        body = {"application/json": {"schema": refs[(route.request, "validation")]}}
        operation["requestBody"] = {"required": True, "content": body}
    return operation


def document(routes: list[Route], version: str) -> dict[str, Any]:
    """The OpenAPI 3.1 document of the whole server."""
    requests = {route.request for route in routes if route.request is not None}
    answers = {model for route in routes for model in (route.answer, *route.also.values()) if model is not None}
    wanted: set[tuple[type[BaseModel], Mode]] = set()
    wanted.update((model, "validation") for model in requests)
    wanted.update((model, "serialization") for model in answers)
    refs, definitions = models_json_schema(
        sorted(wanted, key=lambda pair: (pair[0].__name__, pair[1])), ref_template="#/components/schemas/{model}"
    )
    paths: dict[str, Any] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, refs)
    paths["/v1/chat/completions"] = {
        "post": {
            "summary": "OpenAI chat completions, opened by an episode key.",
            "operationId": "post_v1_chat_completions",
            "security": [{"bearer": []}],
            "requestBody": {"required": True, "content": {"application/json": {"schema": _CHAT_BODY}}},
            "responses": {
                "200": {
                    "description": "A completion; its chunks as server-sent events with stream: true.",
                    "content": {
                        "application/json": {"schema": _CHAT_ANSWER},
                        "text/event-stream": {"schema": {"type": "string"}},
                    },
                },
                "default": _ANY_ERROR,
            },
        }
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "AgentJet swarm server", "version": version},
        "paths": paths,
        "components": {
            "schemas": {**definitions.get("$defs", {}), "Error": _ERROR},
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }
