"""The server's side of backbone verl, as far as no Ray is needed."""

import subprocess
import sys

import pytest

from ajet.backbone import create_backbone
from ajet.backbone.verl import process
from ajet.default_config.schema import AjetConfig
from ajet.schema.errors import ConfigError


async def test_a_missing_package_names_the_extra(monkeypatch):
    monkeypatch.setattr(process, "_NEEDED", ("verl", "no_such_package"))
    with pytest.raises(ConfigError, match=r"no_such_package: pip install 'agentjet\[verl\]'"):
        await create_backbone(AjetConfig(backbone="verl")).start(AjetConfig(backbone="verl").model_dump())


def test_the_server_imports_neither_torch_nor_ray():
    code = "import sys, ajet.backbone.verl.process, ajet.backbone.verl.mapping; assert not {'torch', 'ray', 'verl'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
