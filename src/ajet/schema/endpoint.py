"""Where an episode's agents send their chat calls, and how a call says who is speaking.

An episode key is ``ajet-ep.<episode>.<signature>``. A client may append ``.<name>.<tag>`` (unpadded base64url of
UTF-8), which says who speaks without asking the server. The server checks the signature over the episode id only.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from ajet.schema.errors import InvalidKey

EPISODE_KEY_PREFIX = "ajet-ep"
DEFAULT_AGENT = "main"
MAX_AGENT_NAME_BYTES = 256


def _b64(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _unb64(text: str) -> str:
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True).decode()
    except (binascii.Error, UnicodeDecodeError, ValueError) as err:
        raise InvalidKey("The agent part of this episode key is not base64url; build it with for_agent().") from err


@dataclass(frozen=True)
class EpisodeKey:
    """The parts of an episode key."""

    episode: str
    signature: str
    agent: str = DEFAULT_AGENT
    tag: str = DEFAULT_AGENT

    def __str__(self) -> str:
        head = f"{EPISODE_KEY_PREFIX}.{self.episode}.{self.signature}"
        if (self.agent, self.tag) == (DEFAULT_AGENT, DEFAULT_AGENT):
            return head
        return f"{head}.{_b64(self.agent)}.{_b64(self.tag)}"

    @classmethod
    def parse(cls, text: str) -> EpisodeKey:
        """Split an episode key. Raises :class:`InvalidKey` for anything else; the signature is not checked here."""
        parts = text.split(".")
        if len(parts) not in (3, 5) or parts[0] != EPISODE_KEY_PREFIX or not all(parts):
            raise InvalidKey("This is not an episode key. Use the api_key that begin_episode returned.")
        if len(parts) == 3:
            return cls(parts[1], parts[2])
        agent, tag = _unb64(parts[3]), _unb64(parts[4])
        if max(len(agent.encode()), len(tag.encode())) > MAX_AGENT_NAME_BYTES:
            raise InvalidKey(f"Agent names and tags are at most {MAX_AGENT_NAME_BYTES} bytes.")
        return cls(parts[1], parts[2], agent, tag)


@dataclass(frozen=True)
class OpenaiBaseUrlAndApiKey:
    """Address and key of one episode's OpenAI-compatible endpoint.

    Attributes:
        base_url: ends in ``/v1``; give it to any OpenAI client.
        api_key: opens this episode only.
        episode_uuid: the episode.
        model: name of the served model; any name is accepted by the server.
    """

    base_url: str
    api_key: str
    episode_uuid: str = ""
    model: str = "policy"

    def for_agent(self, name: str, tag: str | None = None) -> OpenaiBaseUrlAndApiKey:
        """The same endpoint, speaking as agent ``name`` with trainable role ``tag`` (default: the name)."""
        if not name:
            raise ValueError("an agent needs a name")
        key = replace(EpisodeKey.parse(self.api_key), agent=name, tag=tag or name)
        return replace(self, api_key=str(key))

    def __repr__(self) -> str:
        return f"OpenaiBaseUrlAndApiKey(base_url={self.base_url!r}, episode_uuid={self.episode_uuid!r}, api_key='…')"


def is_loopback_url(url: str) -> bool:
    """Whether the address can only mean this machine; proxies are none of its business."""
    host = urlsplit(url).hostname or ""
    return host in ("localhost", "::1") or host.startswith("127.")
