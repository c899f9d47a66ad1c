import pytest

from ajet.trajectory import ChatRenderer
from tests.fakes.chat_model import save_tokenizer


@pytest.fixture(scope="session")
def renderer(tmp_path_factory) -> ChatRenderer:
    return ChatRenderer(save_tokenizer(tmp_path_factory.mktemp("tokenizer")))
