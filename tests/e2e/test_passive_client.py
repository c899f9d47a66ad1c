"""The passive client's tutorial with real processes: a server, the stand-in, and an application with the ``openai`` SDK."""

from __future__ import annotations

import re
import signal

import httpx
import pytest

from tests.faults import processes

pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]
FOLDER = processes.ROOT / "tutorial" / "passive_client"


def test_an_applications_requests_train_the_model_to_what_its_users_like(make_server, run_script, tmp_path):
    server = make_server()
    port = processes.free_port()
    stand_in = run_script(str(FOLDER / "stand_in.py"), "--swarm-url", server.url, "--port", str(port), cwd=tmp_path)
    base = f"http://127.0.0.1:{port}"

    def rolling() -> bool:
        assert stand_in.poll() is None, stand_in.communicate()[0]
        return server.state() == "ROLLING"

    processes.until(rolling, what="the engine that the stand-in starts")
    application = run_script(
        str(FOLDER / "application.py"), "--base-url", f"{base}/v1", "--requests", "96", cwd=tmp_path
    )
    output, _ = application.communicate(timeout=150)
    assert application.returncode == 0, output
    rewards = [step["reward/mean"] for step in server.steps() if "reward/mean" in step]
    liked = [float(share) for share in re.findall(r": ([0-9.]+) liked", output)]
    assert len(liked) == 3, output
    stats = httpx.get(f"{base}/passive/stats").json()
    assert stats["trained"] == 96, stats
    stand_in.send_signal(signal.SIGTERM)
    assert stand_in.wait(30) in (0, -signal.SIGTERM)
    status = server.status()
    assert status["policy_version"] >= 10, status
    assert liked[-1] > liked[0] or liked[0] == 1.0, output
    assert rewards[-1] > rewards[0] + 0.2, rewards
