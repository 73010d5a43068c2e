"""Loads ControlNet replicas before requests need them and drops idle replicas, as `Replicas`
decides.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from katz_graph.core.errors import KatzError
from katz_graph.executor.cluster.driver import Cluster
from katz_graph.executor.cluster.replicas import Change
from katz_graph.executor.cluster.router import Router

EVERY = 1.0  # seconds between observations
SERVICE = {"replicate": "load_control_net", "drop": "drop_control_net"}


class Autoscaler:
    """Applies the router's changes to a ControlNet pool in a background thread, until `close`.
    Observes the router periodically if the pool has several devices.
    """

    def __init__(self, router: Router, cluster: Cluster) -> None:
        self._router, self._cluster = router, cluster
        self._closing = threading.Event()
        self._working = ThreadPoolExecutor(1, "katz-pool")
        self._looking = threading.Thread(target=self._look, name="katz-replicas", daemon=True)
        if len(router.pool) > 1:
            self._looking.start()

    def apply(self, changes: Iterable[Change]) -> None:
        """Queues changes for the background thread, which applies them one by one. If loading a
        replica fails, the router forgets it.
        """
        for change in changes:
            if not self._closing.is_set():
                self._working.submit(self._make, change)

    def close(self) -> None:
        self._closing.set()
        self._working.shutdown(wait=False, cancel_futures=True)
        if self._looking.is_alive():
            self._looking.join()

    def _look(self) -> None:
        while not self._closing.wait(EVERY):
            self.apply(self._router.observe())

    def _make(self, change: Change) -> None:
        try:
            self._cluster.call(change.member, SERVICE[change.kind], change.control)
        except KatzError:
            if change.kind == "replicate":
                self._router.lost(change.member, change.control)
