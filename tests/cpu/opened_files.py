"""Records which files any library opens below a folder, with Linux's inotify."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

OPENED, IS_FOLDER, AT_ONCE = 0x20, 0x40000000, os.O_NONBLOCK
HEAD = struct.Struct("iIII")  # watch, mask, cookie, bytes of the name
LIBRARY = ctypes.CDLL(None, use_errno=True)


@contextmanager
def opened_files(root: Path) -> Iterator[set[Path]]:
    """Collects the files below a folder that are opened inside the `with` statement."""
    found: set[Path] = set()
    watching = LIBRARY.inotify_init1(AT_ONCE)
    assert watching >= 0, os.strerror(ctypes.get_errno())
    try:
        folders = [root, *(path for path in root.rglob("*") if path.is_dir())]
        watched = {
            LIBRARY.inotify_add_watch(watching, bytes(folder), OPENED): folder for folder in folders
        }
        yield found
        try:
            while said := os.read(watching, 1 << 16):
                while said:
                    watch, mask, _, length = HEAD.unpack_from(said)
                    name = said[HEAD.size : HEAD.size + length].rstrip(b"\0").decode()
                    said = said[HEAD.size + length :]
                    if name and not mask & IS_FOLDER:
                        found.add(watched[watch] / name)
        except BlockingIOError:
            pass  # all events are read
    finally:
        os.close(watching)
