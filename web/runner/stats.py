"""Queries devices for statistics of memory and models. Uses the last answer of a worker that is
busy with a long unit.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait

from katz_graph.executor.cluster.driver import Cluster
from katz_graph.executor.templates.store import TemplateCounts
from katz_graph.web.runner_client.facts import DeviceStats

PATIENCE = 0.25  # seconds


class DeviceFigures:
    """Collects the statistics of one cluster. Thread-safe."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._pool = ThreadPoolExecutor(max(1, len(cluster.assignments)), "katz-figures")
        self._lock = threading.Lock()
        self._asked: dict[str, Future[DeviceStats]] = {}
        self._known: dict[str, DeviceStats] = {}

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def devices(self) -> tuple[DeviceStats, ...]:
        """Returns statistics in the operator's order, without devices that never answered."""
        with self._lock:
            anew = {
                name: self._pool.submit(self._ask, name)
                for name in self._cluster.assignments
                if name not in self._asked
            }
            self._asked |= anew
        wait(anew.values(), PATIENCE)
        with self._lock:
            for name, asked in list(self._asked.items()):
                if asked.done():
                    del self._asked[name]
                    if asked.exception() is None:
                        self._known[name] = asked.result()
            return tuple(
                self._known[name] for name in self._cluster.assignments if name in self._known
            )

    def _ask(self, name: str) -> DeviceStats:
        memory: Mapping[str, int] = self._cluster.call(name, "memory").value
        nets = self._cluster.call(name, "control_net_use").value
        models = self._cluster.call(name, "model_use").value
        loras = self._cluster.call(name, "adapter_use").value
        computed = self._cluster.call(name, "compute_use").value
        templates = self._cluster.call(name, "template_use").value or TemplateCounts()
        kind, _, index = self._cluster.assignments[name].device.partition(":")
        return DeviceStats(
            name,
            kind,
            int(index) if index else None,
            **memory,
            controlnet_hits=nets.hits,
            controlnet_misses=nets.misses,
            controlnet_evictions=nets.evictions,
            controlnet_load_seconds=nets.load_seconds,
            controlnet_bytes=nets.resident_bytes,
            model_bytes=models.resident_bytes,
            model_budget_bytes=models.budget_bytes,
            model_reserve_bytes=models.reserve_bytes,
            model_loads=models.loads,
            model_fills=models.fills,
            model_returns=models.returns,
            model_load_seconds=models.load_seconds,
            model_evictions=models.evictions,
            model_evicted_seconds=models.evicted_seconds,
            out_of_memory=models.short,
            lora_hits=loras.hits,
            lora_misses=loras.misses,
            lora_evictions=loras.evictions,
            lora_load_seconds=loras.read_seconds,
            lora_bytes=loras.resident_bytes,
            lora_budget_bytes=loras.budget_bytes,
            lora_merges=loras.merges,
            lora_seconds=loras.merge_seconds,
            calls_recorded=computed.captures,
            calls_replayed=computed.replays,
            calls_beside=computed.concurrent,
            calls_shared=computed.shared,
            rows_shared=computed.shared_rows,
            calls_lora_rows=computed.lora_rows,
            calls_predicted_seconds=computed.predicted_seconds,
            calls_measured_seconds=computed.measured_seconds,
            calls_error_median=computed.median_error,
            calls_error_p95=computed.p95_error,
            calls_eager=sum(computed.eager.values()),
            recordings_dropped=computed.drops,
            recordings_bytes=computed.bytes,
            template_hits=templates.hits,
            template_misses=templates.misses,
            template_fills=templates.fills,
            template_abandoned=templates.abandoned,
            template_read_memory_bytes=templates.read_memory_bytes,
            template_read_disk_bytes=templates.read_disk_bytes,
            template_memory_evictions=templates.memory_evictions,
            template_disk_evictions=templates.disk_evictions,
            template_memory_bytes=templates.memory_bytes,
        )
