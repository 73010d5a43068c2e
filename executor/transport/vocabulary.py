"""Lists the dataclasses that may travel between processes, by name. A name identifies one class, so
a message cannot construct any other class.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from types import MappingProxyType
from typing import Any, get_args

from katz_graph.core import events, latent_space, patches, phases, recipe, shared_rows
from katz_graph.executor import messages
from katz_graph.executor.calls.computing import ComputeUse
from katz_graph.executor.templates.budget import TemplatePlace
from katz_graph.executor.templates.store import TemplateCounts
from katz_graph.executor.transport.mailbox import Address
from katz_graph.executor.worker import config
from katz_graph.executor.worker.device_program import DeviceProgram
from katz_graph.ir import device, program, region, reuse, tree, values
from katz_graph.models.loading import residency
from katz_graph.sampling import names, noise_table, spec

_CLASSES: tuple[type, ...] = (
    phases.Phase,
    recipe.FileIdentity,
    recipe.Component,
    recipe.Lora,
    recipe.MergedComponent,
    recipe.MissingComponent,
    latent_space.LatentSpace,
    recipe.ModelRecipe,
    recipe.TextEncoderRecipe,
    recipe.TextLayout,
    recipe.Fill,
    recipe.References,
    recipe.LearnedWords,
    recipe.ClipRecipe,
    recipe.TokenSampling,
    recipe.TextRequest,
    recipe.VaeRecipe,
    recipe.ControlNetRecipe,
    recipe.Picture,
    recipe.ControlUse,
    recipe.Prompt,
    recipe.SeenPicture,
    recipe.Joined,
    recipe.Averaged,
    recipe.Zeroed,
    recipe.Given,
    recipe.Sizes,
    recipe.Area,
    recipe.MaskUse,
    recipe.Concatenated,
    recipe.ConditioningEntry,
    recipe.EditTemplate,
    recipe.Rrdb,
    recipe.Compact,
    recipe.UpscaleModelRecipe,
    patches.DiscreteSampling,
    patches.ContinuousSampling,
    patches.FlowSampling,
    patches.FreeU,
    patches.RescaledGuidance,
    patches.NormedGuidance,
    patches.NormedDifference,
    patches.ZeroStar,
    patches.SkippedBlocks,
    patches.SkipLayerGuidance,
    patches.SkipLayerNegative,
    patches.GradualMask,
    patches.ReferencesApart,
    spec.SamplingSpec,
    spec.DiffusersSpec,
    names.SamplerChoice,
    noise_table.NoiseTable,
    values.Evaluation,
    values.Step,
    values.Features,
    values.Tokens,
    values.Residuals,
    values.TextEncoding,
    values.PictureRows,
    region.Ref,
    region.Previous,
    region.Part,
    region.Operation,
    region.Region,
    tree.Tree,
    program.Variant,
    device.Work,
    device.Device,
    device.Target,
    device.NetworkLink,
    program.Call,
    program.Segment,
    program.DeferredLoras,
    program.Instance,
    program.Instruction,
    program.Prediction,
    program.EvaluationRun,
    reuse.TemplateUse,
    program.Program,
    events.Progress,
    events.Previewed,
    events.Warned,
    events.Span,
    events.Timeline,
    events.PackMessage,
    shared_rows.SharedRows,
    config.WorkerConfig,
    TemplatePlace,
    messages.Timing,
    messages.ActivationReads,
    DeviceProgram,
    ComputeUse,
    residency.AdapterUse,
    residency.ControlNetUse,
    residency.ModelUse,
    TemplateCounts,
    recipe.Tile,
    Address,
    messages.Failure,
    messages.RunPlace,
    *get_args(messages.ToWorker),
    *get_args(messages.FromWorker),
)

VOCABULARY: Mapping[str, type] = MappingProxyType({kind.__name__: kind for kind in _CLASSES})

REASONS: Mapping[type, str] = MappingProxyType(
    {patches.OpaquePatch: "it contains a pack's function, and functions cannot be sent"}
)
"""Reasons for intentionally excluded classes."""


@cache
def fingerprint() -> str:
    """Hashes the names and sent fields of all classes. Two processes with equal fingerprints can
    decode each other's messages.
    """
    entries = sorted(
        (name, sent_fields(kind) if is_dataclass(kind) else ()) for name, kind in VOCABULARY.items()
    )
    return hashlib.sha256(repr(entries).encode()).hexdigest()[:8]


@cache
def sent_fields(kind: type[Any]) -> tuple[str, ...]:
    """Returns the sent fields of a dataclass in order: all that are not `LOCAL`."""
    return tuple(field.name for field in fields(kind) if not field.metadata.get("local"))
