"""Finds samplers by name, with their options, the noise that they draw and the levels that they
take. Must not know models.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor

from katz_graph.errors import InputError
from katz_graph.ir.values import Evaluation
from katz_graph.sampling.names import SamplerChoice, require_sampler
from katz_graph.sampling.noise import AncestralNoise, BrownianNoise
from katz_graph.sampling.solvers.multistep import deis, dpmpp_2m, gradient_estimation, ipndm, lms, uni_pc
from katz_graph.sampling.solvers.single_step import dpm_2, dpm_fast, euler, heun, heunpp2
from katz_graph.sampling.solvers.solving import NoiseSource, Sampler
from katz_graph.sampling.solvers.stochastic import (
    ddpm,
    dpm_2_ancestral,
    dpmpp_2m_sde,
    dpmpp_2s_ancestral,
    dpmpp_3m_sde,
    dpmpp_sde,
    euler_ancestral,
    lcm,
    res_multistep,
)


@dataclass(frozen=True, slots=True)
class Solver:
    """Describes a sampler with what it needs around it.

    `divides`: it divides by the length of its steps, so that two equal levels in a row have no
    meaning.
    """

    sampler: Sampler
    noise: Literal["none", "ancestral", "brownian"] = "none"
    divides: bool = False

    def noise_source(self, shape: Sequence[int], seed: int, sigmas: Tensor, device: torch.device | str) -> NoiseSource:
        """Returns the source of the noise between steps, if the sampler draws any. `sigmas` [N +
        1], one of them positive.
        """
        return BrownianNoise(shape, seed, sigmas, device) if self.noise == "brownian" else AncestralNoise(shape, seed, device)


SAMPLERS: Mapping[str, Solver] = {
    "euler": Solver(euler),
    "euler_ancestral": Solver(euler_ancestral, "ancestral"),
    "heun": Solver(heun),
    "heunpp2": Solver(heunpp2),
    "dpm_2": Solver(dpm_2),
    "dpm_2_ancestral": Solver(dpm_2_ancestral, "ancestral"),
    "lms": Solver(lms, divides=True),
    "dpm_fast": Solver(dpm_fast, divides=True),
    "dpmpp_2s_ancestral": Solver(dpmpp_2s_ancestral, "ancestral"),
    "dpmpp_sde": Solver(dpmpp_sde, "brownian", divides=True),
    "dpmpp_2m": Solver(dpmpp_2m, divides=True),
    "dpmpp_2m_sde": Solver(dpmpp_2m_sde, "brownian", divides=True),
    "dpmpp_2m_sde_heun": Solver(partial(dpmpp_2m_sde, solver_type="heun"), "brownian", divides=True),
    "dpmpp_3m_sde": Solver(dpmpp_3m_sde, "brownian", divides=True),
    "ddpm": Solver(ddpm, "ancestral"),
    "lcm": Solver(lcm, "ancestral"),
    "ipndm": Solver(ipndm),
    "deis": Solver(deis, divides=True),
    "res_multistep": Solver(res_multistep, divides=True),
    "res_multistep_ancestral": Solver(partial(res_multistep, eta=1.0), "ancestral", divides=True),
    "gradient_estimation": Solver(gradient_estimation),
    "ddim": Solver(euler),  # differs by the noise under a mask, see mask.py
    "uni_pc": Solver(uni_pc, divides=True),
    "uni_pc_bh2": Solver(partial(uni_pc, variant="bh2"), divides=True),
}
"""Maps names to samplers; a final _gpu changes nothing, for noise is always drawn on the CPU."""


def solver_of(choice: SamplerChoice, sigmas: Sequence[float]) -> Solver:
    """Returns the chosen sampler with its options, for these levels.

    InputError for a name that is no implemented sampler, an option that the sampler has not, and
    levels that it cannot take.
    """
    require_sampler(choice.name)
    solver = SAMPLERS[choice.name.removesuffix("_gpu")]
    known = [name for name, parameter in inspect.signature(solver.sampler).parameters.items() if parameter.kind is parameter.KEYWORD_ONLY]
    for name, _ in choice.options:
        if name not in known:
            raise InputError(f"sampler {choice.name!r} has no option {name!r}; it has {', '.join(known) or 'none'}")
    _require_levels(choice.name, solver, sigmas)
    return replace(solver, sampler=partial(solver.sampler, **dict(choice.options)))


def evaluations(sampler: Sampler, sigmas: Sequence[float]) -> tuple[Evaluation, ...]:
    """Lists the evaluations of a sampler by driving it with scalars: no sampler decides by
    values.
    """
    zero = torch.zeros(())
    solving = sampler(zero, torch.tensor(sigmas, dtype=torch.float32), lambda sigma, sigma_next: zero)
    asked: list[Evaluation] = []
    try:
        query = next(solving)
        while True:
            asked.append(Evaluation(len(asked), query.step, float(query.sigma)))
            query = solving.send(zero)
    except StopIteration:
        return tuple(asked)


def _require_levels(name: str, solver: Solver, sigmas: Sequence[float]) -> None:
    if not all(math.isfinite(sigma) and sigma >= 0 for sigma in sigmas):
        raise InputError(f"sigmas: expected finite numbers that are not negative, got {_listed(sigmas)}")
    if 0 in sigmas[:-1]:
        raise InputError(f"sigmas: 0 is the picture without noise and can only be the last one, got {_listed(sigmas)}")
    if solver.noise != "none" and any(sigma < sigma_next for sigma, sigma_next in pairwise(sigmas)):
        raise InputError(f"sampler {name!r} adds noise, so its sigmas must fall, got {_listed(sigmas)}; choose one without noise, as euler")
    if solver.divides and any(sigma == sigma_next for sigma, sigma_next in pairwise(sigmas)):
        raise InputError(f"sampler {name!r} cannot take two equal sigmas in a row, got {_listed(sigmas)}")


def _listed(sigmas: Sequence[float]) -> str:
    return ", ".join(f"{sigma:g}" for sigma in sigmas)
