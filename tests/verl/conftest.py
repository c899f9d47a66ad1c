"""These tests run verl on Ray on this machine, without a GPU: `make test-verl`. Plain `make test` does not collect them."""

import os
import shutil
import tempfile

import pytest

from ajet.default_config.schema import AjetConfig

# Before anything imports verl: it looks for its platform once.
os.environ["VERL_PLATFORM"] = "cpu"
os.environ["VERL_USE_EXTERNAL_MODULES"] = "ajet.backbone.verl.platform"


def pytest_collection_modifyitems(items):
    for item in items:
        if "tests/verl/" in str(item.path) and not any(mark.name == "timeout" for mark in item.iter_markers()):
            item.add_marker(pytest.mark.timeout(400))


@pytest.fixture(scope="session")
def ray_folder():
    """Short, because Ray puts sockets below it."""
    folder = tempfile.mkdtemp(
        prefix="ajet-ray-", dir=tempfile.gettempdir() if len(tempfile.gettempdir()) < 40 else "/tmp"
    )
    os.environ["AJET_RAY_DIR"] = folder
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def job():
    """Returns a job for two CPU workers; keyword arguments are dotted keys."""

    def make(**keys):
        config = AjetConfig(backbone="verl")
        config.trainer_common.n_gpus_per_node = 0
        config.rollout.max_model_len = 512
        for key, value in keys.items():
            *path, last = key.split("__")
            node = config
            for part in path:
                node = getattr(node, part)
            setattr(node, last, value)
        return config

    return make
