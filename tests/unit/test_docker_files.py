"""Claims about the images: their files parse, agree with each other and with the docs, and take what they say."""

import importlib.util
import os
import re
import shlex
import subprocess
import sys

import httpx
import pytest
import yaml

from tests.faults.processes import ROOT, environment, free_port, until

spec = importlib.util.spec_from_file_location("prove", ROOT / "docker" / "prove.py")
prove = importlib.util.module_from_spec(spec)
sys.modules["prove"] = prove
spec.loader.exec_module(prove)
FILES = ("Dockerfile", "Dockerfile.gpu")


def steps(name):
    return prove.parse((ROOT / "docker" / name).read_text())


def of(name, keyword):
    return [step for step in steps(name) if step.keyword == keyword]


@pytest.mark.parametrize("name", FILES)
def test_an_image_has_no_root_one_entry_and_a_check_and_copies_only_what_the_context_has(name):
    known = [
        "FROM",
        "RUN",
        "ARG",
        "ENV",
        "WORKDIR",
        "COPY",
        "USER",
        "EXPOSE",
        "STOPSIGNAL",
        "HEALTHCHECK",
        "ENTRYPOINT",
    ]
    assert {step.keyword for step in steps(name)} <= set(known)
    assert [step.text for step in of(name, "USER")] == ["1000"]
    assert [step.text for step in of(name, "EXPOSE")] == ["10086"]
    (entry,) = of(name, "ENTRYPOINT")
    assert entry.words()[-1] == "/usr/local/lib/agentjet/entrypoint.sh"
    assert prove.health_command(steps(name))[-1] == "/usr/local/lib/agentjet/health.py"
    taken = prove.context(ROOT)
    for copy in of(name, "COPY"):
        for source in copy.words()[:-1]:
            assert any(str(path) == source or source in map(str, path.parents) for path in taken), source


def test_the_context_holds_the_package_and_nothing_private():
    taken = [str(path) for path in prove.context(ROOT)]
    assert "src/ajet/cli/app.py" in taken
    assert "src/ajet/envs/werewolves/tiny/model/model.safetensors" in taken
    assert not [path for path in taken if path.startswith(("tests", "docs", ".git", "benchmarks"))]
    assert not [
        path
        for path in taken
        if path.startswith("docker/") and path not in ("docker/entrypoint.sh", "docker/health.py")
    ]


def test_the_extras_that_the_images_install_exist_and_their_constraints_are_ours():
    project = (ROOT / "pyproject.toml").read_text()
    for name in FILES:
        for extras in re.findall(r"'\.\[([\w,]+)\]'", (ROOT / "docker" / name).read_text()):
            for extra in extras.split(","):
                assert re.search(rf"^{extra} = \[", project, re.M), extra
    dropped = re.search(r"\^\(([\w|-]+)\)==", (ROOT / "docker" / "Dockerfile.gpu").read_text())
    pinned = (ROOT / "constraints.txt").read_text()
    for package in dropped.group(1).split("|"):
        assert re.search(rf"^{package}==", pinned, re.M), package


def test_compose_builds_both_files_and_maps_the_same_port_and_folders_as_the_documented_line():
    tree = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text())
    builds = {service["build"]["dockerfile"] for service in tree["services"].values()}
    assert builds == {f"docker/{name}" for name in FILES}
    inside = {volume.split(":")[1] for volume in tree["services"]["server"]["volumes"]}
    assert inside == {"/data/experiments", "/data/logs"}
    for page in ("docker.md", "docker.zh.md"):
        text = (ROOT / "docs" / page).read_text().replace("\\\n", " ")
        (line,) = re.findall(r"^docker run [^\n]*-p 10086:10086[^\n]* agentjet$", text, re.M)
        words = shlex.split(line)
        assert {word.split(":")[1] for word in words if ":/data/" in word} == inside
        assert re.search(r"^docker build -f docker/Dockerfile -t agentjet \.$", text, re.M)
        assert re.search(r"^docker build -f docker/Dockerfile.gpu -t agentjet:gpu \.$", text, re.M)


def test_a_dockerfile_is_parsed_with_continuations_comments_and_json():
    found = prove.parse('# c\nFROM a\nRUN one \\\n    # said\n    && two\nENTRYPOINT ["x", "y z"]\nENV A=1 B="2 3"\n')
    assert [(step.keyword, step.text) for step in found[:2]] == [("FROM", "a"), ("RUN", "one  && two")]
    assert found[2].words() == ["x", "y z"]
    assert found[3].words() == ["A=1", "B=2 3"]


@pytest.fixture
def container(tmp_path):
    """Starts the images' entry point as a process, with this environment's ``ajet-swarm``."""
    started = []

    def run(port, **more):
        kept = {k: v for k, v in environment().items() if k != "AJET_SWARM_KEY"}
        folders = {"AJET_EXP_DIR": str(tmp_path / "exp"), "AJET_LOG_DIR": str(tmp_path / "logs")}
        path = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
        env = {**kept, **folders, "AJET_PORT": str(port), "PATH": path, **more}
        child = subprocess.Popen(
            ["/bin/sh", str(ROOT / "docker" / "entrypoint.sh")], env=env, cwd=ROOT, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        started.append(child)
        return child, env

    yield run
    for child in started:
        if child.poll() is None:
            child.kill()
        child.wait()
        child.stdout.close()


def test_the_entry_point_prints_a_key_that_opens_the_server_is_healthy_and_ends_by_sigterm(container, tmp_path):
    port = free_port()
    child, env = container(port)
    said = [child.stdout.readline() for _ in range(5)]
    key = re.search(r"key +(ajet-\S+)", said[1]).group(1)
    assert f"AJET_SWARM_KEY={key} python tutorial/example_werewolves_swarm/agent_roll.py --swarm-url" in said[2]

    def healthy():
        check = [sys.executable, str(ROOT / "docker" / "health.py")]
        return subprocess.run(check, env=env, capture_output=True).returncode == 0

    assert not healthy() or child.poll() is None
    until(healthy, 60, "health", every_s=0.2)
    url = f"http://127.0.0.1:{port}/swarm/v1/status"
    assert httpx.get(url, headers={"authorization": f"Bearer {key}"}).status_code == 200
    assert httpx.get(url).status_code in (401, 403)
    child.terminate()
    assert child.wait(30) in (0, -15)  # the server raises the signal again when it has ended
    assert not healthy()
    assert (tmp_path / "logs" / "server.log").stat().st_size > 0
    assert (tmp_path / "exp" / ".server" / "admin.key").stat().st_mode & 0o777 == 0o600
    again, _ = container(free_port())
    again.stdout.readline()
    assert key in again.stdout.readline()


def test_a_key_that_was_given_is_not_printed_and_a_folder_that_cannot_be_written_is_told(container, tmp_path):
    child, _ = container(free_port(), AJET_SWARM_KEY="a-key-of-the-users-own")
    said = [child.stdout.readline() for _ in range(5)]
    assert "the one you gave in AJET_SWARM_KEY" in said[1]
    assert "a-key-of-the-users-own" not in "".join(said)
    (tmp_path / "file").write_text("")
    refused, _ = container(free_port(), AJET_LOG_DIR=str(tmp_path / "file" / "logs"))
    assert refused.wait(30) == 1
    assert '--user "$(id -u):$(id -g)"' in refused.stdout.read()
