"""Predicted times and the queue's order match numbers computed by hand."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

import pytest
from web_jobs import Clock, ended, job

from katz_graph.core.events import Progress
from katz_graph.ir.device import ROW_BUCKETS
from katz_graph.serving.policy import ServingPolicy
from katz_graph.serving.simulator import Calls, Request, poisson, simulate
from katz_graph.web.events import ClientEvent, PlanMade
from katz_graph.web.jobs.job import Job, JobFeatures
from katz_graph.web.jobs.queue import JobQueue, NotWaiting
from katz_graph.web.jobs.remaining import left
from katz_graph.web.jobs.runtime_estimate import (
    PIXELS,
    Forecast,
    Predictor,
    features_of,
    learned,
)


def painting(
    seed: int = 1,
    text: str = "a cat",
    steps: Any = 20,
    width: int = 512,
    batch: int = 1,
    denoise: float = 1.0,
) -> dict[str, Any]:
    return {
        "3": {
            "class_type": "KSampler",
            "inputs": {
                "seed": seed,
                "steps": steps,
                "denoise": denoise,
                "sampler_name": "euler",
                "latent_image": ["5", 0],
                "positive": ["6", 0],
            },
        },
        "5": {
            "class_type": "EmptyLatentImage",
            "inputs": {"width": width, "height": 512, "batch_size": batch},
        },
        "6": {"class_type": "CLIPTextEncode", "inputs": {"text": text}},
        "9": {"class_type": "SaveImage", "inputs": {"filename_prefix": text, "images": ["3", 0]}},
    }


def features(prompt: dict[str, Any]) -> JobFeatures:
    return features_of(prompt, ("9",))


def test_seeds_texts_and_names_of_files_do_not_change_a_shape_but_sizes_steps_and_choices_do() -> (
    None
):
    shape = features(painting()).shape
    assert features(painting(seed=2, text="a dog with a long leash")).shape == shape
    other = [painting(steps=21), painting(width=1024), painting(batch=2), painting(denoise=0.5)]
    euler_a = painting()
    euler_a["3"]["inputs"]["sampler_name"] = "euler_ancestral"
    shapes = [features(prompt).shape for prompt in (*other, euler_a)] + [
        features_of(painting(), ("3",)).shape
    ]
    assert len({shape, *shapes}) == 7


def test_work_is_evaluations_times_pixels_times_pictures() -> None:
    assert features(painting()).work == 20 * 512 * 512
    assert features(painting(steps=10, width=1024, batch=3)).work == 10 * 1024 * 512 * 3
    assert features(painting(denoise=0.25)).work == 5 * 512 * 512
    from_a_file = painting()
    from_a_file["5"] = {"class_type": "VAEEncode", "inputs": {"pixels": ["1", 0]}}
    assert features(from_a_file).work == 20 * PIXELS
    assert features(painting(steps=["7", 0])).work == 20 * 512 * 512
    assert features({"9": {"class_type": "SaveImage", "inputs": {}}}).work == 0


def test_features_of_a_large_or_odd_graph_are_quick() -> None:
    chain: dict[str, Any] = {
        "0": {"class_type": "EmptyLatentImage", "inputs": {"width": 64, "height": 64}}
    }
    for index in range(1, 5_000):
        chain[str(index)] = {
            "class_type": "KSampler",
            "inputs": {
                "steps": 2,
                "latent_image": [str(index - 1), 0],
                "again": [str(index - 1), 0],
            },
        }
    started = time.perf_counter()
    assert features(chain).work == 4_999 * 2 * 64 * 64
    assert time.perf_counter() - started < 2.0
    loop = {
        "a": {"inputs": {"x": ["b", 0], "steps": 1}},
        "b": {"inputs": {"x": ["a", 0], "y": ["a", 1], "z": ["gone", 0]}},
    }
    assert features(loop).work == PIXELS


def test_a_job_of_a_known_shape_takes_the_median_of_the_last_ones() -> None:
    predictor = Predictor()
    assert predictor.seconds(features(painting())) is None
    for seconds in (100.0, 3.0, 1.0, 50.0, 2.0, 4.0):
        predictor.learn(features(painting(seed=int(seconds))), seconds)
    assert predictor.seconds(features(painting(seed=7))) == 3.0, "of 3, 1, 50, 2, 4"


def test_a_new_shape_takes_its_time_by_its_work() -> None:
    predictor = Predictor()
    for steps in (10, 20, 40):
        predictor.learn(features(painting(steps=steps)), 1.0 + 0.1 * steps)
    assert predictor.seconds(features(painting(steps=80))) == pytest.approx(9.0)
    assert predictor.seconds(features(painting(steps=30, width=1024))) == pytest.approx(7.0)


def test_relations_that_make_no_sense_are_not_carried_on() -> None:
    falling = Predictor()
    for steps, seconds in ((10, 5.0), (20, 4.0), (30, 3.0)):
        falling.learn(features(painting(steps=steps)), seconds)
    assert falling.seconds(features(painting(steps=1000))) == 4.0, (
        "more work never takes less: the median"
    )
    steep = Predictor()
    for steps, seconds in ((10, 0.5), (20, 3.5)):
        steep.learn(features(painting(steps=steps)), seconds)
    assert (steep.seconds(features(painting(steps=1))) or 0) > 0, "never below nothing"


def test_a_cached_job_gives_no_measurements() -> None:
    painted = features(painting())
    assert (
        learned(ended(job("a", started=1000.0), 1003.0, seconds={"denoise": 2.5}), painted) == 3.0
    )
    assert (
        learned(ended(job("a", started=1000.0), 1000.1, seconds={"denoise": 0.0}), painted) is None
    )
    assert learned(ended(job("a", started=1000.0), 1003.0, status="failed"), painted) is None
    assert learned(
        ended(job("a", started=1000.0), 1000.1, seconds={"denoise": 0.0}), JobFeatures("x", 0.0)
    ) == pytest.approx(0.1)


def forecast_of(groups: int, seconds: float = 10.0) -> Forecast:
    """Returns a forecast at 2004 in which a job takes some seconds."""
    forecast = Forecast(groups, lambda: 2004.0)
    shape = features(painting())
    known = ended(job("earlier", started=1000.0), 1000.0 + seconds, seconds={"denoise": 9.0})
    forecast.learn(known, shape)
    for each in ("runs", "also", "a", "b", "c"):
        forecast.know(job(each), shape)
    return forecast


def test_the_forecast_counts_the_rest_of_running_jobs() -> None:
    runs, also, a, b = (job(id, started=2000.0) for id in ("runs", "also", "a", "b"))
    a, b = replace(a, started=None), replace(b, started=None)
    one = forecast_of(1)
    found = one.predict([runs], [a, b])
    assert found.starts == pytest.approx({"runs": 0.0, "a": 6.0, "b": 16.0}, abs=1e-5)
    assert found.ends == pytest.approx({"runs": 6.0, "a": 16.0, "b": 26.0})
    assert found.idle == pytest.approx(26.0)
    assert one.next_place([runs]) == pytest.approx(6.0)
    assert one.predict([], []).idle == 0.0
    two = forecast_of(2).predict([runs, replace(also, started=2002.0)], [a, b])
    assert two.ends == pytest.approx({"runs": 6.0, "also": 8.0, "a": 16.0, "b": 18.0})
    assert two.idle == pytest.approx(16.0)
    assert left(10.0, 4.0) == 6.0 and left(10.0, 30.0) == 1.0


def test_the_forecast_follows_the_due_times() -> None:
    a, b, c = (job(id, due=due) for id, due in (("a", None), ("b", 2004 + 25.0), ("c", 2004 + 15)))
    runs = job("runs", started=2000.0)
    found = forecast_of(1).predict([runs], [c, b, a]).ends
    # devices serve the two due ones before the job that runs, which gets a tenth of the time
    assert found == pytest.approx({"c": 11.0, "b": 22.0, "runs": 26.0, "a": 36.0}, abs=0.5)
    late = replace(b, due=2004 + 5.0)
    assert forecast_of(1).predict([], [late, a]).ends == pytest.approx({"a": 10.0, "b": 20.0})


def planned(full: float, without: float) -> PlanMade:
    """Returns a plan of 20 evaluations; the first ten have a ControlNet."""
    seconds = [full] * 10 + [without] * 10
    return PlanMade("3", {"prediction": {"evaluation_seconds": seconds}})


class Painting:
    """Runs jobs of 20 evaluations: 5 s before sampling, 10 evaluations of `full`, 10 of `without`
    seconds, and `after` seconds until the end.
    """

    def __init__(self) -> None:
        self.now = 1000.0
        self.forecast = Forecast(1, lambda: self.now)

    def run(
        self, id: str, full: float, without: float, after: float, **changed: Any
    ) -> list[tuple[float, float]]:
        """Returns the predicted and the real remaining seconds after each evaluation. `changed`
        features make another shape.
        """
        known = job(id, started=self.now)
        self.forecast.know(known, replace(features(painting()), **changed))
        self.now += 5.0
        self.forecast.on_event(known, planned(0.2, 0.1))
        whole, found = 10 * (full + without) + after, []
        for number in range(1, 21):
            self.now += full if number <= 10 else without
            self.forecast.on_event(known, Progress("3", number, 20, evaluations=True))
            rest = known.started + 5.0 + whole - self.now  # type: ignore[operator]
            found.append((self.forecast.remaining(known) or 0.0, rest))
        self.now += after
        self.forecast.ended(ended(known, self.now, seconds={"denoise": 1.0}))
        return found


def test_the_rest_of_a_job_follows_its_sampler_by_kinds_of_evaluations() -> None:
    jobs = Painting()
    first = jobs.run("first", 0.6, 0.3, 2.0)
    # nothing is known of the time after the sampler
    assert first[9][0] == pytest.approx(3.0)
    alone = jobs.run("alone", 0.6, 0.3, 2.0)
    assert all(found == pytest.approx(rest) for found, rest in alone[1:])
    shared = jobs.run("shared", 1.8, 0.9, 2.0)  # as three requests at once
    assert all(found == pytest.approx(rest) for found, rest in shared[1:])
    # of a new shape: 2 of 14 s and 2 of 32 s follow the sampler, so 2 of 14
    new = jobs.run("new", 1.8, 0.9, 2.0, shape="new")
    assert new[9][0] == pytest.approx(9.0 + 32.0 * 2 / 14)
    # a second sampler follows: the whole job's prediction is the median of 16, 16, 34 and 34 s
    two = jobs.run("two", 0.3, 0.15, 2.0, shape="two", samplers=2)
    assert two[9][0] == pytest.approx(25.0 - 8.0)
    new_shape = job("unknown", started=jobs.now)
    assert jobs.forecast.seconds_after(new_shape) == {}
    jobs.forecast.know(new_shape, features(painting()))
    assert jobs.forecast.seconds_after(new_shape) == {"3": pytest.approx(2.0)}
    # after the sampler's first evaluation only earlier jobs tell
    assert shared[0][0] == pytest.approx(16.0 - 5.0 - 1.8)


def test_the_rest_of_a_job_that_waited_for_others_follows_its_pace_in_between() -> None:
    jobs = Painting()
    jobs.run("first", 0.6, 0.3, 2.0)
    waits = job("waits", started=jobs.now)
    jobs.forecast.know(waits, features(painting()))
    # twice two reports arrive together, and the job waits for 30 s in between
    for value, seconds in ((1, 1.0), (2, 1.0), (3, 1.0), (5, 2.0), (6, 0.0), (7, 32.0), (8, 1.0)):
        jobs.now += seconds
        jobs.forecast.on_event(waits, Progress("3", value, 20, evaluations=True))
    assert jobs.forecast.remaining(waits) == pytest.approx(12 * 1.0 + 2.0)


def test_a_job_that_starts_again_is_predicted_as_before_its_first_attempt() -> None:
    jobs = Painting()
    jobs.run("first", 0.6, 0.3, 2.0)
    again = job("again", started=jobs.now)
    jobs.forecast.know(again, features(painting()))
    for number in range(1, 4):
        jobs.now += 1.0
        jobs.forecast.on_event(again, Progress("3", number, 20, evaluations=True))
    assert jobs.forecast.remaining(again) == pytest.approx(17.0 + 2.0)  # evaluations of 1 s
    jobs.forecast.returned(again)
    assert jobs.forecast.remaining(again) == pytest.approx(16.0 - 3.0)
    assert jobs.forecast.remaining(job("unknown")) is None


def test_predicted_remaining_seconds_are_compared_with_the_measured_ones() -> None:
    jobs = Painting()
    assert jobs.forecast.accuracy.error is None
    jobs.run("first", 0.6, 0.3, 2.2)
    jobs.run("second", 0.6, 0.3, 2.2)
    accuracy = jobs.forecast.accuracy
    # of the first job 6.6 s when 5 + 4 · 0.6 had passed, without the last 2.2; of the second 7.6
    assert (accuracy.predicted, accuracy.measured) == pytest.approx((6.6 + 7.6, 8.8 + 7.6))
    assert accuracy.error == pytest.approx((2.2 / 8.8 + 0.0) / 2)


class Noted(ServingPolicy[int]):
    """Notes when the calls of requests end."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self.ends: dict[int, list[float]] = {}

    def ranked(self, ready: Iterable[int], now: float) -> list[int]:
        self._now = now
        return super().ranked(ready, now)

    def charge(self, members: Collection[int], seconds: float) -> None:
        super().charge(members, seconds)
        for task in members:
            self.ends.setdefault(task, []).append(self._now + seconds)


EVALUATIONS = 12
HOST, TEXT, VAE = 0.1, 0.05, 0.1  # seconds before and after the sampler


def of_a_side(key: object, rows: int) -> float:
    """Returns the seconds of an evaluation of 2 rows, and of 8, which take twice as long."""
    return float(str(key)) * (1 + (rows - 2) / 6)


def shared(key: str) -> PlanMade:
    run = {
        "key": key,
        "number": EVALUATIONS,
        "rows": 2,
        "alone_seconds": 0.0,
        "seconds_by_rows": [of_a_side(key, rows) for rows in ROW_BUCKETS],
    }
    return PlanMade("3", {"owner": "cpu", "prediction": {"evaluations": [run]}})


def served_error(load: float, rows: int) -> float:
    """Returns the median error of predicted remaining seconds of 120 jobs with due times, which a
    simulated device serves after one job of each size that runs alone.
    """
    draw = random.Random(1)
    keys = ["0.02", "0.04", "0.08"]
    parts = (Calls(None, 1, 0, HOST), Calls(None, 1, own=TEXT)), (Calls(None, 1, own=VAE),)
    requests, chosen = [], [*keys]
    for number, arrival in enumerate(islice(poisson(load / 0.86, draw), 123)):
        chosen += [draw.choice(keys)] if number >= len(keys) else []
        work = (*parts[0], Calls(chosen[number], EVALUATIONS, 2), *parts[1], parts[0][0])
        alone = Request(0.0, work).alone(of_a_side)
        at = 5.0 + 5 * number if number < len(keys) else 20.0 + arrival
        requests.append(Request(at, work, due=at + 5 * alone))
    order = Noted()
    found = simulate(requests, 1, of_a_side, rows, order)
    clock = Clock(0.0)
    forecast = Forecast(1, clock, rows)
    jobs = [
        job(str(number), created=one.arrival, due=one.due, alone=number < len(keys))
        for number, one in enumerate(requests)
    ]
    served = dict[int, Job]()
    waiting = JobQueue(clock, lambda one: requests[int(one.id)].alone(of_a_side))

    def arrive(number: int) -> None:
        waiting.add(jobs[number])
        forecast.know(jobs[number], JobFeatures(chosen[number], 1.0))

    def start(number: int) -> None:
        waiting.remove(str(number))
        served[number] = replace(jobs[number], started=clock.now)

    def report(number: int, event: ClientEvent) -> None:
        forecast.on_event(served[number], event, lambda: (list(served.values()), list(waiting)))

    def end(number: int) -> None:
        seconds = {"denoise": 1.0, "prepare": TEXT, "vae": VAE}
        forecast.ended(ended(served.pop(number), clock.now, seconds=seconds))

    events = list[tuple[float, int, Callable[[], None]]]()
    for number, one in enumerate(requests):
        text, *ends = order.ends[number]
        events += [
            (one.arrival, number, partial(arrive, number)),
            (found.starts[number], number, partial(start, number)),
            (text - TEXT, number, partial(report, number, shared(chosen[number]))),
            (found.ends[number], number, partial(end, number)),
        ]
        for value, at in enumerate(ends[:EVALUATIONS], 1):
            progress = Progress("3", value, EVALUATIONS, evaluations=True)
            events.append((at, number, partial(report, number, progress)))
    for clock.now, _, happen in sorted(events, key=lambda one: one[0]):
        happen()
    assert forecast.accuracy.error is not None
    return forecast.accuracy.error


def test_the_rest_of_a_job_includes_the_others_that_run_and_wait() -> None:
    for load, rows in ((1.1, 0), (1.1, 8), (1.5, 8), (1.8, 8)):
        assert served_error(load, rows) <= 0.1, (load, rows)


def test_waiting_jobs_are_predicted_with_the_calls_that_they_share() -> None:
    clock, shape = Clock(10.0), JobFeatures("shape", 1.0)
    ends = {}
    for rows in (0, 8):
        forecast = Forecast(1, clock, rows)
        earlier = job("earlier", started=10.0, alone=True)
        forecast.know(earlier, shape)
        clock.now = 10.0 + HOST
        forecast.on_event(earlier, shared("0.08"))
        clock.now += TEXT
        for value in range(1, EVALUATIONS + 1):
            clock.now += 0.08
            forecast.on_event(earlier, Progress("3", value, EVALUATIONS, evaluations=True))
        clock.now += VAE + HOST
        seconds = {"denoise": 1.0, "prepare": TEXT, "vae": VAE}
        forecast.ended(ended(earlier, clock.now, seconds=seconds))
        waiting = [job(str(number)) for number in range(4)]
        for one in waiting:
            forecast.know(one, shape)
        ends[rows] = forecast.predict([], waiting).ends["3"]
        assert forecast.seconds_after(waiting[0]) == {"3": pytest.approx(VAE + HOST)}
    apart = 4 * (TEXT + EVALUATIONS * 0.08 + VAE)
    assert ends[0] == pytest.approx(HOST + apart + HOST)
    together = 4 * TEXT + EVALUATIONS * 0.16 + 4 * VAE
    assert ends[8] == pytest.approx(HOST + together + HOST)
    # another program slows a lone job down
    slow = job("slow", started=clock.now)
    forecast.know(slow, shape)
    forecast.on_event(slow, shared("0.08"))
    for value in range(1, EVALUATIONS // 2 + 1):
        clock.now += 0.3
        forecast.on_event(slow, Progress("3", value, EVALUATIONS, evaluations=True))
    assert forecast.remaining(slow) == pytest.approx(EVALUATIONS // 2 * 0.3 + VAE + HOST)


def queue_of(*jobs: tuple[str, float]) -> JobQueue:
    queue = JobQueue()
    for order, (id, number) in enumerate(jobs):
        queue.add(job(id, number, order))
    return queue


def test_jobs_of_one_number_come_as_they_arrived() -> None:
    queue = queue_of(("a", 5.0), ("b", 1.0), ("c", 5.0), ("d", -1.0))
    assert [each.id for each in queue] == ["d", "b", "a", "c"]
    assert [each.id for each in queue.with_new(job("new", 5.0, 1))] == ["d", "b", "a", "new", "c"]
    assert queue.front(job("new", 7.0, 9)).number < -1.0
    with pytest.raises(NotWaiting):
        queue.moved_before("a", "nobody")


def test_moving_before_another_job_changes_nothing_else() -> None:
    """Compares 3,000 moves with a plain list. After a restart, stored keys alone give the order."""
    chance = random.Random(5)
    names = [f"{index}" for index in range(8)]
    queue = queue_of(*((name, float(chance.randrange(3))) for name in names))
    order = [each.id for each in queue]
    stored = {each.id: each for each in queue}
    for _ in range(3000):
        moved, target = chance.sample(names, 2)
        changed = queue.moved_before(moved, target)
        queue.place(changed)
        assert changed[0].id == moved
        stored.update({each.id: each for each in changed})
        order.remove(moved)
        order.insert(order.index(target), moved)
        assert [each.id for each in queue] == order
        assert [
            each.id for each in sorted(stored.values(), key=lambda each: (each.number, each.order))
        ] == order
