"""The calls of one open episode: which timeline a request extends, and what it adds to it.

Invariant: ``full_ids(call)`` is exactly what the backbone saw plus what it sampled. A request extends a call when its
tools and messages *begin with* that call's request and reply and the template writes them again as they were; else it
starts a branch, under a named cause (:mod:`ajet.trajectory.forks`) and with the place where it left its agent's last
request. Not thread-safe: the server's event loop is its only user.

Only the ends of timelines keep their whole ids and text in memory, so an episode costs what its messages cost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from ajet.trajectory.calls import Call
from ajet.trajectory.forks import Branch, Fork, message_fork, snippets
from ajet.trajectory.history import Histories, Node, canonical, link
from ajet.trajectory.renderer import ChatRenderer, Extension
from ajet.trajectory.template import Message, Rendered, Tools

_ATTEMPTS = 3
"""Where the template writes the last known reply otherwise, so many in all are tried as the place to branch from."""


@dataclass(frozen=True)
class Prepared:
    """A request on its timeline, ready to be sampled.

    Attributes:
        ids: the whole prompt. parent: the call it extends, or None. delta: ids after the parent's.
        branch: how it stands to the agent's calls before it. fork: where it left the last of them, for a branch.
        history: of the request, without a reply. prompt: its text.
        respelled: the template spells the last reply otherwise than it was sampled; the sampled ids stay.
    """

    agent: str
    tag: str
    ids: list[int]
    parent: str | None
    delta: list[int]
    branch: str
    fork: Fork | None
    history: Node
    tools: Tools
    prompt: Rendered
    respelled: bool = False


class _Agent:
    """What is known of one agent's calls."""

    def __init__(self) -> None:
        self.histories = Histories()
        self.extends: dict[str, str] = {}
        """context_key → call id"""
        self.requests: set[str] = set()
        """Digests of the requests that were answered."""
        self.last: Node | None = None
        """The history of the last request with its reply; None before it, or when restored."""
        self.last_tools: Tools = None
        self.restored = False


class EpisodeTrajectory:
    """All agents of one episode.

    Args:
        renderer: of the served model.
    """

    def __init__(self, renderer: ChatRenderer) -> None:
        self._renderer = renderer
        self._agents: dict[str, _Agent] = {}
        self.calls: dict[str, Call] = {}
        """Every recorded call, in order."""
        self.branches: Counter[str] = Counter()
        self._full: dict[str, list[int]] = {}
        self._prompts: dict[str, Rendered] = {}
        """Ids and prompt texts of the calls that nothing extends yet."""
        self._continued: set[str] = set()

    @property
    def tags(self) -> dict[str, str]:
        """Agent → tag, of all agents with a recorded call."""
        return {call.agent: call.tag for call in self.calls.values()}

    def full_ids(self, call_id: str) -> list[int]:
        """Prompt and reply of a call."""
        chain: list[Call] = []
        walk: str | None = call_id
        while walk is not None and walk not in self._full:
            chain.append(self.calls[walk])
            walk = self.calls[walk].parent
        if not chain:
            return self._full[call_id]
        ids = list(self._full[walk]) if walk is not None else []
        for call in reversed(chain):
            ids += call.prompt_delta
            ids += call.reply_ids
        if call_id not in self._continued:
            self._full[call_id] = ids
        return ids

    def prepare(self, agent: str, tag: str, messages: list[Message], tools: Tools = None) -> Prepared:
        """Render a request, reusing the ids of the timeline it extends.

        Raises:
            InvalidRequest: the chat template refuses the messages.
        """
        state = self._agents.setdefault(agent, _Agent())
        path = state.histories.path(tools, messages)
        unknown = [k for k, node in enumerate(path[1:]) if not node.clean]
        prompt = self._renderer.prompt(messages, tools, unknown)
        if not prompt.marked:
            for k in unknown:
                path[k + 1].clean = len(messages[k]) == 2 and type(messages[k].get("content")) is str
        cause: tuple[Branch, Fork | None] | None = None
        for known, parent in islice(_known_replies(state, path), _ATTEMPTS):
            call = self.calls[parent]
            before = self._prompt(parent, messages[: known - 1], tools)
            extension = self._renderer.extend(prompt, before, call.reply_ids, tools)
            if isinstance(extension, Extension):
                branch, fork = cause or self._growth(state, path, known, parent, tools)
                return Prepared(
                    agent, tag, self.full_ids(parent) + extension.ids, parent, extension.ids, str(branch), fork,
                    path[-1], tools, prompt, extension.respelled,
                )  # fmt: skip
            if cause is None:
                cause = self._unstable_cause(call), Fork(known - 1, "text", extension.had, extension.has)
        branch, fork = cause or _cause(state, path, tools)
        ids = self._renderer.ids(prompt)
        return Prepared(agent, tag, ids, None, ids, str(branch), fork, path[-1], tools, prompt)

    def _growth(
        self, state: _Agent, path: list[Node], known: int, parent: str, tools: Tools
    ) -> tuple[Branch, Fork | None]:
        """How a request that extends ``parent`` stands to what extends it already."""
        if path[-1].digest in state.requests:
            return Branch.RETRY, None
        if parent not in self._continued:
            return Branch.CONTINUES, None
        if state.last is None or not any(_role(node) == "assistant" for node in path[known + 1 :]):
            return Branch.PARALLEL, None
        return _cause(state, path, tools)

    def _unstable_cause(self, call: Call) -> Branch:
        if call.finish_reason == "stop" and call.reply_ids and call.reply_ids[-1] not in self._renderer.stop_token_ids:
            return Branch.STOP_STRING
        return Branch.REASONING_DROPPED if call.message.get("reasoning_content") else Branch.TEMPLATE_UNSTABLE

    def _prompt(self, call_id: str, messages: list[Message], tools: Tools) -> Rendered:
        """The text of a call's prompt, which these messages made."""
        return self._prompts.get(call_id) or self._renderer.prompt(messages, tools)

    def record(
        self,
        prepared: Prepared,
        *,
        call_id: str,
        reply_ids: list[int],
        logprobs: list[float],
        versions: list[int],
        temperature: float,
        finish_reason: str,
        message: Message,
        created: float,
        request: str = "",
        choice: int = 0,
    ) -> Call:
        """Add a sampled reply; later requests may extend it from now on."""
        branch = prepared.branch
        if choice:
            branch = str(Branch.CHOICE)
        elif branch == Branch.CONTINUES and prepared.parent in self._continued:
            # Another request that continued the same reply was answered while this one was sampled.
            branch = str(Branch.PARALLEL)
        call = Call(
            call_id=call_id,
            agent=prepared.agent,
            tag=prepared.tag,
            parent=prepared.parent,
            prompt_delta=prepared.delta,
            reply_ids=list(reply_ids),
            logprobs=list(logprobs),
            versions=list(versions),
            temperature=temperature,
            finish_reason=finish_reason,
            context_key=link(prepared.history.digest, canonical(message)),
            branch=branch,
            created=created,
            message=message,
            request=request,
            choice=choice,
            fork=prepared.fork.to_wire() if prepared.fork is not None and not choice else None,
        )
        self._add(call)
        self._full[call_id] = prepared.ids + call.reply_ids
        self._prompts[call_id] = prepared.prompt
        state = self._agents[call.agent]
        state.requests.add(prepared.history.digest)
        state.last, state.last_tools, state.restored = prepared.history.child(message), prepared.tools, False
        return call

    def restore(self, call: Call) -> None:
        """Add a call that the journal kept. Calls must come in the order they were recorded."""
        self._add(call)
        state = self._agents[call.agent]
        state.last, state.restored = None, True

    def _add(self, call: Call) -> None:
        state = self._agents.setdefault(call.agent, _Agent())
        self.calls[call.call_id] = call
        self.branches[call.branch] += 1
        state.extends[call.context_key] = call.call_id
        if call.parent is not None:
            self._continued.add(call.parent)
            self._full.pop(call.parent, None)
            self._prompts.pop(call.parent, None)


def _role(node: Node) -> str | None:
    return node.message.get("role") if node.message is not None else None


def _known_replies(state: _Agent, path: list[Node]) -> Iterator[tuple[int, str]]:
    """Beginnings that end with a reply of ours, and its call, longest first. A request needs one message more."""
    for known in range(len(path) - 2, 0, -1):
        if _role(path[known]) == "assistant":
            call = state.extends.get(path[known].digest)
            if call is not None:
                yield known, call


def _cause(state: _Agent, path: list[Node], tools: Tools) -> tuple[Branch, Fork | None]:
    """Why a request extends nothing, compared with the agent's last request and its reply."""
    if state.restored:
        return Branch.AFTER_RESTART, None
    if state.last is None:
        return Branch.FIRST, None
    if path[-1].digest in state.requests:
        return Branch.RETRY, None
    old, new = _messages(state.last), [node.message or {} for node in path[1:]]
    if (state.last_tools or None) != (tools or None):
        return Branch.TOOLS_CHANGED, Fork(None, "tools", *snippets(str(state.last_tools), str(tools)))
    same = 0
    while same < min(len(old), len(new)) and canonical(old[same]) == canonical(new[same]):
        same += 1
    had = old[same] if same < len(old) else None
    has = new[same] if same < len(new) else None
    fork = message_fork(same, had, has)
    if same == 0 and "system" in ((had or {}).get("role"), (has or {}).get("role")):
        return Branch.SYSTEM_CHANGED, fork
    if had is not None and has is not None and _without_reasoning(had) == _without_reasoning(has):
        return Branch.REASONING_DROPPED, fork
    only_system = same == 0 or (same == 1 and old[0].get("role") == "system")
    if only_system and not any(message.get("role") == "assistant" for message in new):
        return Branch.NEW_CONVERSATION, fork
    later = {canonical(message) for message in old[same + 1 :]}
    if has is None or canonical(has) in later:
        return Branch.MESSAGES_REMOVED, fork
    return Branch.HISTORY_EDITED, fork


def _messages(node: Node) -> list[Message]:
    found: list[Message] = []
    walk: Node | None = node
    while walk is not None and walk.message is not None:
        found.append(walk.message)
        walk = walk.parent
    return found[::-1]


def _without_reasoning(message: Message) -> str:
    return canonical({**message, "reasoning_content": None})
