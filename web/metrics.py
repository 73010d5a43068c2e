"""Collects metrics for Prometheus. Labels are route templates, statuses and devices, never text
from a client.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from katz_graph.core.events import NodeDone, Progress
from katz_graph.web.events import ClientEvent, Ended, PlanMade
from katz_graph.web.jobs.remaining import evaluation_seconds

if TYPE_CHECKING:
    from katz_graph.web.jobs.jobs import Jobs
    from katz_graph.web.runner_client.facts import Stats
    from katz_graph.web.runner_client.manager import Runner
    from katz_graph.web.start_report import StartReport

STEP_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
JOB_SECONDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800)
REQUEST_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5)
MAX_SAMPLERS = 1_000  # nodes whose last step is stored; far more than can run concurrently
MAX_STEPS = 1_000  # steps counted for one event


OF_DEVICES = (
    (GaugeMetricFamily, "device_memory_bytes", "Bytes of a device's memory"),
    (GaugeMetricFamily, "device_memory_free_bytes", "Bytes of a device's memory that are free"),
    (GaugeMetricFamily, "model_bytes", "Bytes of models in memory"),
    (GaugeMetricFamily, "model_budget_bytes", "Bytes that models may take"),
    (GaugeMetricFamily, "model_reserve_bytes", "Bytes of the budget reserved for computing"),
    (CounterMetricFamily, "model_loads", "Models that had to be loaded"),
    (CounterMetricFamily, "model_fills", "Models loaded into the memory of one with equal shapes"),
    (CounterMetricFamily, "model_returns", "Models loaded from a copy in the host's memory"),
    (CounterMetricFamily, "model_load_seconds", "Seconds that loading models took"),
    (CounterMetricFamily, "model_evictions", "Models evicted to make room"),
    (
        CounterMetricFamily,
        "model_evicted_seconds",
        "Seconds that loading the evicted models had taken",
    ),
    (CounterMetricFamily, "out_of_memory", "How often memory ran out"),
    (GaugeMetricFamily, "controlnet_bytes", "Bytes of ControlNets in memory"),
    (CounterMetricFamily, "controlnet_hits", "ControlNets that were in memory when needed"),
    (CounterMetricFamily, "controlnet_misses", "ControlNets that had to be loaded"),
    (CounterMetricFamily, "controlnet_evictions", "ControlNets evicted to make room"),
    (CounterMetricFamily, "controlnet_load_seconds", "Seconds that loading ControlNets took"),
    (GaugeMetricFamily, "lora_bytes", "Bytes of LoRA files in memory"),
    (GaugeMetricFamily, "lora_budget_bytes", "Bytes that LoRA files may take"),
    (CounterMetricFamily, "lora_hits", "LoRA files that were in memory when needed"),
    (CounterMetricFamily, "lora_misses", "LoRA files that had to be read"),
    (CounterMetricFamily, "lora_evictions", "LoRA files evicted to make room"),
    (CounterMetricFamily, "lora_load_seconds", "Seconds that reading LoRA files took"),
    (CounterMetricFamily, "lora_merges", "How often LoRAs were merged into a model"),
    (CounterMetricFamily, "lora_seconds", "Seconds that merging LoRAs took"),
    (CounterMetricFamily, "calls_recorded", "Calls of stages that were recorded"),
    (CounterMetricFamily, "calls_replayed", "Calls of stages that were replayed"),
    (CounterMetricFamily, "calls_beside", "Calls of stages that ran concurrently on a GPU"),
    (CounterMetricFamily, "calls_shared", "Calls of stages with rows of several jobs"),
    (CounterMetricFamily, "rows_shared", "Rows in calls of several jobs"),
    (CounterMetricFamily, "calls_lora_rows", "Calls of stages with LoRAs of some rows"),
    (
        CounterMetricFamily,
        "calls_predicted_seconds",
        "Predicted seconds of calls that jobs share",
    ),
    (CounterMetricFamily, "calls_measured_seconds", "Measured seconds of the same calls"),
    (
        GaugeMetricFamily,
        "calls_error_median",
        "Median relative error of the predicted seconds of evaluations whose calls jobs may share, "
        "after the first 50",
    ),
    (
        GaugeMetricFamily,
        "calls_error_p95",
        "Relative error that 95 % of these predictions did not exceed",
    ),
    (CounterMetricFamily, "calls_eager", "Calls of stages that ran without a recording"),
    (CounterMetricFamily, "recordings_dropped", "How often recordings were dropped to make room"),
    (GaugeMetricFamily, "recordings_bytes", "Bytes of recorded calls"),
    (CounterMetricFamily, "template_hits", "Templates that were stored when an edit needed them"),
    (CounterMetricFamily, "template_misses", "Templates that were not stored when needed"),
    (CounterMetricFamily, "template_fills", "Templates stored"),
    (CounterMetricFamily, "template_abandoned", "Templates computed but not stored"),
    (
        CounterMetricFamily,
        "template_read_memory_bytes",
        "Bytes of activations that edits read from memory",
    ),
    (
        CounterMetricFamily,
        "template_read_disk_bytes",
        "Bytes of activations that edits read from the disk",
    ),
    (CounterMetricFamily, "template_memory_evictions", "Templates evicted from memory"),
    (CounterMetricFamily, "template_disk_evictions", "Templates evicted from the disk"),
    (GaugeMetricFamily, "template_memory_bytes", "Bytes of activations in memory"),
)
OF_SIMILAR_STARTS = (
    (CounterMetricFamily, "similar_hits", "Samplers that began from the picture of another prompt"),
    (CounterMetricFamily, "similar_misses", "Samplers that found no picture with a near prompt"),
    (
        CounterMetricFamily,
        "similar_evaluations_saved",
        "Evaluations that samplers saved by beginning from a picture",
    ),
    (CounterMetricFamily, "similar_evictions", "Pictures evicted to make room for others"),
    (GaugeMetricFamily, "similar_pictures", "Pictures from which samplers may begin"),
    (GaugeMetricFamily, "similar_bytes", "Bytes of pictures from which samplers may begin"),
)
# metrics that have another name in the runner's statistics
ATTRIBUTES = {"device_memory_bytes": "total", "device_memory_free_bytes": "free"}


class Metrics:
    """Counts events as they occur. Reads current values of other parts on each scrape."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, start: StartReport | None = None
    ) -> None:
        self.registry = registry = CollectorRegistry()
        if start is not None:
            registry.register(_Start(start))
        self._clock = clock
        self._steps: dict[tuple[str, str], tuple[int, float]] = {}  # (job, node): steps done, time
        # (job, node): planned seconds of each evaluation
        self._planned: dict[tuple[str, str], Sequence[float]] = {}
        job = "Seconds from a job's start to its end"
        step = "Seconds of one model evaluation"
        request = "Seconds to an answer"
        self._jobs = Histogram(
            "katz_job_seconds", job, ["status"], buckets=JOB_SECONDS, registry=registry
        )
        self._step = Histogram("katz_step_seconds", step, buckets=STEP_SECONDS, registry=registry)
        self._step_predicted = Counter(
            "katz_step_predicted_seconds",
            "Seconds of these evaluations as planned; compare katz_step_seconds_sum",
            registry=registry,
        )
        self._nodes = Counter(
            "katz_nodes", "Nodes that ran, or had a cached result", ["cached"], registry=registry
        )
        self._refused = Counter(
            "katz_jobs_refused", "Jobs refused on arrival", ["reason"], registry=registry
        )
        self._due = Counter(
            "katz_jobs_due",
            "Jobs with due times that completed, on time or not",
            ["on_time"],
            registry=registry,
        )
        self._requests = Counter(
            "katz_http_requests", "HTTP requests", ["method", "route", "status"], registry=registry
        )
        self._seconds = Histogram(
            "katz_http_request_seconds",
            request,
            ["route"],
            buckets=REQUEST_SECONDS,
            registry=registry,
        )

    def on_event(self, job: str, event: ClientEvent) -> None:
        if isinstance(event, Progress):
            if event.evaluations:
                self._stepped(job, event)
        elif isinstance(event, PlanMade):
            if len(self._planned) < MAX_SAMPLERS:
                self._planned[job, event.node] = evaluation_seconds(event.plan)
        elif isinstance(event, NodeDone):
            self._nodes.labels(str(event.cached).lower()).inc()
            self._steps.pop((job, event.node), None)
        elif isinstance(event, Ended):
            self._jobs.labels(event.status).observe(event.seconds.get("total", 0.0))
            for of_sampler in (self._steps, self._planned):
                for key in [key for key in of_sampler if key[0] == job]:
                    del of_sampler[key]

    def was_due(self, due: float, ended: float) -> None:
        """Counts a completed job. Times are seconds since the epoch."""
        self._due.labels(str(ended <= due).lower()).inc()

    def refused(self, reason: str) -> None:
        self._refused.labels(reason).inc()

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        """Counts a request. `route` is the route's template."""
        self._requests.labels(method, route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def _stepped(self, job: str, event: Progress) -> None:
        """Measures steps. Progress events may skip short steps, so the time since the last event is
        divided among the steps in between.
        """
        key, now = (job, event.node), self._clock()
        steps, since = self._steps.get(key, (event.value, now))
        for _ in range(min(event.value - steps, MAX_STEPS)):
            self._step.observe((now - since) / (event.value - steps))
        self._step_predicted.inc(sum(self._planned.get(key, ())[steps : event.value]))
        if len(self._steps) < MAX_SAMPLERS:
            self._steps[key] = (event.value, now)


def figures(jobs: Jobs, runner: Runner, stats: Stats | None) -> CollectorRegistry:
    """Builds the registry of the current values of the queue and the runner. `stats`: the runner's
    statistics, or None if it did not answer.
    """
    registry = CollectorRegistry()
    registry.register(_Figures(jobs, runner, stats))
    return registry


class _Start(Collector):
    def __init__(self, start: StartReport) -> None:
        self._start = start

    def collect(self) -> Iterable[Metric]:
        family = GaugeMetricFamily(
            "katz_start_seconds",
            "Seconds of each phase from the command to the end of the first job",
            labels=["process", "phase"],
        )
        for phase in self._start.totals():
            family.add_metric([phase.process, phase.name], phase.seconds)
        yield family


class _Figures(Collector):
    def __init__(self, jobs: Jobs, runner: Runner, stats: Stats | None) -> None:
        self._jobs, self._runner, self._stats = jobs, runner, stats

    def collect(self) -> Iterable[Metric]:
        jobs, runner = self._jobs, self._runner
        yield GaugeMetricFamily("katz_queue_pending", "Jobs that wait", len(jobs.pending))
        yield GaugeMetricFamily("katz_queue_running", "Jobs that run", len(jobs.running))
        yield GaugeMetricFamily(
            "katz_queue_paused", "1 while no new job is started", float(jobs.paused)
        )
        yield GaugeMetricFamily(
            "katz_queue_expected_wait_seconds",
            "Seconds until a new job would start",
            jobs.expected_wait(),
        )
        accuracy = jobs.accuracy
        yield CounterMetricFamily(
            "katz_job_remaining_seconds",
            "Seconds that jobs took after about half of their time",
            accuracy.measured,
        )
        yield CounterMetricFamily(
            "katz_job_remaining_predicted_seconds",
            "Seconds that were predicted for the same half",
            accuracy.predicted,
        )
        yield GaugeMetricFamily(
            "katz_job_remaining_error",
            "Median relative error of that prediction, over the last 100 jobs",
            float("nan") if accuracy.error is None else accuracy.error,
        )
        yield GaugeMetricFamily(
            "katz_runner_ready", "1 while the runner takes jobs", float(runner.ready)
        )
        yield CounterMetricFamily(
            "katz_runner_restarts", "Runners that died and were replaced", runner.restarts
        )
        facts = runner.facts
        serving = GaugeMetricFamily(
            "katz_device_up", "0 for a device that is left out", labels=["device"]
        )
        for name, up in [
            *((device.name, 1.0) for device in facts.devices),
            *((name, 0.0) for name in facts.excluded),
        ]:
            serving.add_metric([name], up)
        yield serving
        if self._stats is None:
            return
        yield CounterMetricFamily(
            "katz_worker_restarts",
            "Device workers that died and were replaced",
            self._stats.worker_restarts,
        )
        yield GaugeMetricFamily(
            "katz_results_kept", "Results of nodes in memory", self._stats.cached_results
        )
        for metric, name, title in OF_SIMILAR_STARTS:
            yield metric(f"katz_{name}", title, float(getattr(self._stats, name)))
        for metric, name, title in OF_DEVICES:
            family = metric(f"katz_{name}", title, labels=["device"])
            for device in self._stats.devices:
                value = getattr(device, ATTRIBUTES.get(name, name))
                if value is not None:
                    family.add_metric([device.name], float(value))
            yield family
