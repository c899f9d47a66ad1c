"""The TRL side of ``benchmarks/trl_grpo.py``: one training run in a process of its own, in an environment of its own.

Private: started with the interpreter that has TRL. Prints one JSON line: when each step ended, and its mean reward.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any


def main() -> None:
    job = json.loads(sys.argv[1])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    import torch
    import transformers
    from datasets import Dataset
    from task_reward import reward
    from trl import GRPOConfig, GRPOTrainer, __version__

    torch.set_num_threads(job["threads"])
    rewards: list[float] = []
    lengths: list[float] = []

    def score(completions: Any, completion_ids: Any, **_: Any) -> list[float]:
        found = [reward(c[0]["content"]) for c in completions]
        rewards.append(sum(found) / len(found))
        lengths.append(sum(map(len, completion_ids)) / len(completion_ids))
        return found

    ends: list[float] = []

    class Clock(transformers.TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            ends.append(time.time())

    config = GRPOConfig(
        output_dir=job["folder"], use_cpu=True, bf16=False, fp16=False, gradient_checkpointing=False, report_to=[],
        save_strategy="no", logging_strategy="no", disable_tqdm=True, seed=job["seed"], max_steps=job["steps"],
        per_device_train_batch_size=job["group"], num_generations=job["group"], gradient_accumulation_steps=1,
        max_completion_length=job["length"], temperature=1.0, top_p=1.0, top_k=0, beta=0.0, epsilon=0.2,
        loss_type="grpo", scale_rewards="group", num_iterations=1, learning_rate=job["lr"], weight_decay=0.0,
        adam_beta1=0.9, adam_beta2=0.999, adam_epsilon=1e-8, max_grad_norm=1.0, lr_scheduler_type="constant",
        warmup_steps=0, optim="adamw_torch", dataloader_pin_memory=False,
    )  # fmt: skip
    prompts = [{"prompt": [{"role": "user", "content": f"Task {n}."}]} for n in range(job["steps"])]
    trainer = GRPOTrainer(
        model=job["model"], reward_funcs=score, args=config, train_dataset=Dataset.from_list(prompts),
        processing_class=transformers.AutoTokenizer.from_pretrained(job["model"], padding_side="left"),
        callbacks=[Clock()],
    )  # fmt: skip
    trainer.train()
    result = {
        "ends": ends, "rewards": rewards, "lengths": lengths,
        "versions": {"trl": __version__, "torch": torch.__version__, "transformers": transformers.__version__},
    }  # fmt: skip
    answers.write(json.dumps(result) + "\n")
    answers.flush()


if __name__ == "__main__":
    main()
