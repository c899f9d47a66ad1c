"""Runs a Dockerfile's own steps where there is no Docker: in a chroot of the base system, as root.

``python docker/prove.py ROOT`` makes ROOT with debootstrap (Debian's Python stands in for the ``python`` image's), takes
each RUN, ENV, ARG, COPY, WORKDIR and USER of ``docker/Dockerfile`` in turn, then starts the ENTRYPOINT as a container
would and proves that it prints a key, that the HEALTHCHECK answers, that the key opens the server and nothing else does,
that SIGTERM ends it cleanly, and that the next start prints the same key. An earlier ROOT is used again with ``--keep``.

Parsing needs none of this: :func:`parse` and :func:`context` are used by the tests.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent
SUITE, MIRROR = "bookworm", "http://deb.debian.org/debian"
BASE_PATH = "/opt/base/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
DEADLINE_S = 120.0


@dataclass(frozen=True)
class Instruction:
    """One line of a Dockerfile, continuations joined."""

    keyword: str
    text: str

    def words(self) -> list[str]:
        """The JSON form, or shell words."""
        return json.loads(self.text) if self.text.startswith("[") else shlex.split(self.text)


def parse(text: str) -> list[Instruction]:
    """A Dockerfile's instructions; comments and escapes of line ends gone."""
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [Instruction(*line.split(maxsplit=1)) for line in joined.splitlines()]


def health_command(instructions: list[Instruction]) -> list[str]:
    """What HEALTHCHECK runs."""
    (check,) = [i.text for i in instructions if i.keyword == "HEALTHCHECK"]
    return json.loads(check.partition("CMD ")[2])


def context(repository: Path) -> list[Path]:
    """Files that ``.dockerignore`` lets into the build, relative to the repository. The last pattern that fits decides."""
    patterns = [
        (line.lstrip("!"), line.startswith("!"))
        for line in (repository / ".dockerignore").read_text().splitlines()
        if line.strip() and not line.startswith("#")
    ]

    def taken(path: Path) -> bool:
        names = [str(path), *map(str, path.parents)][:-1]
        verdict = True
        for pattern, keep in patterns:
            bare = pattern.removeprefix("**/")
            if any(
                fnmatch.fnmatch(n, pattern) or (bare != pattern and fnmatch.fnmatch(Path(n).name, bare)) for n in names
            ):
                verdict = keep
        return verdict

    tracked = subprocess.run(["git", "ls-files"], cwd=repository, capture_output=True, text=True, check=True).stdout
    return [
        path for line in tracked.splitlines() if (path := Path(line)) and taken(path) and (repository / path).is_file()
    ]


@dataclass
class Root:
    """A chroot and what the instructions so far say of it."""

    path: Path
    environment: dict[str, str] = field(default_factory=lambda: {"PATH": BASE_PATH, "HOME": "/root", "LANG": "C.UTF-8"})
    build: dict[str, str] = field(default_factory=dict)
    workdir: str = "/"
    user: str = "0"

    def command(self, words: list[str], **more: str) -> list[str]:
        """``words`` inside, as the image would run them."""
        set_ = [f"{k}={v}" for k, v in {**self.environment, **more}.items()]
        inside = [
            "/usr/bin/env",
            "-i",
            *set_,
            "/bin/sh",
            "-c",
            f"cd {shlex.quote(self.workdir)} && exec {shlex.join(words)}",
        ]
        return ["chroot", f"--userspec={self.user}:{self.user}", str(self.path), *inside]

    def run(self, words: list[str], **more: str) -> None:
        subprocess.run(self.command(words, **more), check=True, stdin=subprocess.DEVNULL)

    def take(self, step: Instruction, build_args: dict[str, str]) -> None:
        """Do what one instruction says. Those that only describe (EXPOSE, STOPSIGNAL, …) change nothing."""
        if step.keyword == "RUN":
            self.run(["/bin/sh", "-c", step.text], **self.build)
        elif step.keyword == "ENV":
            self.environment.update(word.split("=", 1) for word in step.words())
        elif step.keyword == "ARG":
            name, _, default = step.text.partition("=")
            self.build[name] = build_args.get(name, default)
        elif step.keyword == "WORKDIR":
            self.workdir = step.text
            (self.path / step.text.lstrip("/")).mkdir(parents=True, exist_ok=True)
        elif step.keyword == "USER":
            self.user = step.text
        elif step.keyword == "COPY":
            *sources, target = step.words()
            self._copy(sources, target)

    def _copy(self, sources: list[str], target: str) -> None:
        into = self.path / os.path.join(self.workdir, target).lstrip("/")
        for source in sources:
            files = [f for f in context(REPOSITORY) if f == Path(source) or Path(source) in f.parents]
            assert files, f"COPY {source}: .dockerignore leaves nothing of it"
            for file in files:
                is_folder = (REPOSITORY / source).is_dir()
                to = into / file.relative_to(source) if is_folder else into / file.name
                to.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(REPOSITORY / file, to)


def make_base(path: Path) -> None:
    """What ``FROM python:3.11-slim-bookworm`` gives: Debian, and a Python of its own with pip."""
    include = "ca-certificates,python3,python3-venv,python3-pip"
    if not (path / "usr/bin/python3").exists():
        subprocess.run(
            ["debootstrap", "--variant=minbase", f"--include={include}", SUITE, str(path), MIRROR], check=True
        )
    subprocess.run(["chroot", str(path), "python3", "-m", "venv", "/opt/base"], check=True)


@contextlib.contextmanager
def mounted(root: Path, binds: list[str]) -> Iterator[None]:
    """The kernel's file systems inside, and folders of package files from outside."""
    made = []
    try:
        for source in ["/proc", "/dev", *binds]:
            target = root / source.lstrip("/")
            target.mkdir(parents=True, exist_ok=True)
            subprocess.run(["mount", "--rbind", source, str(target)], check=True)
            made.append(target)
            subprocess.run(["mount", "--make-rslave", str(target)], check=True)
        yield
    finally:
        for target in reversed(made):
            subprocess.run(["umount", "--recursive", "--lazy", str(target)], check=False)


def get(url: str, key: str | None) -> int:
    """The status of an answer."""
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {key}"} if key else {})
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=10) as answer:
            return answer.status
    except urllib.error.HTTPError as err:
        return err.code


def prove_container(root: Root, instructions: list[Instruction]) -> None:
    """Start it twice as a container, and once with a key of the user's."""
    (entry,) = [i.words() for i in instructions if i.keyword == "ENTRYPOINT"]
    check = health_command(instructions)
    keys = []
    for given in (None, None, "a-key-of-the-users-own"):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        more = {"AJET_PORT": port} | ({"AJET_SWARM_KEY": given} if given else {})
        out = root.path / "tmp" / "prove.out"
        with out.open("wb") as file:
            server = subprocess.Popen(root.command(entry, **more), stdout=file, stderr=file, stdin=subprocess.DEVNULL)
        began = time.monotonic()
        while subprocess.run(root.command(check, **more), capture_output=True).returncode:
            assert server.poll() is None, f"the entry point ended:\n{out.read_text()}"
            assert time.monotonic() - began < DEADLINE_S, f"not healthy within {DEADLINE_S:g} s:\n{out.read_text()}"
            time.sleep(0.5)
        healthy = time.monotonic() - began
        said = out.read_text()
        found = re.search(r"^  key    (ajet-\S+)$", said, re.M)
        assert (found is None) == (given is not None), said
        key = given or found.group(1)  # type: ignore[union-attr]
        assert given is None or given not in said, "a key that the user gave was printed"
        keys.append(key)
        url = f"http://127.0.0.1:{port}/swarm/v1/status"
        answers = (get(url, key), get(url, None), get(url, "ajet-wrong-key"))
        assert answers == (200, 401, 401) or answers == (200, 401, 403), answers
        began = time.monotonic()
        server.send_signal(signal.SIGTERM)
        code = server.wait(60)
        assert code in (0, 143), f"SIGTERM: exit code {code}\n{out.read_text()}"
        assert subprocess.run(root.command(check, **more), capture_output=True).returncode == 1, "healthy after its end"
        print(f"container: healthy after {healthy:.1f} s, key opens it and nothing else does {answers}, SIGTERM: code {code} "
              f"after {time.monotonic() - began:.1f} s")  # fmt: skip
    assert keys[0] == keys[1], "the second start made another key"
    print("the second start printed the first one's key; a given key was taken and not printed")
    print(said, end="")
    log = root.path / "data/logs/server.log"
    assert log.stat().st_uid == 1000
    assert log.stat().st_size > 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=Path)
    parser.add_argument("--keep", action="store_true", help="the root was built before: only start the entry point")
    parser.add_argument("--bind", action="append", default=[], help="a folder of package files to show inside")
    parser.add_argument("--copy", action="append", default=[], metavar="FROM:TO", help="a file to put inside first")
    parser.add_argument("--build-arg", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument(
        "--build-env", action="append", default=[], metavar="NAME=VALUE", help="environment of RUN alone"
    )
    options = parser.parse_args()
    instructions = parse((HERE / "Dockerfile").read_text())
    pairs: Any = [arg.split("=", 1) for arg in options.build_arg]
    if not options.keep:
        make_base(options.root)
    root = Root(options.root, build=dict(arg.split("=", 1) for arg in options.build_env))
    for pair in options.copy:
        source, _, target = pair.partition(":")
        to = options.root / target.lstrip("/")
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, to)
    with mounted(options.root, options.bind):
        for step in instructions:
            began = time.monotonic()
            if not (options.keep and step.keyword in ("RUN", "COPY")):
                root.take(step, dict(pairs))
            if step.keyword in ("RUN", "COPY") and not options.keep:
                print(f"{time.monotonic() - began:6.1f} s  {step.keyword} {step.text[:90]}", flush=True)
        prove_container(root, instructions)


if __name__ == "__main__":
    sys.exit(main())
