"""Keys: one admin key, and one signed key per episode.

Promises: comparisons take constant time; the signing secret and a generated admin key lie in files of mode 0600 (one
that others could read is closed to them, and said so); no key is ever logged. On loopback without an admin key, calls are accepted from this machine's own programs only:
a browser page of another origin, or one that reached us under another host name, is refused.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from ajet.schema.endpoint import EpisodeKey
from ajet.schema.errors import ConfigError, Forbidden, InvalidKey
from ajet.server.settings import ServerSettings, is_loopback

log = logging.getLogger("ajet.keys")

KEY_VARIABLE = "AJET_SWARM_KEY"
SIGNATURE_HEX = 40


class Keys:
    """Checks and makes keys.

    Args:
        settings: an explicit ``admin_key`` wins over ``AJET_SWARM_KEY``, which wins over a generated one.
    """

    def __init__(self, settings: ServerSettings) -> None:
        folder = settings.data_dir
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        kept = _kept(folder / "secret", lambda: secrets.token_hex(32))
        try:
            secret = bytes.fromhex(kept)
        except ValueError:
            secret = b""
        if len(secret) < 16:
            raise ConfigError(
                f"{folder / 'secret'} is not the secret that this server wrote. Restore it; or remove it, and open episodes "
                "lose their keys."
            )
        self._signer = hmac.new(secret, digestmod="sha256")
        admin = settings.admin_key or os.environ.get(KEY_VARIABLE, "").strip() or None
        self.generated = False
        if admin is None and not settings.loopback:
            admin = _kept(folder / "admin.key", lambda: "ajet-" + secrets.token_urlsafe(32))
            self.generated = True
        admin = admin.strip() if admin else None
        if admin is not None and len(admin) < 8:
            raise ConfigError(f"{KEY_VARIABLE} is shorter than 8 characters. Choose a longer one.")
        if admin is not None and not (admin.isascii() and admin.isprintable()):
            raise ConfigError(f"{KEY_VARIABLE} has characters that no HTTP header carries. Use plain ASCII ones.")
        self._admin = admin.encode() if admin else None

    @property
    def demands_admin_key(self) -> bool:
        return self._admin is not None

    def _signature(self, episode: str) -> str:
        # A copy of the keyed state: setting the key up anew costs more than the rest of the check.
        signer = self._signer.copy()
        signer.update(episode.encode())
        return signer.hexdigest()[:SIGNATURE_HEX]

    def episode_key(self, episode: str) -> str:
        """The key that opens the chat endpoint for ``episode``."""
        return str(EpisodeKey(episode, self._signature(episode)))

    def check_episode_key(self, token: str | None) -> EpisodeKey:
        """The parts of a genuine episode key. Raises :class:`InvalidKey`."""
        if not token:
            raise InvalidKey("No API key. Send 'Authorization: Bearer <api_key of the episode>'.")
        key = EpisodeKey.parse(token)
        if not hmac.compare_digest(self._signature(key.episode).encode(), key.signature.encode()):
            raise InvalidKey(
                "This episode key was not signed by this server. Use the api_key that begin_episode returned."
            )
        return key

    def check_admin(self, token: str | None, *, origin: str | None, host: str | None, site: str | None = None) -> None:
        """Raises :class:`InvalidKey` or :class:`Forbidden` unless this request may use the swarm API.

        Args:
            origin, host, site: the headers ``Origin``, ``Host`` and ``Sec-Fetch-Site``.
        """
        if self._admin is None:
            if host and not is_loopback(_host_name(f"//{host}")):
                raise Forbidden(f"This server has no key and answers to loopback names only, not to {host[:100]!r}.")
            if site == "cross-site" or (origin is not None and not is_loopback(_host_name(origin))):
                raise Forbidden("Calls from a web page of another origin are refused while no AJET_SWARM_KEY is set.")
            return
        if token is None:
            raise InvalidKey(
                "This server demands its admin key. Set AJET_SWARM_KEY, or send 'Authorization: Bearer <key>'."
            )
        ours = hashlib.sha256(self._admin).digest()
        if not hmac.compare_digest(ours, hashlib.sha256(token.encode("utf-8", "replace")).digest()):
            raise InvalidKey(
                "This is not the server's admin key. Set AJET_SWARM_KEY to the one the server was started with."
            )


def bearer(header: str | None) -> str | None:
    """The token of an ``Authorization`` header."""
    if not header:
        return None
    kind, _, token = header.partition(" ")
    return token.strip() if kind.lower() == "bearer" and token.strip() else None


def _host_name(url: str) -> str:
    """The host that a URL names; empty where it names none."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def _kept(path: Path, make: Callable[[], str]) -> str:
    """The content of a private file, made on first use."""
    try:
        with path.open() as file:
            if os.fstat(file.fileno()).st_mode & 0o077:
                log.warning("%s could be read by other users of this machine; now only by its owner", path)
                os.fchmod(file.fileno(), 0o600)
            kept = file.read().strip()
        if kept:
            return kept
    except FileNotFoundError:
        pass
    except UnicodeDecodeError:
        raise ConfigError(
            f"{path} is not what this server wrote. Restore it, or remove it to have a new one."
        ) from None
    value = make()
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(value)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    return value
