"""``/openapi.json``, built from the route tables."""

from __future__ import annotations

import re
from typing import Any

from pydantic.json_schema import models_json_schema

from ajet.server.routes.route import Route

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
_CHAT_BODY = {
    "type": "object",
    "required": ["messages"],
    "properties": {
        "model": {"type": "string"},
        "messages": {"type": "array", "minItems": 1, "items": {"type": "object", "required": ["role"]}},
        "temperature": {"type": "number"},
        "max_tokens": {"type": "integer", "minimum": 1},
        "n": {"type": "integer", "minimum": 1},
        "stream": {"type": "boolean"},
        "stop": {},
        "seed": {"type": "integer"},
        "tools": {"type": "array", "items": {"type": "object"}},
        "logprobs": {"type": "boolean"},
        "top_logprobs": {"type": "integer", "minimum": 0, "maximum": 20},
    },
}


def document(routes: list[Route], version: str) -> dict[str, Any]:
    """The OpenAPI 3.1 document of the whole server."""
    models = {model for route in routes for model in (route.request, route.answer) if model is not None}
    ordered = sorted(models, key=lambda model: model.__name__)
    refs, definitions = models_json_schema(
        [(m, "validation") for m in ordered], ref_template="#/components/schemas/{model}"
    )
    paths: dict[str, Any] = {}
    for route in routes:
        responses: dict[str, Any] = {}
        for status in route.statuses:
            responses[str(status)] = {
                "description": "See the summary.",
                "content": {"application/json": {"schema": {}}},
            }
        if route.answer is not None:
            responses[str(route.statuses[0])]["content"]["application/json"]["schema"] = refs[
                (route.answer, "validation")
            ]
        responses["default"] = {
            "description": "An error.",
            "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
        }
        operation: dict[str, Any] = {
            "summary": route.summary,
            "operationId": f"{route.method.lower()}{re.sub(r'[^a-z0-9]+', '_', route.path)}",
            "responses": responses,
            "security": [] if route.access == "open" else [{"bearer": []}],
        }
        parameters = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in re.findall(r"{(\w+)}", route.path)
        ] + [{"name": name, "in": "query", "required": False, "schema": {"type": "string"}} for name in route.query]
        if parameters:
            operation["parameters"] = parameters
        if route.request is not None:
            schema = refs[(route.request, "validation")]
            operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
        paths.setdefault(route.path, {})[route.method.lower()] = operation
    paths["/v1/chat/completions"] = {
        "post": {
            "summary": "OpenAI chat completions, opened by an episode key.",
            "operationId": "post_v1_chat_completions",
            "security": [{"bearer": []}],
            "requestBody": {"required": True, "content": {"application/json": {"schema": _CHAT_BODY}}},
            "responses": {
                "200": {"description": "A completion, or its chunks."},
                "default": {
                    "description": "An error.",
                    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
                },
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
