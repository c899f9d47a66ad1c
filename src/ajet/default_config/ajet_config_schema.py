"""Import path that users' scripts rely on for the task reader's configuration."""

from ajet.default_config.schema import HuggingfaceDatRepo, JsonlDatasetFile
from ajet.default_config.schema import JsonlFile as JsonlTrainingFp
from ajet.default_config.schema import TaskReaderNode as AjetTaskReader

__all__ = ["AjetTaskReader", "HuggingfaceDatRepo", "JsonlDatasetFile", "JsonlTrainingFp"]
