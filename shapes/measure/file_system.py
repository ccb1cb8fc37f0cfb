"""What kind of file system a path lies on."""

from __future__ import annotations

from pathlib import Path

#: SQLite's write-ahead log needs shared memory and locks that these do not have between machines.
NETWORK = frozenset(
    {
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "smbfs",
        "lustre",
        "gpfs",
        "beegfs",
        "ceph",
        "afs",
        "9p",
        "glusterfs",
        "panfs",
        "wekafs",
        "fuse.sshfs",
        "fuse.glusterfs",
        "fuse.s3fs",
        "fuse.gcsfuse",
        "fuse.juicefs",
        "fuse.ceph",
    }
)


def network_file_system(path: Path, mounts: Path = Path("/proc/self/mounts")) -> str | None:
    """The name of the network file system that ``path`` lies on; None on a local one, or where nobody can tell."""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    place = path.absolute().resolve()
    found = ("", "")
    for line in lines:
        fields = line.split()
        if len(fields) < 3:
            continue
        point = fields[1].replace("\\040", " ")
        if (place == Path(point) or Path(point) in place.parents) and len(point) >= len(found[0]):
            found = point, fields[2]
    return found[1] if found[1] in NETWORK else None
