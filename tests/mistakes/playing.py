"""Rows about episodes, rewards, calls, other models, and what happens while a run goes on. See :mod:`tests.mistakes.table`."""

from __future__ import annotations

from tests.mistakes.row import Row
from tests.mistakes.row import Text as T

EPISODES = [
    Row(
        "engine offline", "script", T("`begin_episode` and nobody has started the engine", "没有人启动引擎就 `begin_episode`"),
        "[ajet] waiting for an episode: No engine is running. Set a job and start it. Ask again. Some client must call "
        "auto_sync_train_config_and_start_engine(job); giving up after … s.",
        T("Call it once before the loop; other clients may leave it out.", "在循环之前调用一次；其他客户端可以不调用。"),
    ),
    Row(
        "engine stays offline", "script", T("The same, and nobody does in time", "同上，一直没有人启动"),
        "is OFFLINE since … s or more. Start it with auto_sync_train_config_and_start_engine(job).",
        T("As above.", "同上。"),
    ),
    Row(
        "empty task id", "script", T("A task without an id", "任务没有 id"),
        "end_episode needs a task with a task_id: episodes of one id form a group.",
        T("`Task(task_id=…)`: the same for the `num_repeat` episodes of one task, another for each task.",
          "`Task(task_id=…)`：同一任务的 `num_repeat` 局相同，不同任务不同。"),
    ),
    Row(
        "blank task id", "script", T("A task id of blanks", "任务 id 只有空格"),
        "task.task_id is empty. Episodes of one task form a group, so every task needs an id.",
        T("As above.", "同上。"),
    ),
    Row(
        "another task", "script", T("An episode ends with another task than it began with", "结束时的任务与开始时不同"),
        "This episode began for task 'a' and cannot end as task 'b'. Give the same task to both.",
        T("Often a variable shared between threads.", "往往是线程之间共用了变量。"),
    ),
    Row(
        "no reward", "script", T("No reward", "没有奖励"),
        "WorkflowOutput.reward is None. Give a number, or abort the episode if it could not be judged.",
        T("`client.abort_episode(id, reason)` for what was not the policy's doing.", "不是策略造成的情况用 `client.abort_episode(id, reason)`。"),
    ),
    Row(
        "reward nan", "script", T("A reward that is NaN or infinite", "奖励是 NaN 或无穷大"),
        "reward must be finite and within ±1e6, found nan. Give another number, or abort the episode if it could not be judged",
        T("Look for a division by zero in the scoring.", "检查打分代码里的除以零。"),
    ),
    Row(
        "reward text", "script", T("A reward that is a text", "奖励是文字"),
        "reward is a number, or a dict of numbers by agent name or tag; found 'good'. Give float(…), or abort the episode if it could "
        "not be judged",
        T("Convert it to a number.", "转换成数字。"),
    ),
    Row(
        "unknown tags", "script", T("A reward dict that does not name who spoke", "奖励字典里没有发言者"),
        "output.reward covers neither the name nor the tag of: P1 (tag werewolf). It has: wolf. Add a number for each agent that spoke.",
        T("Keys are the names or tags of `api.for_agent(name, tag=…)`.", "键是 `api.for_agent(name, tag=…)` 的名字或标签。"),
    ),
    Row(
        "no calls", "script", T("An episode in which the model was never called", "对局里一次也没有调用模型"),
        "[ajet] an episode ended in which the model was never called: there is nothing to train, and it fills no batch. Do your agents "
        "use the api.base_url and api.api_key that begin_episode returned? Such episodes are counted as drops under no_calls.",
        T("The agents speak to another endpoint (`OPENAI_BASE_URL`?), or the game was over before they spoke.",
          "智能体连到了别的端点（`OPENAI_BASE_URL`？），或对局在它们发言前就结束了。"),
    ),
    Row(
        "ended twice", "script", T("An episode is ended twice", "同一局结束了两次"),
        "has ended already (pooled). Its result stands: report each once.",
        T("End it in one place.", "只在一处结束。"),
    ),
    Row(
        "aborted", "script", T("An episode is ended after it was aborted or had expired", "对局已中止或过期后才结束"),
        "is gone: aborted: gave up. Nothing of it is trained: begin another one.",
        T("The reason is in the message. After silence: keep the client's process alive, or raise `discard_episode_timeout`.",
          "原因写在消息里。若因静默而过期：保持客户端进程存活，或提高 `discard_episode_timeout`。"),
    ),
    Row(
        "unknown episode", "script", T("An episode that this server never began", "这个服务器没有开始过的对局"),
        "There is no episode ep-nonsense. Name the id that begin_episode of this server returned.",
        T("Do not mix the clients of two servers.", "不要混用两个服务器的客户端。"),
    ),
    Row(
        "error in the workflow", "script", T("An exception in your own code", "你自己的代码抛出异常"),
        "[ajet] a rollout failed; the same error is counted, not shown again:",
        T("Your traceback follows, once. Where every run of a batch fails, the script ends.", "随后是你的调用栈，只显示一次。若一批全部失败，脚本结束。"),
    ),
    Row(
        "not awaited", "script", T("`AsyncSwarmClient` in blocking code", "在同步代码里用 `AsyncSwarmClient`"),
        "coroutine 'AsyncSwarmClient.begin_episode' was never awaited",
        T("Use `SwarmClient`, or `await` it inside `asyncio.run(main())`.", "用 `SwarmClient`，或在 `asyncio.run(main())` 里 `await`。"),
    ),
    Row(
        "two event loops", "script", T("One `AsyncSwarmClient` in several `asyncio.run`", "一个 `AsyncSwarmClient` 用于多个 `asyncio.run`"),
        "This AsyncSwarmClient was used in another asyncio.run() before, and its connections belong to that one. Make a client inside "
        "each asyncio.run(), or use SwarmClient, which any thread may call.",
        T("As it says.", "按提示做。"),
    ),
    Row(
        "ctrl-c in a script", "script", T("Ctrl-C in a script: waiting, playing, reporting", "在脚本里按 Ctrl-C：等待、对局、上报时"),
        "[ajet] interrupted; episodes that were open are given back.",
        T("Nothing: start it again whenever you like.", "无需处理，随时可以重新启动。"),
    ),
]  # fmt: skip

CALLS = [
    Row(
        "prompt too long", "script", T("A prompt longer than the model takes", "提示比模型长度还长"),
        "This model's maximum context length is 256 tokens, and the messages have 316. Shorten them, or raise rollout.max_model_len.",
        T("Cut the history, or raise `rollout.max_model_len`.", "截短历史，或提高 `rollout.max_model_len`。"),
    ),
    Row(
        "logit_bias", "script", T("A parameter that training cannot reproduce", "训练无法复现的参数"),
        "logit_bias is not supported in a train episode: the trainer could not reproduce it. Leave it out.",
        T("`n`, `stop`, `seed`, `tools` work; eval episodes take more.", "`n`、`stop`、`seed`、`tools` 可以用；eval 对局支持更多。"),
    ),
    Row(
        "response_format", "script", T("`response_format`", "`response_format`"),
        "response_format is not supported in a train episode: the trainer could not reproduce it yet. Leave it out.",
        T("Ask for JSON in the prompt and read it leniently.", "在提示里要求 JSON，并宽松地解析。"),
    ),
    Row(
        "greedy", "script", T("`temperature=0` in training", "训练时 `temperature=0`"),
        "temperature 0 is not supported in a train episode: greedy replies have no distribution to learn from. Leave it out to follow "
        "the job, or use an eval episode.",
        T("Leave it out.", "去掉它。"),
    ),
    Row(
        "control key", "script", T("A chat call with the control key", "用管理密钥调用模型"),
        "This is not an episode key. Use the api_key that begin_episode returned.",
        T("`OpenAI(base_url=api.base_url, api_key=api.api_key)`.", "`OpenAI(base_url=api.base_url, api_key=api.api_key)`。"),
    ),
    Row(
        "key of an ended episode", "script", T("A chat call with the key of an episode that has ended", "用已结束对局的密钥调用模型"),
        "Error code: 410 - Episode … has ended already (pooled). Its result stands: report each once.",
        T("Each episode has its own key: take the one of the episode that plays.", "每一局有自己的密钥：用正在进行的那一局的。"),
    ),
    Row(
        "key of another server", "script", T("A chat call with the key of another server", "用另一个服务器的密钥调用模型"),
        "This episode key was not signed by this server. Use the api_key that begin_episode returned.",
        T("As it says.", "按提示做。"),
    ),
    Row(
        "opponent down", "script", T("The endpoint of a static model does not answer", "静态模型的端点没有应答"),
        "[ajet] the static endpoint http://127.0.0.1:…/v1 does not answer (…); trying again for 600 s a call. Start it, or correct its address.",
        T("Start it, or correct `big_external_opponent_llm_url`. Such games are void, never a reward.",
          "启动它，或改正 `big_external_opponent_llm_url`。这样的对局作废，不会变成奖励。"),
    ),
    Row(
        "opponent's key", "script", T("The endpoint of a static model refuses the key", "静态模型的端点拒绝密钥"),
        "The static endpoint http://127.0.0.1:…/v1 failed (Refused: HTTP 401 invalid_api_key: Incorrect API key provided) after 0 failed tries. The game is void. Set AJET_OPPONENT_API_KEY to its key.",
        T("`export AJET_OPPONENT_API_KEY=…`.", "`export AJET_OPPONENT_API_KEY=…`。"),
    ),
]  # fmt: skip

RUNNING = [
    Row(
        "no memory", "script", T("The machine has no memory left (the backbone was killed)", "机器内存耗尽（backbone 被杀）"),
        "The backbone process ended with code -9 (killed: most likely the machine, or its container, had no memory left, which dmesg "
        "tells; take a smaller model, or lower rollout.max_num_seqs, rollout.max_model_len or "
        "trainer_common.max_tokens_per_microbatch)",
        T("As it says. A single death is recovered from by itself.", "按提示做。单次死亡会自动恢复。"),
    ),
    Row(
        "no log-probs", "script", T("A sampler that gives no log-probs", "采样器不返回 log-prob"),
        "The sampler gave 5 tokens and 0 log-probs. Without the ones they were sampled with they cannot be trained, so nothing is "
        "recorded. Have the sampler return them, or use another rollout.name.",
        T("A sampler of your own must return the log-prob of each token it sampled.", "自己的采样器必须返回每个采样 token 的 log-prob。"),
    ),
    Row(
        "no disk", "script", T("The disk is full, or refuses writes", "磁盘满，或拒绝写入"),
        "[ajet] waiting for http://127.0.0.1:… since … s (The disk under … refuses writes (…). Nothing was recorded; free some space "
        "and send the request again.); giving up after … s.",
        T("Free some space: the run goes on by itself, and nothing is lost.", "腾出空间，训练会自动继续，什么都不会丢。"),
    ),
    Row(
        "ctrl-c at the server", "server", T("Ctrl-C at the server, in any state", "在服务器上按 Ctrl-C，任何状态"),
        "stopping: a running update is finished and saved first; a second Ctrl-C leaves at once",
        T("Start it again: the run goes on by itself.", "重新启动，训练会自动继续。"),
    ),
    Row(
        "ctrl-c twice", "server", T("Ctrl-C twice", "按两次 Ctrl-C"),
        "left at once; the next start resumes from the journal",
        T("As above.", "同上。"),
    ),
    Row(
        "ctrl-c in the demo", "command", T("Ctrl-C in the demo", "在演示中按 Ctrl-C"),
        "stopped; the same command continues this run",
        T("Give the same command again.", "再次执行同样的命令。"),
    ),
]  # fmt: skip
