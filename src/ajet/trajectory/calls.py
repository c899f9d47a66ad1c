"""One chat call as the journal keeps it: what it *added* to its timeline, never the whole history.

A :class:`Call` with its ancestors (``parent`` links) gives back the exact ids the backbone saw and sampled.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Call:
    """One chat request and its reply.

    Attributes:
        call_id: unique within the server.
        agent: who spoke. tag: its trainable role.
        parent: the call whose full ids (prompt + reply) this call's prompt extends verbatim; None for a root.
        prompt_delta: prompt ids after the parent's full ids.
        reply_ids: sampled ids, stop token included.
        logprobs: one per reply id, of the distribution sampled from.
        versions: policy version that sampled each reply id.
        temperature: of this call.
        finish_reason: ``stop`` or ``length``.
        context_key: hash chain over tools, messages and the reply: what a later request must begin with to extend this.
        branch: how this call stands to its agent's calls before it: a value of :class:`ajet.trajectory.forks.Branch`.
        created: Unix seconds.
        message: the assistant message as answered.
        request: identity of the chat request, by which a repeat of it is known; empty in old journals.
        choice: its place among the replies to that request (``n`` > 1).
        fork: of a branch, where it left its agent's last request (:class:`ajet.trajectory.forks.Fork`).
    """

    call_id: str
    agent: str
    tag: str
    parent: str | None
    prompt_delta: list[int]
    reply_ids: list[int]
    logprobs: list[float]
    versions: list[int]
    temperature: float
    finish_reason: str
    context_key: str
    branch: str
    created: float
    message: dict[str, Any] = field(default_factory=dict)
    request: str = ""
    choice: int = 0
    fork: dict[str, Any] | None = None

    def to_wire(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_wire(cls, wire: dict[str, Any]) -> Call:
        return cls(**wire)
