"""Starts scripts that import AgentJet and the OpenAI SDK in a moment: a process that has imported both forks for each.

What is forked runs the script as its main program to its own end, so exit codes, hooks and what happens at exit are the
interpreter's. Reads one order a line on standard input, answers with an exit code a line.
"""

import json
import os
import sys

import openai  # noqa: F401

import ajet.cli
import ajet.client.transport
import ajet.copilot.job
import ajet.server.main  # noqa: F401

while True:
    line = sys.stdin.readline()
    if not line:
        sys.exit(0)
    order = json.loads(line)
    child = os.fork()
    if child == 0:
        break
    _, status = os.waitpid(child, 0)
    print(os.waitstatus_to_exitcode(status), flush=True)

output = os.open(order["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
os.dup2(output, 1)
os.dup2(output, 2)
os.environ.update(order["env"])
os.chdir(os.path.dirname(order["script"]))
sys.argv = [order["script"], *order["arguments"]]
with open(order["script"]) as file:
    program = compile(file.read(), order["script"], "exec")
exec(program, {"__name__": "__main__", "__file__": order["script"]})
