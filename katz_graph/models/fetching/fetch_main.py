"""Runs the fetch process: fetches each file in a thread, and exits when its parent disconnects."""

from __future__ import annotations

import os
import select
import socket
import sys
import threading
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

from katz_graph.core.errors import KatzError
from katz_graph.core.recipe import FileIdentity
from katz_graph.ipc.child_main import adopt, ignore_signals
from katz_graph.ipc.packing import pack, unpack
from katz_graph.models.fetching.fetch import Changed, Patience
from katz_graph.models.fetching.fetcher import ERRORS, MAX_MESSAGE_BYTES
from katz_graph.models.fetching.file_cache import FileCache


def main() -> None:
    ignore_signals()
    control = adopt(int(sys.argv[1]))
    while True:
        asked, descriptors, _, _ = socket.recv_fds(
            control, MAX_MESSAGE_BYTES, 1, socket.MSG_CMSG_CLOEXEC
        )
        if not asked:
            os._exit(0)  # partial files stay on disk for later downloads to resume
        asker = socket.socket(fileno=descriptors[0])
        threading.Thread(target=_answer, args=(unpack(asked), asker), daemon=True).start()


def _answer(asked: Any, asker: socket.socket) -> None:
    folder, max_bytes, patience, identity = asked
    cache = FileCache(Path(folder), max_bytes, Patience(**patience))
    answer = "", "", 0
    with asker:
        disconnected = select.poll()
        disconnected.register(asker, select.POLLRDHUP)
        try:
            file = FileIdentity(**{**identity, "fetch": tuple(identity["fetch"])})
            cache.fetch_here(file, lambda: bool(disconnected.poll(0)))
        except Changed as error:
            answer = Changed.__name__, str(error), 0
        except KatzError as error:
            kind = next(name for name, kind in ERRORS.items() if isinstance(error, kind))
            answer = kind, str(error), 0
        except OSError as error:
            answer = OSError.__name__, str(error), error.errno or 0
        except BaseException:
            traceback.print_exc()
            return
        with suppress(OSError):  # the requester has disconnected
            asker.send(pack(answer))


if __name__ == "__main__":
    main()
