import pytest
import torch

from tests.unit.backbone import tiny


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def qwen2_dir(tmp_path_factory):
    return tiny.save_qwen2(tmp_path_factory.mktemp("qwen2"))


@pytest.fixture(scope="session")
def untied_dir(tmp_path_factory):
    return tiny.save_qwen2(tmp_path_factory.mktemp("untied"), tied=False)


@pytest.fixture(scope="session")
def llama_dir(tmp_path_factory):
    return tiny.save_llama(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="session")
def gpt2_dir(tmp_path_factory):
    return tiny.save_gpt2(tmp_path_factory.mktemp("gpt2"))
