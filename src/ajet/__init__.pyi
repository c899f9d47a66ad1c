from ajet.client import AsyncDebugSwarmClient as AsyncDebugSwarmClient
from ajet.client import AsyncMultiModelEpisode as AsyncMultiModelEpisode
from ajet.client import AsyncSwarmClient as AsyncSwarmClient
from ajet.client import DebugSwarmClient as DebugSwarmClient
from ajet.client import MultiModelEpisode as MultiModelEpisode
from ajet.client import PeriodicDrainThreadPoolExecutor as PeriodicDrainThreadPoolExecutor
from ajet.client import SwarmClient as SwarmClient
from ajet.client import auto_train_with_dataset as auto_train_with_dataset
from ajet.client import begin_episodes as begin_episodes
from ajet.client import start_engines as start_engines
from ajet.copilot.job import AgentJetJob as AgentJetJob
from ajet.default_config.ajet_config_schema import AjetTaskReader as AjetTaskReader
from ajet.schema.endpoint import OpenaiBaseUrlAndApiKey as OpenaiBaseUrlAndApiKey
from ajet.schema.task import Task as Task
from ajet.schema.task import Workflow as Workflow
from ajet.schema.task import WorkflowOutput as WorkflowOutput
from ajet.schema.task import WorkflowTask as WorkflowTask
from ajet.schema.throttle import SwarmThrottlePolicy as SwarmThrottlePolicy
from ajet.task_reader import RouterTaskReader as RouterTaskReader

__version__: str
