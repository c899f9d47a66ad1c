"""The typed configuration tree and its vetted defaults. Class defaults *are* the shipped settings.

Pure data: no file access, no torch. Loading, overlaying and error messages with line numbers are in
:mod:`ajet.default_config.load`. Every field has an attribute docstring; the reference page is generated from them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from ajet.schema.throttle import ShareName

BUILTIN_MODEL = "ajet-tiny-werewolves"
"""Name of the model that ships inside the package (trains on a CPU)."""
BUILTIN_MODELS = {BUILTIN_MODEL: "werewolves", "ajet-tiny-tools": "arithmetic"}
"""Name of each such model → the room of ``ajet.envs`` that holds it."""

CollectionRule = Literal[
    "rollout_until_finish_enough_tasks",
    "rollout_until_finish_enough_episodes",
    "rollout_until_finish_enough_non_dummy_tasks",
    "rollout_until_any_client_agree_sync_weight",
    "rollout_until_all_clients_agree_sync_weight",
]

TrackerName = Literal["console", "tensorboard", "wandb", "swanlab", "mlflow", "trackio"]

Positive = Annotated[int, Field(ge=1)]
NonNegative = Annotated[int, Field(ge=0)]


class Node(BaseModel):
    """A branch of the tree: unknown keys and wrong types are refused."""

    model_config = ConfigDict(extra="forbid", validate_assignment=True, use_attribute_docstrings=True)


class ModelConfig(Node):
    path: str = BUILTIN_MODEL
    """A transformers causal-LM directory, or the name of a built-in tiny model: ``ajet-tiny-werewolves``, or
    ``ajet-tiny-tools``, which calls tools."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Weights' type. ``auto``: float32 on a CPU, bfloat16 on a GPU."""
    served_name: str | None = None
    """Name shown by ``/v1/models``; default: the directory's name."""
    frozen: dict[str, str] = Field(default_factory=dict)
    """Name → directory of checkpoints of the same model that are served beside the policy and never trained; a call asks
    for one as model ``frozen:<name>``. ``frozen`` alone is always the initial model."""


class ValKwargs(Node):
    temperature: Annotated[float, Field(ge=0, le=10)] = 0.0
    """Sampling temperature of eval episodes that do not choose one."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Nucleus of eval episodes that do not choose one."""


class RolloutConfig(Node):
    name: Literal["auto", "embedded", "vllm", "sglang"] = "auto"
    """What samples. ``auto``: the embedded sampler for ``backbone: embedded``. ``vllm`` there: vLLM in a process of its own
    beside the embedded trainer."""
    temperature: Annotated[float, Field(gt=0, le=10)] = 0.9
    """Sampling temperature of calls that do not choose one."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Nucleus. Training needs 1.0: the trainer cannot reproduce a truncated distribution."""
    num_repeat: Positive = 4
    """Episodes per task: the size of a group."""
    max_env_worker: Positive = 128
    """Open episodes at most, over all clients."""
    max_num_seqs: Positive = 64
    """Sequences the sampler decodes at once."""
    max_response_length_in_one_turn: Positive = 4096
    """Tokens one call may sample."""
    max_model_len: Positive = 18000
    """Tokens of prompt and reply together."""
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] = 0.85
    """Share of GPU memory the sampler may plan with."""
    kv_cache_gib: Annotated[float, Field(gt=0)] | None = None
    """Memory for the sampler's KV cache; default: chosen from what is free."""
    sleep_while_training: bool = False
    """vLLM on a GPU: give its memory to the trainer during an update; calls wait meanwhile."""
    tensor_model_parallel_size: Positive = 1
    """GPUs one sampler spans (backbone verl)."""
    val_kwargs: ValKwargs = ValKwargs()


class DataConfig(Node):
    train_batch_size: Positive = 32
    """Groups (tasks) per step."""
    max_prompt_length: Positive = 3000
    """Tokens of a timeline's first prompt that training accepts."""
    max_response_length: Positive = 15000
    """Tokens after the first prompt that training accepts."""


class OptimConfig(Node):
    lr: Annotated[float, Field(gt=0)] = 1e-6
    """Learning rate of AdamW."""
    betas: tuple[float, float] = (0.9, 0.999)
    """AdamW's betas."""
    eps: Annotated[float, Field(gt=0)] = 1e-8
    """AdamW's epsilon."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    """AdamW's weight decay."""
    lr_warmup_steps: NonNegative = 0
    """Optimizer steps of linear warm-up."""
    lr_scheduler: Literal["constant", "cosine"] = "constant"
    """After the warm-up. ``cosine`` falls to ``min_lr_ratio`` at the last training step."""
    min_lr_ratio: Annotated[float, Field(ge=0, le=1)] = 0.1
    """Floor of the cosine schedule, as a share of ``lr``."""
    grad_clip: Annotated[float, Field(gt=0)] = 1.0
    """Largest norm of the gradient."""


class RolloutCorrectionConfig(Node):
    rollout_is: Literal["token", "sequence"] | None = None
    """Weigh each token by how much likelier the policy before the update finds it than the one that sampled it did, by
    the token's own ratio or by its row's product. None: no weights, and PPO's ratio starts at the sampling policy."""
    rollout_is_threshold: float | str = 2.0
    """Bound of the weights: a number truncates them, ``lower_upper`` (``"0.5_5.0"``) zeroes those outside."""
    rollout_is_batch_normalize: bool = False
    """Scale the weights to mean 1 over the batch."""
    rollout_rs: str | None = None
    """Reject tokens or rows whose ratio is out of bounds, by verl's names (``token_k1``, ``seq_mean_k3``, …), several
    with commas. Rejected tokens are counted."""
    rollout_rs_threshold: float | str | None = None
    """Bounds for ``rollout_rs``: ``lower_upper`` for the k1 kinds, an upper bound for the others."""


class AlgorithmConfig(Node):
    adv_estimator: str = "grpo"
    """verl's advantage estimator by its registered name."""
    norm_adv_by_std_in_grpo: bool = True
    """Divide the group's advantages by its standard deviation."""
    running_baseline: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Compare a group whose rewards are all equal with its role's running mean reward instead of leaving it out. The
    value is the weight of the past at each step (0.9: about the last ten). None: such groups train nothing."""
    gamma: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Discount, where the estimator has one."""
    lam: Annotated[float, Field(ge=0, le=1)] = 1.0
    """GAE's lambda, where the estimator has one."""
    policy_loss: str = "vanilla"
    """verl's policy loss by its registered name."""
    loss_agg_mode: str = "token-mean"
    """verl's loss aggregation by name."""
    role_weighting: Literal["equal", "token"] = "equal"
    """``equal``: each (game, role) weighs the same; ``token``: each token does."""
    clip_ratio: Annotated[float, Field(gt=0)] = 0.2
    """PPO clip range, both sides unless the next two are set."""
    clip_ratio_low: Annotated[float, Field(gt=0)] | None = None
    """Lower clip range."""
    clip_ratio_high: Annotated[float, Field(gt=0)] | None = None
    """Upper clip range."""
    clip_ratio_c: Annotated[float, Field(gt=1)] = 3.0
    """Dual-clip bound for negative advantages."""
    entropy_coeff: Annotated[float, Field(ge=0)] = 0.0
    """Weight of the entropy bonus."""
    rollout_correction: RolloutCorrectionConfig = RolloutCorrectionConfig()
    """verl's correction for tokens that another policy sampled than the one being updated."""
    policy_loss_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Passed on to verl's ``PolicyLossConfig``."""


class TrainerConfig(Node):
    algorithm: AlgorithmConfig = AlgorithmConfig()
    optim: OptimConfig = OptimConfig()
    use_kl_loss: bool = True
    """Add a KL term to the initial model to the loss."""
    kl_loss_coef: Annotated[float, Field(ge=0)] = 0.002
    """Weight of the KL term."""
    kl_loss_type: str = "low_var_kl"
    """verl's ``kl_penalty`` by name."""
    mini_batch_num: Positive = 1
    """Optimizer steps per pass over a batch."""
    ppo_epochs: Positive = 1
    """Passes over a batch."""
    max_tokens_per_microbatch: Positive = 16384
    """Tokens of one forward pass; gradients accumulate over as many as it takes."""
    save_freq: Positive = 20
    """Steps between checkpoints."""
    total_training_steps: Positive = 1000
    """Steps after which the engine is FINISHED."""
    n_gpus_per_node: NonNegative | None = None
    """GPUs to use on each host; default: one if there is one, else the CPU."""
    nnodes: Positive = 1
    """Hosts (backbone verl)."""
    ulysses_sequence_parallel_size: Positive = 1
    """Sequence parallelism (backbone verl)."""
    logger: TrackerName | list[TrackerName] = "console"
    """Trackers by verl's names, one or several; see docs/trackers.md."""
    seed: int = 0
    """Seed of everything the trainer draws."""
    cpu_threads: NonNegative = 0
    """Torch threads on a CPU; 0 = chosen from the model's size and the machine's cores."""


class LoraConfig(Node):
    rank: NonNegative = 0
    """0 = train all weights. Else adapters of this rank only, by either backbone."""
    alpha: Positive = 16
    """LoRA's scale is ``alpha / rank``."""
    target_modules: str | list[str] = "all-linear"
    """Modules that get an adapter."""


class VerlConfig(Node):
    """What only ``backbone: verl`` reads."""

    ray_address: str | None = None
    """A running Ray cluster to join (``host:6379``, or ``auto``); default: one is started on this host."""
    placement: Literal["colocated", "separate"] = "colocated"
    """``colocated``: samplers and trainer share the GPUs and take turns. ``separate``: samplers have GPUs of their own."""
    rollout_nodes: Positive = 1
    """Hosts that sample, with ``placement: separate``."""
    rollout_gpus_per_node: Positive = 1
    """GPUs that sample on each of them, with ``placement: separate``."""
    param_offload: bool = False
    """Keep FSDP's weights in the host's memory between passes."""
    optimizer_offload: bool = False
    """Keep AdamW's state in the host's memory between steps."""
    gradient_checkpointing: bool | None = None
    """Compute activations again in the backward pass; default: on GPUs."""
    cpu_workers: Positive = 2
    """Training workers of a host that uses no GPU (``trainer_common.n_gpus_per_node: 0``)."""
    boot_timeout_s: Annotated[float, Field(gt=0)] = 900.0
    """How long Ray, its workers and the model may take to come up before that is a failure."""
    overrides: dict[str, Any] = Field(default_factory=dict)
    """Any key of verl's configuration below ``actor_rollout_ref``, nested or dotted; wins over the mapping."""


class CheckpointConfig(Node):
    keep_last: Positive = 3
    """Newest checkpoints kept; the journal leads on exactly from each. With 1 there is none before it to resume from."""
    keep_best: NonNegative = 1
    """Best checkpoints (by ``best_metric``) kept beside them."""
    best_metric: str = "reward/mean"
    """A metric of ``metrics.jsonl``; larger is better."""


class JournalConfig(Node):
    sync: Literal["full", "normal"] = "full"
    """``full``: every answer is on disk before it is sent. ``normal``: survives a killed process, not a power loss."""
    dir: str | None = None
    """Where the journal lies; default: the experiment's folder. Must not be a network file system."""
    keep: Literal["needed", "all"] = "needed"
    """``needed``: what no restart can need any more is removed after each checkpoint. ``all``: every call is kept, so that
    ``ajet-swarm replay-journal`` can train the whole run again from the start."""


class SwarmConfig(Node):
    max_policy_lag: NonNegative = 1
    """Policy versions a token may lag behind the update that trains it."""
    max_episode_age_s: Annotated[float, Field(gt=0)] = 4 * 3600
    """A lease ends at this age, however alive its client."""
    opposed_tags: list[list[str]] = Field(default_factory=list)
    """Sides that play against each other, each as a list of tags. One reward number for an episode in which several of
    them spoke is refused: it would pay the losers for the winners' play."""
    group_deadline_s: Annotated[float, Field(gt=0)] | None = None
    """A group that is open longer than this is dropped with what it has; default: never while an episode of it is open."""
    shares: dict[ShareName, Annotated[float, Field(gt=0)]] = Field(default_factory=dict)
    """Name → weight of the parts of each batch that clients with different tasks play for, ``{math: 40, games: 60}``; each
    client names its own (``SwarmClient(share="math")``). Empty: one part for all, or what clients declare themselves with a
    ``SwarmThrottlePolicy``."""
    share_wait_s: Annotated[float, Field(gt=0)] = 600.0
    """How long the first share to have all its groups of a batch waits for the others, whose clients live; then it fills
    their places, too."""
    client_silence_s: Annotated[float, Field(gt=0)] = 90.0
    """A client that gives no sign of life for so long no longer takes part: its share is lent to the others, and the "agree"
    rules do not wait for it. Its open episodes follow their own timeout."""


class JsonlFile(Node):
    file_path: str
    """A file of JSON objects, one a line."""


class JsonlDatasetFile(Node):
    training: JsonlFile | None = None
    """Training tasks."""
    validation: JsonlFile | None = None
    """Validation tasks."""


class HuggingfaceDatRepo(Node):
    dataset_path: str
    """Repository on the hub, or a local file or folder."""
    dataset_name: str | None = None
    """Configuration of the repository, where it has several."""
    training_split: str = "train"
    """Split that training tasks come from."""
    validation_split: str = "validation"
    """Split that validation tasks come from."""


class TaskReaderNode(Node):
    type: Literal["random_dummy", "jsonl_dataset_file", "huggingface_dat_repo"] = "random_dummy"
    """Where tasks come from."""
    dataset_path: str | None = None
    """jsonl: training file. Hugging Face: repository or local path."""
    validation_path: str | None = None
    """jsonl: validation file."""
    dataset_name: str | None = None
    """Hugging Face: configuration of the repository, where it has several."""
    training_split: str = "train"
    """Hugging Face: split that training tasks come from."""
    validation_split: str = "test"
    """Hugging Face: split that validation tasks come from."""
    num_tasks: Positive = 1000
    """random_dummy: how many tasks."""
    seed: int | None = None
    """Order of the tasks; None = the source's own order."""
    jsonl_dataset_file: JsonlDatasetFile | None = None
    """Kept for scripts that nest the jsonl paths; wins over the flat keys."""
    huggingface_dat_repo: HuggingfaceDatRepo | None = None
    """Kept for scripts that nest the dataset's keys; wins over the flat ones."""


class ContextTrackerConfig(Node):
    timeline_compare_level: Literal["text", "token"] = "token"
    """Kept for scripts that set it. Timelines here are always compared exactly, by token."""
    ignore_tools: bool = False
    """Kept for scripts that set it."""
    fix_retokenization_drift: bool = True
    """Kept for scripts that set it. Sampled ids are never re-tokenized here, so there is nothing to fix."""


class EnvConfig(Node):
    werewolves: dict[str, Any] = Field(default_factory=dict)
    """What ``ExampleWerewolves(options=…)`` takes: ``board`` (a preset or counts of roles) and the rules' options."""


class AjetConfig(Node):
    """The tree under ``ajet:``."""

    project_name: str = "ajet"
    """Groups experiments in trackers."""
    experiment_name: str = "experiment"
    """Name of the run and of its folder."""
    experiment_dir: str | None = None
    """Folder of experiments; default: the server's ``--exp-dir``."""
    backbone: Literal["embedded", "verl"] = "embedded"
    """What samples and trains: one process on one device, or verl on Ray."""
    enable_swarm_mode: bool = True
    """Kept for scripts that set it; there is no other mode."""
    swarm_mode_sample_collection_method: CollectionRule = "rollout_until_finish_enough_tasks"
    """When a batch is complete."""
    model: ModelConfig = ModelConfig()
    rollout: RolloutConfig = RolloutConfig()
    data: DataConfig = DataConfig()
    trainer_common: TrainerConfig = TrainerConfig()
    lora: LoraConfig = LoraConfig()
    verl: VerlConfig = VerlConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    journal: JournalConfig = JournalConfig()
    swarm: SwarmConfig = SwarmConfig()
    task_reader: TaskReaderNode = TaskReaderNode()
    context_tracker: ContextTrackerConfig = ContextTrackerConfig()
    env: EnvConfig = EnvConfig()

    def to_dict(self) -> dict[str, Any]:
        """The whole tree as plain data, under ``ajet``, as a YAML file holds it."""
        return {"ajet": self.model_dump(mode="json")}
