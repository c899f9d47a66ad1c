"""What users write, with one mistake each: the parts that all of their scripts share."""

from __future__ import annotations

START = """
import sys
from ajet import AgentJetJob, SwarmClient, Task, WorkflowOutput

SMALL = dict(experiment_name="mistakes", max_prompt_length=192, max_response_length=64, max_model_len=256,
             max_response_length_in_one_turn=32, batch_size=2, num_repeat=2, max_env_worker=4, n_gpu=0)
url = sys.argv[1]
"""

CLIENT = (
    START
    + """
job = AgentJetJob(**SMALL)
client = SwarmClient(url, retry_budget_s=1)
client.auto_sync_train_config_and_start_engine(job)
"""
)

CHAT = """
def chat(api, text="hello", **options):
    from openai import OpenAI
    with OpenAI(base_url=api.base_url, api_key=api.api_key, max_retries=0) as agent:
        messages = [{"role": "user", "content": text}]
        return agent.chat.completions.create(model=api.model, messages=messages, **options)
"""

POST = '''
def chat(api, text="hello", **options):
    """As the OpenAI SDK would; without the second that its import takes."""
    import json, urllib.request
    body = json.dumps({"messages": [{"role": "user", "content": text}], **options}).encode()
    headers = {"authorization": f"Bearer {api.api_key}", "content-type": "application/json"}
    urllib.request.urlopen(urllib.request.Request(api.base_url + "/chat/completions", body, headers)).read()
'''
