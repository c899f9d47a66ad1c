"""All rows of the troubleshooting page, by section. Each message is looked for in what a user sees when the mistake is made."""

from __future__ import annotations

from tests.mistakes.playing import CALLS, EPISODES, RUNNING
from tests.mistakes.row import Text
from tests.mistakes.setting_up import JOB, REACHING, STARTING

SECTIONS = (
    (Text("Reaching the server", "连接服务器"), REACHING),
    (Text("Installing and starting", "安装与启动"), STARTING),
    (Text("The job", "任务配置"), JOB),
    (Text("Episodes and rewards", "对局与奖励"), EPISODES),
    (Text("Calls to a model", "调用模型"), CALLS),
    (Text("While it runs", "运行中"), RUNNING),
)
ROWS = {row.key: row for _, rows in SECTIONS for row in rows}
