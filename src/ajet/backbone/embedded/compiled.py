"""``native.c``, compiled once with the machine's own C compiler and kept in the user's cache directory."""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)

_FLAGS = ("-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-fPIC", "-shared")


class Model(ctypes.Structure):
    """``model`` of ``native.c``."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("embed", "norm", "head", "layers", "pool_k", "pool_v", "cos", "sin")),
        *((name, ctypes.c_int64) for name in ("count", "hidden", "inner", "heads", "kv", "dim", "padded", "vocab")),
        ("eps", ctypes.c_float),
    ]


@lru_cache(maxsize=1)
def kernel() -> Any | None:
    """The compiled loops, or None where torch has to do."""
    if os.environ.get("AJET_NATIVE", "1") == "0":
        return None
    try:
        library = ctypes.CDLL(str(_compiled()))
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:  # RuntimeError: nobody's home directory
        log.info("no native sampler kernel (%s): torch does it", error)
        return None
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    library.ajet_store.argtypes = [pointer] * 4 + [number] + [pointer] * 4 + [number] * 6
    library.ajet_attend.argtypes = (
        [pointer] * 5 + [number] + [pointer] * 2 + [number] * 7 + [pointer]
    )  # fmt: skip
    real = ctypes.c_float
    library.ajet_in.argtypes = [pointer] * 5 + [number] * 4 + [real, pointer]
    library.ajet_out.argtypes = [pointer] * 7 + [number] * 5 + [real, pointer]
    library.ajet_layer.argtypes = [pointer] * 8 + [number] + [pointer] * 4 + [number] * 8 + [real, pointer]
    library.ajet_pass.argtypes = [pointer] * 3 + [number] + [pointer] * 2 + [number] + [pointer] * 2
    library.ajet_draw.argtypes = [pointer, number, number] + [pointer] * 5
    library.ajet_decode.argtypes = (
        [pointer] * 2 + [number] + [pointer] * 2 + [number] + [pointer] * 4 + [number, pointer, number, number] + [pointer] * 4
    )  # fmt: skip
    for name in ("ajet_store", "ajet_attend", "ajet_in", "ajet_out", "ajet_layer", "ajet_pass"):
        getattr(library, name).restype = None
    for name in ("ajet_draw", "ajet_decode"):
        getattr(library, name).restype = number
    return library


def _compiled() -> Path:
    """The shared library for this source and this processor, compiled where it is not there yet."""
    compiler = next(
        (found for c in (os.environ.get("CC"), "cc", "gcc", "clang") if c and (found := shutil.which(c))), None
    )
    if compiler is None:
        raise OSError("there is no C compiler")
    source = Path(__file__).with_name("native.c")
    name = hashlib.sha256(source.read_bytes() + repr((_FLAGS, compiler, _processor())).encode()).hexdigest()[:24]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ajet"
    cache.mkdir(parents=True, exist_ok=True, mode=0o700)
    if cache.stat().st_uid != os.getuid() or cache.stat().st_mode & 0o022:
        raise OSError(f"{cache} can be written by others")
    library = cache / f"native-{name}.so"
    if not library.exists():
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            made = Path(folder) / "native.so"
            subprocess.run(
                [compiler, *_FLAGS, "-o", str(made), str(source), "-lm"], check=True, capture_output=True, timeout=120
            )
            made.replace(library)
    return library


def _processor() -> str:
    """What ``-march=native`` depends on: a home directory may be shared by unequal machines."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine() + platform.processor()
    return platform.machine() + "".join(
        next((x for x in lines if x.startswith(k)), "") for k in ("model name", "flags")
    )
