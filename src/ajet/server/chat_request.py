"""An OpenAI chat request, checked by hand because it is the hot path.

Fields that change nothing here (``user``, ``metadata``, …) are ignored. Fields that change *how a reply is sampled*
are honoured or refused by name, never ignored: in a train episode everything the trainer could not reproduce is
refused with :class:`UnsupportedForTraining`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ajet.schema.errors import InvalidRequest, UnsupportedForTraining
from ajet.server.settings import Limits

ROLES = frozenset({"system", "user", "assistant", "tool", "developer", "function"})
FROZEN = "frozen"
"""Model name under which the initial weights are served; ``frozen:<name>`` is another checkpoint. Their replies are never
trained."""

_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "length_penalty": (1,),
    "min_p": (0,),
    "typical_p": (1,),
    "logit_bias": ({},),
    "min_tokens": (0,),
    "use_beam_search": (False,),
    "best_of": (1,),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "structured_outputs": (),
    "logits_processors": ([],),
    "allowed_token_ids": (),
    "bad_words": ([],),
    "prefix": (),
    "prediction": (),
    "audio": (),
}
"""Sampling fields we cannot honour → values that mean "off"."""


@dataclass(frozen=True)
class ChatRequest:
    """What is asked. ``None`` follows the job."""

    messages: list[dict[str, Any]]
    model: str
    tools: list[dict[str, Any]] | None
    stream: bool
    include_usage: bool
    temperature: float | None
    top_p: float | None
    top_k: int
    max_tokens: int | None
    stop: tuple[str, ...]
    n: int
    seed: int | None
    logprobs: bool
    top_logprobs: int

    @property
    def frozen(self) -> bool:
        return self.model == FROZEN or self.model.startswith(f"{FROZEN}:")


def _number(body: dict[str, Any], name: str, low: float, high: float) -> float | None:
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise InvalidRequest(f"{name} must be a number.", param=name)
    if not low <= value <= high:
        raise InvalidRequest(f"{name} must be between {low:g} and {high:g}, not {value:g}.", param=name)
    return float(value)


def _integer(body: dict[str, Any], name: str, low: int, high: int) -> int | None:
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidRequest(f"{name} must be an integer.", param=name)
    if not low <= value <= high:
        raise InvalidRequest(f"{name} must be between {low} and {high}, not {value}.", param=name)
    return value


def _flag(body: dict[str, Any], name: str) -> bool:
    value = body.get(name)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise InvalidRequest(f"{name} must be true or false.", param=name)
    return value


def _messages(body: dict[str, Any], limits: Limits) -> list[dict[str, Any]]:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise InvalidRequest("messages must be a list with at least one message.", param="messages")
    if len(messages) > limits.messages:
        raise InvalidRequest(
            f"messages has {len(messages)} entries; at most {limits.messages} are accepted.", param="messages"
        )
    for i, message in enumerate(messages):
        if not isinstance(message, dict):
            raise InvalidRequest(f"messages[{i}] must be an object.", param=f"messages[{i}]")
        if message.get("role") not in ROLES:
            raise InvalidRequest(
                f"messages[{i}].role must be one of {', '.join(sorted(ROLES))}.", param=f"messages[{i}].role"
            )
        content = message.get("content")
        if content is not None and not isinstance(content, (str, list)):
            raise InvalidRequest(
                f"messages[{i}].content must be text or a list of parts.", param=f"messages[{i}].content"
            )
        if any(type(v) in (dict, list) and _deeper(v, limits.depth) for v in message.values()):
            raise InvalidRequest(f"messages[{i}] is nested deeper than {limits.depth} levels.", param=f"messages[{i}]")
        calls = message.get("tool_calls")
        if calls is not None and not (isinstance(calls, list) and all(_is_tool_call(call) for call in calls)):
            raise InvalidRequest(f"messages[{i}].tool_calls is not a list of calls.", param=f"messages[{i}].tool_calls")
    return messages


def _deeper(value: Any, levels: int) -> bool:
    """Whether lists and objects are nested deeper than ``levels``."""
    if isinstance(value, dict):
        value = list(value.values())
    elif not isinstance(value, list):
        return False
    return levels == 0 or any(_deeper(inner, levels - 1) for inner in value)


def _is_tool_call(call: Any) -> bool:
    return isinstance(call, dict) and (call.get("function") is None or isinstance(call["function"], dict))


def _tools(body: dict[str, Any], limits: Limits) -> list[dict[str, Any]] | None:
    tools = body.get("tools")
    choice = body.get("tool_choice")
    if tools is not None and not (isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools)):
        raise InvalidRequest("tools must be a list of objects.", param="tools")
    if tools is not None and _deeper(tools, limits.depth):
        raise InvalidRequest(f"tools is nested deeper than {limits.depth} levels.", param="tools")
    if choice not in (None, "auto", "none"):
        raise InvalidRequest(
            "tool_choice can be 'auto' or 'none': this server does not force a call. Say in the prompt which tool to use.",
            param="tool_choice",
        )
    return None if choice == "none" or not tools else tools


def _stop(body: dict[str, Any], limits: Limits) -> tuple[str, ...]:
    stop = body.get("stop")
    if stop is None:
        return ()
    stops = [stop] if isinstance(stop, str) else stop
    if not isinstance(stops, list) or not all(isinstance(s, str) and s for s in stops):
        raise InvalidRequest("stop must be a non-empty text or a list of them.", param="stop")
    if len(stops) > limits.stop_strings:
        raise InvalidRequest(
            f"stop has {len(stops)} entries; at most {limits.stop_strings} are accepted.", param="stop"
        )
    return tuple(stops)


def parse_chat(body: Any, limits: Limits) -> ChatRequest:
    """Check a request's shape. Raises :class:`InvalidRequest` naming the field at fault."""
    if not isinstance(body, dict):
        raise InvalidRequest("The body must be a JSON object.")
    options = body.get("stream_options")
    max_tokens = _integer(body, "max_completion_tokens", 1, 1 << 30)
    if max_tokens is None:
        max_tokens = _integer(body, "max_tokens", 1, 1 << 30)
    top_logprobs = _integer(body, "top_logprobs", 0, 20) or 0
    logprobs = _flag(body, "logprobs")
    if top_logprobs and not logprobs:
        raise InvalidRequest("top_logprobs needs logprobs: true.", param="top_logprobs")
    model = body.get("model")
    if model is not None and not isinstance(model, str):
        raise InvalidRequest("model must be a text.", param="model")
    return ChatRequest(
        messages=_messages(body, limits),
        model=model or "policy",
        tools=_tools(body, limits),
        stream=_flag(body, "stream"),
        include_usage=bool(options.get("include_usage")) if isinstance(options, dict) else False,
        temperature=_number(body, "temperature", 0, 10),
        top_p=_number(body, "top_p", 0, 1),
        top_k=_integer(body, "top_k", -1, 1 << 20) or 0,
        max_tokens=max_tokens,
        stop=_stop(body, limits),
        n=_integer(body, "n", 1, limits.choices) or 1,
        seed=_integer(body, "seed", -(2**63), 2**63 - 1),
        logprobs=logprobs,
        top_logprobs=top_logprobs,
    )


def check_sampling(body: dict[str, Any], request: ChatRequest, *, trained: bool) -> None:
    """Refuse by name what cannot be honoured, and in a trained call what cannot be reproduced."""
    error = UnsupportedForTraining if trained else InvalidRequest
    where = "in a train episode: the trainer could not reproduce it" if trained else "by this server's sampler"
    for name, neutral in _NEUTRAL.items():
        value = body.get(name)
        if value is not None and value not in neutral:
            raise error(f"{name} is not supported {where}. Leave it out.", param=name)
    wanted = body.get("response_format")
    if wanted is not None and not (isinstance(wanted, dict) and wanted.get("type") == "text"):
        raise error(f"response_format is not supported {where} yet. Leave it out.", param="response_format")
    if not trained:
        if request.top_p == 0:
            raise InvalidRequest("top_p must be above 0.", param="top_p")
        return
    if request.temperature == 0:
        raise UnsupportedForTraining(
            "temperature 0 is not supported in a train episode: greedy replies have no distribution to learn from. "
            "Leave it out to follow the job, or use an eval episode.",
            param="temperature",
        )
    if request.top_p is not None and request.top_p < 1:
        raise UnsupportedForTraining(
            f"top_p {request.top_p:g} is not supported {where}. Use 1 or leave it out.", param="top_p"
        )
    if request.top_k > 0:
        raise UnsupportedForTraining(f"top_k {request.top_k} is not supported {where}. Leave it out.", param="top_k")
