"""Rows about reaching a server, installing and starting one, and the job. See :mod:`tests.mistakes.table`."""

from __future__ import annotations

from tests.mistakes.row import Row
from tests.mistakes.row import Text as T

REACHING = [
    Row(
        "no server", "script", T("No server runs, or the port is another one", "服务器没有运行，或端口不对"),
        "No answer from http://127.0.0.1:… to GET /swarm/v1/status: [Errno 111] Connection refused. Nothing listens there. "
        "Start the server (ajet-swarm start --swarm-port …), or correct the address.",
        T("Start the server with the command shown, or give the script its address (`--swarm-url`).",
          "用提示中的命令启动服务器，或把正确的地址（`--swarm-url`）交给脚本。"),
    ),
    Row(
        "tutorial without a server", "script", T("The script was started before the server", "先启动了脚本，服务器还没有启动"),
        "[ajet] waiting for http://127.0.0.1:… since … s ([Errno 111] Connection refused); giving up after 600 s. Nothing listens "
        "there. Start the server (ajet-swarm start --swarm-port …), or correct the address.",
        T("Start the server in another shell; the script goes on by itself. `SwarmClient(retry_budget_s=…)` sets how long it waits.",
          "在另一个终端启动服务器，脚本会自动继续。等待多久由 `SwarmClient(retry_budget_s=…)` 决定。"),
    ),
    Row(
        "no address", "command", T("An address without `http://`, or with a port that is none", "地址没有 `http://`，或端口不合法"),
        "server_url is an address like http://127.0.0.1:10086, and this is none: '…'.",
        T("Write it whole: `http://HOST:PORT`.", "写完整：`http://主机:端口`。"),
    ),
    Row(
        "unknown host", "command", T("The host's name is misspelt", "主机名写错"),
        "No machine is known as no-such-host.invalid. Correct the address.",
        T("Check the name with `getent hosts NAME`, or use the IP address.", "用 `getent hosts NAME` 检查主机名，或直接使用 IP。"),
    ),
    Row(
        "another program", "command", T("The address is another program's", "这个地址上是别的程序"),
        "http://127.0.0.1:… answered GET /swarm/v1/status with HTTP …, and not as a swarm server does. Another program listens "
        "there: correct the address or its port.",
        T("The server prints its address when it starts; its default port is 10086.", "服务器启动时会打印自己的地址，默认端口是 10086。"),
    ),
    Row(
        "proxy before the server", "command", T("`HTTP_PROXY` stands before the server", "`HTTP_PROXY` 挡在服务器前面"),
        "The way there leads through the proxy http://127.0.0.1:…, which the environment names. If the server is to be reached "
        "directly: export NO_PROXY=….",
        T("`export NO_PROXY=HOST` where the script runs.", "在运行脚本的地方 `export NO_PROXY=主机`。"),
    ),
    Row(
        "proxy before the agents", "script", T("`HTTP_PROXY` catches the agents' own calls to this machine", "`HTTP_PROXY` 截住了智能体发往本机的请求"),
        "[ajet] the environment names the proxy http://127.0.0.1:…, and OpenAI clients would send their calls to http://127.0.0.1:… "
        "through it. So that they do not: export NO_PROXY=127.0.0.1,localhost.",
        T("`export NO_PROXY=127.0.0.1,localhost`: OpenAI clients read these variables, ours does not for this machine.",
          "`export NO_PROXY=127.0.0.1,localhost`：OpenAI 客户端会读取这些变量，我们的客户端访问本机时不会。"),
    ),
    Row(
        "no key", "command", T("No key, and the server demands one", "服务器要求密钥，但没有给"),
        "This server demands its admin key. Set AJET_SWARM_KEY, or send 'Authorization: Bearer <key>'.",
        T("`export AJET_SWARM_KEY=…`, the same as where the server was started; a generated one stands in `EXP_DIR/.server/admin.key`.",
          "`export AJET_SWARM_KEY=…`，与启动服务器时相同；自动生成的密钥在 `EXP_DIR/.server/admin.key`。"),
    ),
    Row(
        "wrong key", "script", T("The wrong key", "密钥不对"),
        "This is not the server's admin key. Set AJET_SWARM_KEY to the one the server was started with.",
        T("As above.", "同上。"),
    ),
    Row(
        "other version", "script", T("Server and client are of different versions", "服务器与客户端版本不同"),
        "The server is AgentJet … and this client …: install the same version on both sides.",
        T("Install the same version on both (from a checkout: `git pull`, then the same `pip install` again); `ajet-swarm status` shows the server's.",
          "两侧安装同一版本（从检出安装时：`git pull`，再执行一次同样的 `pip install`）；`ajet-swarm status` 会显示服务器的版本。"),
    ),
]  # fmt: skip

STARTING = [
    Row(
        "old python", "run", T("Python is too old or too new", "Python 版本太旧或太新"),
        "AgentJet needs Python 3.10 to 3.12, this is …. Try: make PYTHON=python3.11 …",
        T("Use Python 3.10, 3.11 or 3.12 (pip says: `requires a different Python`).", "使用 Python 3.10、3.11 或 3.12（pip 会提示 `requires a different Python`）。"),
    ),
    Row(
        "client only", "command", T("The server was started where only the client is installed", "只装了客户端，却启动服务器"),
        "ajet-swarm: The server is not installed (… is missing). Run: pip install 'agentjet[server]'",
        T("Run that, in the same environment.", "在同一个环境里执行这条命令。"),
    ),
    Row(
        "port in use", "server", T("The port is taken", "端口被占用"),
        "Cannot listen on 127.0.0.1:…: another program does already. If it is a swarm server (ajet-swarm status --swarm-url "
        "http://127.0.0.1:…), use it or stop it; else choose another --swarm-port.",
        T("Use the server that runs, stop it, or choose another port.", "使用正在运行的服务器、停止它，或换一个端口。"),
    ),
    Row(
        "two servers", "server", T("Two servers on one folder of experiments", "两个服务器共用一个实验目录"),
        "Another swarm server works in … on this machine. Use that one, stop it, or give this one a folder of its own with --exp-dir.",
        T("One `--exp-dir` for each server.", "每个服务器用自己的 `--exp-dir`。"),
    ),
    Row(
        "folder not writable", "server", T("The folder of experiments cannot be written", "实验目录不可写"),
        "The folder … cannot be written: …. Give this user the right to, or choose another --exp-dir.",
        T("Check owner and mode (`ls -ld`); in Docker, the mounted folder's.", "检查属主和权限（`ls -ld`）；用 Docker 时检查挂载的目录。"),
    ),
    Row(
        "two demos", "command", T("The same demo runs already", "同一个演示已经在运行"),
        "Another swarm server works in … on this machine.",
        T("Wait for it, stop it, or add `--fresh`.", "等它结束、停止它，或加上 `--fresh`。"),
    ),
]  # fmt: skip

JOB = [
    Row(
        "unknown key", "script", T("A misspelt key in the YAML", "YAML 里的键写错"),
        "job.yaml:2: unknown key rollout.num_repeats. Did you mean rollout.num_repeat?",
        T("File, line and the nearest key are named. All keys: [configuration](configuration.md).",
          "提示里有文件、行号和最接近的键。全部键见[配置](configuration.zh.md)。"),
    ),
    Row(
        "wrong type", "server", T("A value of the wrong type", "值的类型不对"),
        'job.yaml:3: data.train_batch_size: expected a whole number, found "many".',
        T("Correct the line.", "改正这一行。"),
    ),
    Row(
        "no yaml", "script", T("The file is not YAML (a tab, a brace that is not closed)", "文件不是合法的 YAML（制表符、括号未闭合）"),
        "job.yaml:3: this is not YAML: found character '\\t' that cannot start any token.",
        T("Indent with spaces.", "用空格缩进。"),
    ),
    Row(
        "no file", "script", T("The configuration's path is wrong", "配置文件路径不对"),
        "Cannot read the configuration nowhere.yaml: [Errno 2] No such file or directory: 'nowhere.yaml'. Check the path.",
        T("The path is relative to where the script is started.", "路径相对于启动脚本时所在的目录。"),
    ),
    Row(
        "collection rule", "script", T("A collection rule that does not exist", "不存在的收集规则"),
        "swarm_mode_sample_collection_method: expected one of 'rollout_until_finish_enough_tasks', …, found \"enough_tasks\".",
        T("Use one of the names shown.", "使用提示中的名字之一。"),
    ),
    Row(
        "mini batches", "script", T("More mini-batches than episodes", "mini-batch 比一批的对局还多"),
        "trainer_common.mini_batch_num is 100, more than the 4 episodes of a batch (data.train_batch_size × rollout.num_repeat); lower it.",
        T("Any number up to that is fine: it need not divide the batch.", "不超过它即可，不要求整除。"),
    ),
    Row(
        "lengths", "script", T("Prompt and response together are longer than the model takes", "提示加回复超过模型长度"),
        "rollout.max_model_len is 4096, less than data.max_prompt_length + data.max_response_length = 3000 + 3000; raise it or lower those",
        T("Raise `rollout.max_model_len` as far as the model allows, or lower the two.", "在模型允许的范围内提高 `rollout.max_model_len`，或降低另外两个。"),
    ),
    Row(
        "no gpu", "script", T("GPUs are asked for that are not there", "要求的 GPU 不存在"),
        "trainer_common.n_gpus_per_node is 8, but this host has 0 GPU(s). Set trainer_common.n_gpus_per_node: 0 (0 = the CPU).",
        T("Set what the server's machine has; check `nvidia-smi` and `CUDA_VISIBLE_DEVICES` there.", "按服务器机器的实际数量设置；在那里检查 `nvidia-smi` 和 `CUDA_VISIBLE_DEVICES`。"),
    ),
    Row(
        "one device", "script", T("Several GPUs, or several hosts, with `backbone: embedded`", "`backbone: embedded` 却要多块 GPU 或多台机器"),
        "trainer_common.nnodes is 2, but backbone embedded uses one device. Set trainer_common.nnodes: 1, or backbone: verl.",
        T("[verl](verl.md) trains on several.", "多设备训练请用 [verl](verl.zh.md)。"),
    ),
    Row(
        "no model", "script", T("The model's path does not exist on the server", "服务器上没有这个模型路径"),
        "The engine has failed: model.path: there is no directory '/no/such/model'. Set it to a transformers model directory, or to "
        "ajet-tiny-werewolves for the built-in model.",
        T("The path is read on the server's machine, not on the client's. Start again with the corrected job.",
          "路径在服务器的机器上读取，而不是客户端。改正后重新启动脚本即可。"),
    ),
    Row(
        "hub name", "script", T("A hub name that was not downloaded", "写了模型仓库名，但没有下载"),
        "there is no directory 'Qwen/Qwen2.5-7B-Instruct', and no such model in the local Hugging Face cache. Nothing is downloaded on "
        "its own: run `huggingface-cli download Qwen/Qwen2.5-7B-Instruct` first, or set model.path to a directory.",
        T("Download it on the server's machine.", "在服务器的机器上下载。"),
    ),
    Row(
        "folder without a model", "script", T("A folder that holds no model", "目录里没有模型"),
        "has no config.json. Set it to a directory that transformers can load.",
        T("Name the folder that holds `config.json`; of a run: `checkpoints/step_…`.", "写包含 `config.json` 的目录；训练产物是 `checkpoints/step_…`。"),
    ),
    Row(
        "wrong kind of model", "script", T("A model that classifies or embeds", "模型是分类或嵌入模型"),
        "holds a BertModel, which writes no text. Set it to a causal language model, such as one whose config.json names …ForCausalLM.",
        T("Take a chat model.", "换成对话模型。"),
    ),
    Row(
        "failed before", "script", T("The engine failed before, and the same job is sent again", "引擎失败过，又发了同样的任务"),
        "Once the cause is gone, try again with force_restart=True, or with another job.",
        T("A corrected job starts by itself; `auto_sync_train_config_and_start_engine(job, force_restart=True)` repeats the same.",
          "改正后的任务会直接启动；同样的任务用 `auto_sync_train_config_and_start_engine(job, force_restart=True)` 重试。"),
    ),
    Row(
        "two jobs", "script", T("Two clients with different jobs", "两个客户端的任务不同"),
        "The engine is ROLLING with another job (they differ in rollout.num_repeat). Use that job, or end it first: `ajet-swarm "
        "stop --swarm-url …`, or auto_sync_train_config_and_start_engine(job, force_restart=True).\n  rollout.num_repeat: 2 runs, 3 asked for",
        T("Give all clients of one server the same job.", "同一服务器的所有客户端使用同一个任务。"),
    ),
    Row(
        "stale folder", "script", T("An experiment's name was used before, with another model", "实验名之前用过，但模型不同"),
        "Experiment 'stale' has trained 1 steps with another model.path. Choose another experiment_name (or ensure_new_experiment).",
        T("A new `experiment_name`, or `AgentJetJob(ensure_new_experiment=True)`.", "换一个 `experiment_name`，或 `AgentJetJob(ensure_new_experiment=True)`。"),
    ),
]  # fmt: skip
