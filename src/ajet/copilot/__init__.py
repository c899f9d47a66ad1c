"""How a user describes a training job: :class:`ajet.copilot.job.AgentJetJob`."""
