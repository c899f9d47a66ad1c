"""Claims about keys."""

import stat

import pytest

from ajet.schema.endpoint import OpenaiBaseUrlAndApiKey
from ajet.schema.errors import AjetError, ConfigError, Forbidden, InvalidKey
from ajet.server.auth import KEY_VARIABLE, Keys, bearer
from ajet.server.logs import _clean
from ajet.server.settings import ServerSettings


@pytest.fixture(autouse=True)
def no_key(monkeypatch):
    monkeypatch.delenv(KEY_VARIABLE, raising=False)


def test_episode_keys_survive_a_restart_and_carry_agents(tmp_path):
    key = Keys(ServerSettings(exp_dir=tmp_path)).episode_key("ep-1")
    agent = OpenaiBaseUrlAndApiKey("http://x/v1", key).for_agent("Änna", "seer").api_key
    parsed = Keys(ServerSettings(exp_dir=tmp_path)).check_episode_key(agent)
    assert (parsed.episode, parsed.agent, parsed.tag) == ("ep-1", "Änna", "seer")


def test_forged_and_foreign_episode_keys_open_nothing(tmp_path):
    keys = Keys(ServerSettings(exp_dir=tmp_path / "a"))
    other = Keys(ServerSettings(exp_dir=tmp_path / "b")).episode_key("ep-1")
    moved = keys.episode_key("ep-1").replace("ep-1", "ep-2")
    for token in (other, moved, None, "", "sk-123", "ajet-ep..", "ajet-ep.ep-1.é"):
        with pytest.raises(InvalidKey):
            keys.check_episode_key(token)


def test_secrets_are_private_files(tmp_path):
    Keys(ServerSettings(exp_dir=tmp_path, host="0.0.0.0"))
    for name in ("secret", "admin.key"):
        assert stat.S_IMODE((tmp_path / ".server" / name).stat().st_mode) == 0o600


def test_beyond_loopback_a_key_is_generated_and_demanded(tmp_path):
    keys = Keys(ServerSettings(exp_dir=tmp_path, host="0.0.0.0"))
    kept = (tmp_path / ".server" / "admin.key").read_text()
    assert keys.generated
    keys.check_admin(kept, origin=None, host="10.0.0.1:10086")
    for token in (None, "wrong", kept[:-1], keys.episode_key("ep-1")):
        with pytest.raises(InvalidKey):
            keys.check_admin(token, origin=None, host=None)


def test_on_loopback_only_foreign_origins_and_names_are_refused(tmp_path):
    keys = Keys(ServerSettings(exp_dir=tmp_path))
    assert not keys.demands_admin_key
    for host in ("127.0.0.1:10086", "localhost:10086", "[::1]:10086", None):
        keys.check_admin(None, origin=None, host=host)
    for origin, host in (("https://evil.example", "localhost"), (None, "evil.example:10086"), ("null", None)):
        with pytest.raises(Forbidden):
            keys.check_admin(None, origin=origin, host=host)


def test_the_environments_key_is_used_and_short_ones_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv(KEY_VARIABLE, "from the environment")
    keys = Keys(ServerSettings(exp_dir=tmp_path))
    keys.check_admin("from the environment", origin="https://anywhere", host="anything")
    monkeypatch.setenv(KEY_VARIABLE, "short")
    with pytest.raises(ConfigError):
        Keys(ServerSettings(exp_dir=tmp_path))


def test_bearer_reads_only_bearer():
    assert bearer("Bearer abc") == bearer("bearer  abc") == "abc"
    assert bearer("Basic abc") is bearer("Bearer ") is bearer(None) is None


def test_keys_are_kept_out_of_logs(tmp_path):
    keys = Keys(ServerSettings(exp_dir=tmp_path, host="0.0.0.0"))
    episode, admin = keys.episode_key("ep-1"), (tmp_path / ".server" / "admin.key").read_text()
    text = _clean(f"key {episode} and Authorization: Bearer hunter2secret and {admin}")
    assert episode.split(".")[2] not in text
    assert "hunter2secret" not in text
    assert admin not in text


def test_every_error_knows_its_status():
    def leaves(cls):
        return [cls, *(leaf for sub in cls.__subclasses__() for leaf in leaves(sub))]

    assert all(400 <= cls.http_status < 600 for cls in leaves(AjetError))
