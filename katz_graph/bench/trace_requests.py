"""Makes synthetic requests to two services with the published distribution of a production trace
(Katz, §3). Must not know caches.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

DAYS = 20
REQUESTS = 275_000  # of a service in these days; about 550,000 of both
SECONDS_APART = DAYS * 86_400 / REQUESTS
# exponents of Zipf's law
CONTROLNET_HEAD, CONTROLNET_TAIL, LORA_HEAD, LORA_TAIL = 0.8, 1.0, 0.3, 0.4
COMMON_SHARE = 0.55  # of a service's LoRA uses that go to its few common ones
SESSION = 2.0  # requests that somebody makes with the same adapters, on average
CONCURRENT = 6  # people at a time
ORDER_KEPT = 20  # draws in the same random order; shuffling thousands of LoRAs for each takes long
BASE_MODELS = 12
SCENES = 400


@dataclass(frozen=True, slots=True)
class Request:
    """A record of the trace, in its fields."""

    timestamp: float  # seconds since the beginning
    ip: str
    scene_id: str
    base_model_id: str
    controlnets: tuple[str, ...]
    loras: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Service:
    """The published figures of one of the services: Katz, Table 1 and §3.

    `controlnets_used` and `loras_used` are the shares of requests that use 0, 1, 2, ... of them;
    the `top_controlnets` most popular of all take `top_share` of the uses; all LoRAs but
    `common_loras` take less than 1 % of the uses each.
    """

    name: str
    controlnets: int
    top_controlnets: int
    top_share: float
    controlnets_used: tuple[float, ...]
    loras: int
    common_loras: int
    loras_used: tuple[float, ...]


SERVICES = (
    Service("A", 47, 5, 0.98, (0.0, 0.305, 0.695), 6_980, 12, (0.002, 0.088, 0.910)),
    Service("B", 94, 8, 0.95, (0.019, 0.251, 0.699, 0.031), 7_463, 14, (0.072, 0.736, 0.192)),
)


def requests(service: Service, number: int, seed: int = 0) -> list[Request]:
    """Makes `number` requests in the order of time.

    Marginals are as published. Not published is how uses spread within the popular and within the
    rest (by Zipf's law here), and how requests follow each other: here a few people at a time make
    some requests each with the same adapters. What that leaves open is set so that with room for
    ten LoRAs service B misses about as often as the paper's §3.2 says: 0.54 with LRU, 0.57 with
    LFU.
    """
    random = np.random.default_rng([seed, *service.name.encode()])
    sessions = number + CONCURRENT  # more than there can be
    controlnets = _chosen(random, sessions, service.controlnets_used, _controlnet_shares(service))
    loras = _chosen(random, sessions, service.loras_used, _lora_shares(service))
    scenes, models = random.integers(0, SCENES, sessions), random.integers(0, BASE_MODELS, sessions)
    hosts = random.integers(0, 2**16, sessions)
    times = np.cumsum(random.exponential(SECONDS_APART, number))
    people, ends = random.integers(0, CONCURRENT, number), random.random(number) < 1 / SESSION
    active = list(range(CONCURRENT))  # each one's session
    begun = CONCURRENT
    made = []
    for time, person, is_last in zip(times, people, ends, strict=True):
        session = active[person]
        made.append(
            Request(
                timestamp=float(time),
                ip=f"10.0.{hosts[session] >> 8}.{hosts[session] & 255}",
                scene_id=f"scene-{scenes[session]}",
                base_model_id=f"model-{models[session]}",
                controlnets=tuple(f"controlnet-{item}" for item in controlnets[session]),
                loras=tuple(f"lora-{item}" for item in loras[session]),
            )
        )
        if is_last:
            active[person] = begun
            begun += 1
    return made


def _controlnet_shares(service: Service) -> NDArray[np.float64]:
    rest = service.controlnets - service.top_controlnets
    top = service.top_share * _zipf(service.top_controlnets, CONTROLNET_HEAD)
    return np.concatenate([top, (1 - service.top_share) * _zipf(rest, CONTROLNET_TAIL)])


def _lora_shares(service: Service) -> NDArray[np.float64]:
    rest = service.loras - service.common_loras
    return np.concatenate(
        [
            COMMON_SHARE * _zipf(service.common_loras, LORA_HEAD),
            (1 - COMMON_SHARE) * _zipf(rest, LORA_TAIL),
        ]
    )


def _zipf(number: int, exponent: float) -> NDArray[np.float64]:
    weights = np.arange(1, number + 1) ** -exponent
    shares: NDArray[np.float64] = weights / weights.sum()
    return shares


def _chosen(
    random: np.random.Generator, number: int, used: tuple[float, ...], shares: NDArray[np.float64]
) -> list[tuple[int, ...]]:
    """Chooses for each session its number of different items, every item with its share of the
    uses.

    Systematic sampling (Madow 1949): the items' shares in a random order along a circle, read at
    equal distances from a random start; drawing one after the other without putting back would give
    the popular less than their share.
    """
    counts = random.choice(len(used), size=number, p=np.array(used) / sum(used))
    chosen: list[tuple[int, ...]] = []
    for first in range(0, number, ORDER_KEPT):
        order = random.permutation(len(shares))
        ends = np.cumsum(shares[order])
        for count in counts[first : first + ORDER_KEPT]:
            places = (random.random() + np.arange(count)) / max(count, 1) * ends[-1]
            chosen.append(tuple(int(item) for item in order[np.searchsorted(ends, places)]))
    return chosen
