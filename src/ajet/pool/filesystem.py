"""Which file systems a journal may lie on, and how much room they have."""

from __future__ import annotations

import os
from pathlib import Path

from ajet.schema.errors import ConfigError

NETWORK_FILESYSTEMS = {
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "smbfs",
    "9p",
    "ceph",
    "lustre",
    "gpfs",
    "fuse.sshfs",
    "beegfs",
    "glusterfs",
}


def network_filesystem(folder: Path) -> str | None:
    """``"kind at mount point"`` where ``folder`` lies on a network file system, else None."""
    try:
        mounts = Path("/proc/mounts").read_text().splitlines()
    except OSError:
        return None
    where = str(folder.resolve())
    best, kind = "", ""
    for line in mounts:
        parts = line.split()
        if len(parts) < 3:
            continue
        point = parts[1].replace("\\040", " ")
        if (where == point or where.startswith(point.rstrip("/") + "/")) and len(point) >= len(best):
            best, kind = point, parts[2]
    return f"{kind} at {best}" if kind in NETWORK_FILESYSTEMS else None


def free_bytes(folder: Path) -> int | None:
    """Space that this user may still fill; None where that cannot be told."""
    try:
        stat = os.statvfs(folder)
    except OSError:
        return None
    return stat.f_bavail * stat.f_frsize


def refuse_network_filesystem(folder: Path) -> None:
    """SQLite's write-ahead log needs shared memory that network file systems do not give.

    Raises:
        ConfigError: ``folder`` lies on one.
    """
    found = network_filesystem(folder)
    if found:
        raise ConfigError(
            f"The journal's folder {folder} lies on a network file system ({found}), where SQLite's log is not "
            "safe. Set journal.dir to a local folder; checkpoints may stay on the shared disk.",
            param="journal.dir",
        )
