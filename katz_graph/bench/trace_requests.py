"""Makes synthetic requests to two services with the published distribution of a production trace
(Katz, §3). Must not know about caches.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

DAYS = 20
REQUESTS = 275_000  # of one service in the trace's 20 days; about 550,000 of both
SECONDS_APART = DAYS * 86_400 / REQUESTS
# exponents of Zipf's law
CONTROLNET_HEAD, CONTROLNET_TAIL, LORA_HEAD, LORA_TAIL = 0.8, 1.0, 0.3, 0.4
COMMON_SHARE = 0.55  # share of a service's LoRA uses that its common LoRAs take
SESSION = 2.0  # requests of a user with the same adapters, mean
CONCURRENT = 6  # users at a time
DRAWS_PER_ORDER = 20  # draws per random order; shuffling thousands of LoRAs for each draw is slow
BASE_MODELS = 12
SCENES = 400


@dataclass(frozen=True, slots=True)
class Request:
    """Holds a record of the trace, with the trace's fields."""

    timestamp: float  # seconds since the start of the trace
    ip: str
    scene_id: str
    base_model_id: str
    controlnets: tuple[str, ...]
    loras: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Service:
    """Holds the published figures of a service: Katz, Table 1 and §3."""

    name: str
    controlnets: int  # number of ControlNets
    top_controlnets: int  # number of popular ControlNets
    top_share: float  # share of ControlNet uses that the popular ones take
    controlnets_used: tuple[float, ...]  # shares of requests with 0, 1, 2, ... ControlNets
    loras: int  # number of LoRAs
    common_loras: int  # number of common LoRAs; each other one takes less than 1 % of the uses
    loras_used: tuple[float, ...]  # shares of requests with 0, 1, 2, ... LoRAs


SERVICES = (
    Service("A", 47, 5, 0.98, (0.0, 0.305, 0.695), 6_980, 12, (0.002, 0.088, 0.910)),
    Service("B", 94, 8, 0.95, (0.019, 0.251, 0.699, 0.031), 7_463, 14, (0.072, 0.736, 0.192)),
)


def requests(service: Service, number: int, seed: int = 0) -> list[Request]:
    """Returns `number` requests in the order of time.

    The marginal distributions are as published. The paper does not publish two properties: the
    distribution of uses among the popular and among the other adapters, here Zipf's law; and the
    order of requests, here a few concurrent users who each make several requests with the same
    adapters. The parameters are chosen so that with room for ten LoRAs, service B misses about as
    often as in the paper's §3.2: 0.54 with LRU, 0.57 with LFU.
    """
    random = np.random.default_rng([seed, *service.name.encode()])
    sessions = number + CONCURRENT  # upper bound
    controlnets = _chosen(random, sessions, service.controlnets_used, _controlnet_shares(service))
    loras = _chosen(random, sessions, service.loras_used, _lora_shares(service))
    scenes, models = random.integers(0, SCENES, sessions), random.integers(0, BASE_MODELS, sessions)
    hosts = random.integers(0, 2**16, sessions)
    times = np.cumsum(random.exponential(SECONDS_APART, number))
    users, ends = random.integers(0, CONCURRENT, number), random.random(number) < 1 / SESSION
    active = list(range(CONCURRENT))  # each user's session
    started = CONCURRENT
    made = []
    for time, user, is_last in zip(times, users, ends, strict=True):
        session = active[user]
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
            active[user] = started
            started += 1
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
    """Draws distinct items for each session, so that every item gets its share of the uses.

    Uses systematic sampling (Madow 1949): places the items' shares in a random order on a circle,
    and picks items at equal distances from a random start. Sequential draws without replacement
    would give popular items less than their share.
    """
    counts = random.choice(len(used), size=number, p=np.array(used) / sum(used))
    chosen: list[tuple[int, ...]] = []
    for first in range(0, number, DRAWS_PER_ORDER):
        order = random.permutation(len(shares))
        ends = np.cumsum(shares[order])
        for count in counts[first : first + DRAWS_PER_ORDER]:
            places = (random.random() + np.arange(count)) / max(count, 1) * ends[-1]
            chosen.append(tuple(int(item) for item in order[np.searchsorted(ends, places)]))
    return chosen
