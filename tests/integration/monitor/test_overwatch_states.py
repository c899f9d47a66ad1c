"""Overwatch in every state of a real server's engine, on 80×24 by Textual's pilot.

``AJET_CAPTURES=FOLDER`` keeps each screen there as SVG and text; a wide one of the running engine is among them.
"""

import asyncio
import contextlib
import os
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from ajet.monitor.overwatch.app import Overwatch
from ajet.monitor.overwatch.feed import Feed
from ajet.schema.endpoint import OpenaiBaseUrlAndApiKey
from ajet.schema.errors import ConfigError
from tests.fakes.backbone import FakeBackbone
from tests.faults.processes import free_port
from tests.integration.server.conftest import DEADLINE_S, Swarm, job, renderer, serve  # noqa: F401


def gate(opened):
    made = asyncio.Event()
    if opened:
        made.set()
    return made


@dataclass
class Gated(FakeBackbone):
    """Boots and trains when the test lets it."""

    boots: asyncio.Event = field(default_factory=lambda: gate(True))

    async def start(self, job):
        await self.boots.wait()
        return await super().start(job)


async def capture(url, words, name, size=(80, 24)):
    """The screen, once all ``words`` stand on it. Every line fits, and the key bar is there."""
    app = Overwatch(Feed(url), 0.1)
    async with app.run_test(size=size) as pilot:
        deadline = time.monotonic() + DEADLINE_S
        while True:
            strips = app.screen._compositor.render_strips()
            lines = ["".join(segment.text for segment in strip) for strip in strips]
            if all(word in "\n".join(lines) for word in words):
                break
            assert time.monotonic() < deadline, "\n".join(lines)
            await pilot.pause()
        if folder := os.environ.get("AJET_CAPTURES"):
            Path(folder).mkdir(parents=True, exist_ok=True)  # noqa: ASYNC240
            Path(folder, f"{name}.svg").write_text(app.export_screenshot(title=f"ajet-swarm overwatch: {name}"))  # noqa: ASYNC240
            Path(folder, f"{name}.txt").write_text("\n".join(line.rstrip() for line in lines) + "\n")  # noqa: ASYNC240
        await pilot.press("q")
    assert len(lines) == size[1]
    assert "Quit" in lines[-1]
    return lines


def play_roles(swarm, task, won):
    """An episode in which a wolf and a seer speak."""
    begun = swarm.begin(client_id="laptop", task_id=task)
    for tag in ("werewolf", "seer"):
        key = OpenaiBaseUrlAndApiKey(swarm.url + "/v1", begun["api_key"], begun["episode_id"]).for_agent(tag, tag)
        body = {"model": "policy", "messages": [{"role": "user", "content": task}]}
        headers = {"authorization": f"Bearer {key.api_key}"}
        swarm.http.post("/v1/chat/completions", json=body, headers=headers).raise_for_status()
    metrics = {"win/werewolf": won, "win/seer": 1 - won / 2}
    reward = {"werewolf": won, "seer": 1 - won / 2}
    assert swarm.end(begun["episode_id"], task, reward, log_metrics=metrics).status_code == 200


def look(swarm, *words, name=None, **kw):
    url = swarm if isinstance(swarm, str) else swarm.url
    return asyncio.run(capture(url, words, name or words[0].lower(), **kw))


def on_loop(swarm, work):
    swarm.call(lambda: work())


@contextlib.contextmanager
def playing(swarm, task):
    """An episode that two clients keep open, and an answered call."""
    begun = [swarm.begin(client_id=client, task_id=task) for client in ("laptop", "werewolf-host-2")]
    swarm.say(begun[0], "hello")
    yield
    for one in begun:
        swarm.end(one["episode_id"], task)


def test_without_a_server_it_waits_and_says_how_to_start_one():
    look(f"http://127.0.0.1:{free_port()}", "waiting for", "ajet-swarm start", name="absent")


def test_every_state_of_a_run_is_shown(serve):  # noqa: F811
    made = []

    def make():
        made.append(Gated(boots=gate(False), hold_train=gate(True), metrics={"timing/update_s": 1.5}))
        return made[-1]

    with serve(make=make) as swarm:
        look(swarm, "OFFLINE", "none yet", "no step yet")
        tree = job(trainer_common__total_training_steps=12, trainer_common__save_freq=4, data__train_batch_size=3)
        swarm.http.put("/swarm/v1/job", json={"job": tree}).raise_for_status()
        swarm.post("/engine/start").raise_for_status()
        look(swarm, "BOOTING", "exp")
        swarm.loop.call_soon_threadsafe(made[-1].boots.set)
        swarm.wait("ROLLING")
        for step in range(1, 11):
            for n in range(6):
                play_roles(swarm, f"deal-{step}-{n // 2}", float((step * 7 + n * 5) % 12 < step))
            swarm.wait_step(step)
        play_roles(swarm, "deal-11-0", 1.0)
        with playing(swarm, "deal-11-1"):
            words = (
                "ROLLING",
                "10 of 12",
                "deal-11-0",
                "1 of 2",
                "laptop",
                "idle",
                "win rate werewolf",
                "newest: step 8",
            )
            look(swarm, *words)
            look(swarm, *words, "reward werewolf", "│", name="rolling-wide", size=(140, 40))
        swarm.wait("ROLLING")
        on_loop(swarm, made[-1].hold_train.clear)
        play_roles(swarm, "deal-11-0", 0.0)
        swarm.play_batch("more", groups=2)
        swarm.wait("UPDATING")
        look(swarm, "UPDATING", "the last update took")
        swarm.post("/engine/stop").raise_for_status()
        look(swarm, "STOPPING", "10 of 12")
        on_loop(swarm, made[-1].hold_train.set)
        swarm.wait("OFFLINE")
        swarm.post("/engine/start").raise_for_status()
        swarm.loop.call_soon_threadsafe(lambda: made[-1].boots.set())
        swarm.call(lambda: swarm.app.engine.changed.wait_until(lambda: len(made) > 1, DEADLINE_S))
        swarm.loop.call_soon_threadsafe(made[-1].boots.set)
        swarm.wait("ROLLING")
        swarm.play_batch("last", groups=3)
        swarm.wait("FINISHED")
        look(swarm, "FINISHED", "12 of 12", "newest: step 12")


def test_a_failure_shows_its_reason(serve):  # noqa: F811
    reason = "CUDA out of memory: this is the reason of the failure"
    with serve(make=lambda: FakeBackbone(start_error=ConfigError(reason))) as swarm:
        swarm.http.put("/swarm/v1/job", json={"job": job()}).raise_for_status()
        swarm.post("/engine/start").raise_for_status()
        swarm.wait("FAILED")
        look(swarm, "FAILED", "CUDA out of memory")


def test_a_refused_checkpoint_and_a_failing_tracker_are_shown(serve, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setenv("TENSORBOARD_DIR", str(tmp_path / "blocked" / "runs"))
    (tmp_path / "blocked").write_text("a file")
    full = OSError(28, "No space left on device")
    with serve(make=lambda: FakeBackbone(save_error=full), exp_dir=tmp_path / "exp") as swarm:
        swarm.start(job(trainer_common__logger="tensorboard"))
        swarm.play_batch()
        swarm.wait_step(1)
        look(swarm, "refused", "No space left", "tensorboard fails", "Tracker tensorboard", name="trouble")


def test_a_server_that_goes_away_is_said_and_what_was_known_stays(serve):  # noqa: F811
    gone = threading.Event()

    async def watch(url):
        app = Overwatch(Feed(url), 0.1)
        async with app.run_test(size=(80, 24)) as pilot:
            said = ""
            deadline = time.monotonic() + DEADLINE_S
            for words in ("ROLLING", "lost the server"):
                while words not in said:
                    assert time.monotonic() < deadline, said
                    await pilot.pause()
                    strips = app.screen._compositor.render_strips()
                    said = "\n".join("".join(segment.text for segment in strip) for strip in strips)
                gone.set()
            if folder := os.environ.get("AJET_CAPTURES"):
                Path(folder, "lost.svg").write_text(app.export_screenshot(title="ajet-swarm overwatch: lost"))  # noqa: ASYNC240
            assert "ROLLING" in said

    with serve() as swarm:
        swarm.start()
        watching = threading.Thread(target=lambda: asyncio.run(watch(swarm.url)))
        watching.start()
        assert gone.wait(DEADLINE_S)
    watching.join(DEADLINE_S)
    assert not watching.is_alive()
