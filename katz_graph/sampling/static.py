"""Predicts a run before it starts, without its latent: its evaluations, and those in which a window
is open.
"""

from __future__ import annotations

from katz_graph.ir.values import Evaluation
from katz_graph.sampling.noise_table import NoiseTable
from katz_graph.sampling.samplers import evaluations, solver_of
from katz_graph.sampling.spec import DiffusersSpec, Spec


def evaluations_of(spec: Spec) -> tuple[Evaluation, ...]:
    """Returns all calls of the model that the run will make, in order."""
    if isinstance(spec, DiffusersSpec):
        from katz_graph.sampling.diffusers_process import prepare_scheduler  # loads diffusers

        return prepare_scheduler(spec, "cpu").evaluations
    return evaluations(solver_of(spec.choice, spec.sigmas).sampler, spec.sigmas)


def active_evaluations(spec: Spec, table: NoiseTable, start_percent: float, end_percent: float) -> tuple[bool, ...]:
    """Returns, for each evaluation, true if it lies in this window (of a ControlNet, or a
    conditioning's range).

    Ours: by noise level, sigma(end) <= sigma <= sigma(start). diffusers: by count, as its
    ControlNet pipelines do: off while i / N < start or (i + 1) / N > end.
    """
    known = evaluations_of(spec)
    if isinstance(spec, DiffusersSpec):
        count = len(known)
        return tuple(not (i / count < start_percent or (i + 1) / count > end_percent) for i in range(count))
    first, last = table.percent_to_sigma(start_percent), table.percent_to_sigma(end_percent)
    return tuple(last <= evaluation.sigma <= first for evaluation in known)
