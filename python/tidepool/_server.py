"""Chooses a job's memserver: the named one, a running one in the default directory, or a private one."""

from __future__ import annotations

import os
import socket
from typing import Tuple

from ._options import Options

_SYSTEM_DIR = "/run/tidepool"


def default_socket_dir() -> str:
    """The default socket directory, like shm::DefaultClientDir in C++."""
    named = os.environ.get("TIDEPOOL_SOCKET_DIR", "")
    if named:
        return named
    own = _own_dir()
    return own if _serves_in(own) or not os.path.exists(_SYSTEM_DIR) else _SYSTEM_DIR


def choose(options: Options) -> Tuple[str, bool]:
    """The socket directory ("": the default) and whether the server is private."""
    if options.server is not None:
        return str(options.server), False
    if options.standalone is not None:
        return "", options.standalone
    return "", not _accepts(default_socket_dir())


def _own_dir() -> str:
    if os.access(_SYSTEM_DIR, os.W_OK | os.X_OK, effective_ids=True):
        return _SYSTEM_DIR
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    return f"{runtime}/tidepool" if runtime else f"/tmp/tidepool-{os.getuid()}"


def _serves_in(directory: str) -> bool:
    try:
        about = os.stat(directory)
    except OSError:
        return False
    return about.st_uid == os.geteuid() and os.path.exists(os.path.join(directory, "data.sock"))


def _accepts(directory: str) -> bool:
    """Whether a server accepts connections there; one that refuses this user counts, because its refusal says more."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
        peer.settimeout(5)
        try:
            peer.connect(os.path.join(directory, "data.sock"))
        except PermissionError:
            return True
        except OSError:
            return False
    return True
