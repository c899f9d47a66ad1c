"""``ajet-swarm doctor --backbone``: boots a backbone with the built-in model, samples, trains a step, and says how that went.

Where there is no GPU, verl runs on CPUs: Ray, two FSDP workers, the embedded sampler. Nothing of an experiment is touched.
"""

from __future__ import annotations

import math
import time
from typing import Literal

import numpy as np

from ajet.backbone import create_backbone
from ajet.backbone.protocol import Backbone, BackboneDied, Sampling
from ajet.default_config.schema import AjetConfig
from ajet.schema.errors import AjetError
from ajet.server.doctor import Report
from ajet.server.jobs import visible_gpus
from ajet.trajectory.batch import Row, Sample, TrainBatch

_AGREE = 1e-3
"""Largest difference between a sampler's and a trainer's log-prob in float32."""
_PROMPT = [5, 9, 17, 33]


async def examine_backbone(name: Literal["embedded", "verl"]) -> Report:
    """Findings about this installation's backbone ``name``; takes a minute where Ray has to start."""
    report = Report(f"backbone: {name}")
    config = AjetConfig(backbone=name)
    config.rollout.max_model_len = 512
    config.model.dtype = "float32"
    if name == "verl" and not visible_gpus():
        config.trainer_common.n_gpus_per_node = 0
    backbone = create_backbone(config)
    began = time.monotonic()
    try:
        info = await backbone.start(config.model_dump(mode="json"))
        report.facts.update({"device": info.device, "parameters": info.parameters})
        report.say("ok", "boot", f"took {time.monotonic() - began:.1f} s")
        await _try(backbone, info.digest, report)
    except (AjetError, BackboneDied) as error:
        report.say("bad", "it", f"does not work: {error}")
    finally:
        await backbone.close()
    return report


async def _try(backbone: Backbone, initial: str, report: Report) -> None:
    rows = []
    for episode in range(2):
        sampling = Sampling(max_tokens=16, seed=episode, ignore_eos=True)
        (chunk,) = [c async for c in backbone.generate(_PROMPT, sampling, session=f"e{episode}/a")]
        length, at = len(_PROMPT) + len(chunk.ids), len(_PROMPT)
        trained_T = np.arange(length) >= at
        logprobs_T = np.zeros(length, np.float32)
        logprobs_T[at:] = chunk.logprobs
        ids_T, versions_T = np.array(_PROMPT + chunk.ids, np.int32), np.where(trained_T, 0, -1).astype(np.int32)
        sample = Sample(ids_T, trained_T, logprobs_T, np.ones(length, np.float32), versions_T)
        rows.append(Row(f"e{episode}", "a", "a", "task", float(episode), [sample]))
    result = await backbone.train_step(TrainBatch(1, rows))
    difference, norm = result.metrics["sampler/logprob_diff_max"], result.metrics["actor/grad_norm"]
    level: Literal["ok", "bad"] = "ok" if difference < _AGREE else "bad"
    report.say(level, "log-probs", f"of sampler and trainer differ by at most {difference:.1e}")
    moved = math.isfinite(norm) and norm > 0 and result.digest != initial
    report.say("ok" if moved else "bad", "a step", f"has a gradient of norm {norm:.3g} and took "
               f"{result.metrics['timing/update_s']:.2f} s")  # fmt: skip
