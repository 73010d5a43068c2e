"""Loads the models of one device on demand, and makes a recipe's weight set resident before it
returns a model.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from katz_graph.adapters.encoders import TextParts, text_parts
from katz_graph.adapters.recipes import clips_of
from katz_graph.core.latent_space import of_pictures
from katz_graph.core.recipe import (
    ClipRecipe,
    Component,
    ControlNetRecipe,
    Encoding,
    Lora,
    MergedComponent,
    ModelRecipe,
    Prompt,
    SeenPicture,
    TextEncoderRecipe,
    TextRequest,
    Tile,
    UpscaleModelRecipe,
    VaeRecipe,
)
from katz_graph.executor.calls.batching import field_names
from katz_graph.executor.calls.computing import Computing, Eagerly
from katz_graph.executor.templates.store import TemplateStore
from katz_graph.executor.weights.adapters import FILE_BYTES, AdapterStore
from katz_graph.executor.weights.host_copies import HostCopies
from katz_graph.executor.weights.originals import Originals, nowhere
from katz_graph.executor.weights.weight_cache import WeightCache, byte_size
from katz_graph.executor.weights.weight_set import (
    MERGING_BYTES,
    SET_BYTES,
    Resident,
    WeightSetCache,
    WeightSets,
    as_resident,
    merged_module,
)
from katz_graph.executor.worker.opened_template import open_template
from katz_graph.executor.worker.stream import Stream, stream_of
from katz_graph.executor.worker.template_loads import READERS, ActivationLoads
from katz_graph.executor.worker.vae_parts import Parts, in_parts, needed, possible, surely_enough
from katz_graph.host.memory import GB, RanOut
from katz_graph.host.transfer import to_device, uploading
from katz_graph.ir.program import Program
from katz_graph.ir.values import PictureRows, TextEncoding
from katz_graph.models.families.shared.stages import VAE_DECODE, VAE_ENCODE
from katz_graph.models.family import family_of
from katz_graph.models.loading.fill import fill, named_tensors
from katz_graph.models.loading.identity import count_values
from katz_graph.models.loading.loadable import Loadable
from katz_graph.models.loading.memory import DeviceMemory
from katz_graph.models.loading.residents import ResidentHooks
from katz_graph.models.loading.store import ModelStore, loadable
from katz_graph.models.row_loras import LoraFactors
from katz_graph.models.stages import Stage
from katz_graph.models.text import encoder as text
from katz_graph.models.text import generation
from katz_graph.models.text.evaluate import evaluate
from katz_graph.models.text.kinds import kind_of
from katz_graph.models.text.pictures import seen_pictures, shown_with
from katz_graph.models.text.recipe import clips
from katz_graph.models.text.vision import see
from katz_graph.models.vae import coding as vae
from katz_graph.models.vae.halves import check_half
from katz_graph.models.vae.kinds import latent_space, overflows
from katz_graph.upscale.networks import load_upscaler, network_peak, size_of

TEXT_BYTES = 64 << 20  # of a device's memory, for encodings of prompts
Notes = tuple[str, ...]
"""Notes for the user about how a result was computed."""


class DeviceModels(ResidentHooks):
    """Loads and runs the models of one device. Used by one worker thread at a time. `store` creates
    the store of its modules, given this object as hooks. `say` reports evictions.
    """

    def __init__(
        self,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        store: Callable[[ResidentHooks], ModelStore] | None = None,
        lora_bytes: int | None = None,
        computing: Callable[[Stream], Computing] = lambda stream: Eagerly(),
        copies: HostCopies | None = None,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.device = torch.device(device)
        self.dtype = dtype
        self.stream = stream_of(self.device)
        self.store = store(self) if store else ModelStore(self, memory=DeviceMemory(device))
        self.residents = self.store.residents
        self.compute = computing(self.stream)
        self.copies = copies or HostCopies()
        self.say = say
        # switches of a model's LoRAs, and their seconds
        self.lora_merges, self.lora_seconds = 0, 0.0
        self.network_seconds = 0.0  # the share of `lora_seconds` spent in networks
        self.template_store: TemplateStore | None = None
        self.adapters = AdapterStore(FILE_BYTES if lora_bytes is None else lora_bytes)
        # none on a GPU, where merging a LoRA is faster than copying the merged weights back
        budget = 0 if self.device.type == "cuda" else lora_bytes
        self._cache = WeightSetCache(SET_BYTES if budget is None else budget)
        self._texts = WeightCache(lambda: TEXT_BYTES)
        # by live module; originals are released with their module
        self._sets: WeakKeyDictionary[Any, WeightSets] = WeakKeyDictionary()

    @cached_property
    def _upload(self) -> Callable[[Tensor], Tensor]:
        """Copies LoRA files to the device; allocates its buffers at the first use."""
        return uploading(self.device)

    @cached_property
    def template_threads(self) -> ThreadPoolExecutor:
        """Returns the threads that read templates."""
        return ThreadPoolExecutor(READERS, "katz-templates")

    @cached_property
    def filling_thread(self) -> ThreadPoolExecutor:
        """Returns the thread that stores templates, whose waits for the disk delay no request."""
        return ThreadPoolExecutor(1, "katz-template-fill")

    def activations(self, program: Program, wake: Callable[[], None]) -> ActivationLoads | None:
        """Opens the template of a request; None if it has none, or this device has no store."""
        use, store = program.template, self.template_store
        if use is None or store is None:
            return None
        template = open_template(store, self.stream, self.filling_thread, use, wake)
        where = self.stream, self.device, self.template_threads
        return ActivationLoads(program, template, *where, wake, self.compute.records)

    def unload(self) -> None:
        """Unloads all models that are not in use."""
        self.residents.clear()
        self.copies.clear()
        self._texts.clear()

    def evicted(self, line: str) -> None:
        self.say(line)

    def leaving(self, key: Hashable, module: Any) -> None:
        """Caches the weights of an evicted module on the host, without LoRAs."""

        def without_loras() -> None:
            if module in self._sets:
                self._sets[module].use(())

        self.copies.keep(key, module, without_loras)

    def copy_of(self, key: Hashable) -> Mapping[str, Tensor] | None:
        return self.copies.get(key)

    def also_free(self, module: Any) -> Iterable[Tensor]:
        """Drops an evicted module's weight sets. Returns its originals, which are freed too."""
        sets = self._sets.pop(module, None)
        if sets is None:
            return ()
        self._cache.forget(sets)
        return sets.originals.tensors.values()

    def freeing(self, module: Any) -> None:
        self.compute.forget(module)

    def movable(self) -> Iterable[Originals]:
        """Returns the originals of live modules."""
        return [sets.originals for sets in self._sets.values()]

    def release_cached(self) -> None:
        self.compute.drop()
        self._texts.clear()

    def patch(self, recipe: ModelRecipe) -> Any:
        """Makes a recipe's LoRAs, and no others, resident in its network; returns the network."""
        module = self._network(recipe)
        self.network_seconds += self._resident(module, recipe.loras)
        return module

    def applies_by_row(self, recipe: ModelRecipe) -> bool:
        """Returns whether rows of a call may have the recipe's LoRAs while others have none."""
        module = self._network(recipe)
        return not recipe.loras or self._sets_of(module).applies_by_row(module, recipe.loras)

    def lora_factors(self, recipe: ModelRecipe) -> LoraFactors | None:
        """Returns the factors of a recipe's LoRAs, which apply by row; None without LoRAs."""
        return self._sets_of(self._network(recipe)).factors(recipe.loras)

    def resident_in(self, module: Any) -> Resident:
        """Returns the LoRAs currently merged into a live module."""
        return self._sets[module].resident if module in self._sets else ()

    def module(
        self, recipe: ModelRecipe | ControlNetRecipe | VaeRecipe | Encoding | SeenPicture
    ) -> Any:
        """Returns the object that a stage computes with: the live network of a recipe, with its
        current weights; for a text or a picture that its encoders see, the encoding function; for a
        VAE, the image encoding function.
        """
        match recipe:
            case SeenPicture():
                return self.see
            case VaeRecipe():
                return lambda pixels: self.encode_image(recipe, pixels)[0]
            case ModelRecipe():
                return self._network(recipe)
            case ControlNetRecipe():
                return self.residents.get(self._control_net(recipe))
            case _:
                return self.encode_text

    @contextmanager
    def holding(
        self, recipe: ModelRecipe | ClipRecipe | ControlNetRecipe | SeenPicture
    ) -> Iterator[None]:
        """Keeps the modules of a recipe in memory inside the `with` statement. Raises NoRoom if
        pinned models take the memory.
        """
        with ExitStack() as held:
            if isinstance(recipe, ClipRecipe):
                for encoder in recipe.encoders:
                    self.store.tokenizer(encoder)
            for wanted in self.loadables(recipe):
                held.enter_context(self.residents.using(wanted))
            yield

    def loadables(self, value: Any) -> Iterator[Loadable]:
        """Yields the modules of a recipe, or of an encoding; nothing for other values."""
        match value:
            case ControlNetRecipe():
                yield self._control_net(value)
            case ModelRecipe():
                yield self._loadable(value.network)
            case VaeRecipe():
                yield self._vae(value)
            case UpscaleModelRecipe():
                yield self._upscaler(value)
            case ClipRecipe():
                for encoder, parts in _with_parts(value):
                    yield self._loadable(encoder.encoder, parts)
            case SeenPicture():
                yield self._tower(value)
            case _:
                for clip in clips_of(value):
                    yield from self.loadables(clip)

    def has(self, values: Iterable[Any]) -> bool:
        """Returns whether all modules of some recipes and encodings are loaded."""
        return not self.missing(values)

    def missing(self, values: Iterable[Any]) -> Sequence[Loadable]:
        """Returns the modules of some recipes and encodings that are not loaded; none after an
        error, which is reported when the value is used.
        """
        try:
            wanted = [one for value in values for one in self.loadables(value)]
        except Exception:
            return ()
        return [one for one in wanted if not self.residents.has(one.key)]

    def drop_control_net(self, recipe: ControlNetRecipe) -> None:
        """Drops a ControlNet, unless it is in use."""
        self.residents.drop(self._control_net(recipe).key)

    def _control_net(self, recipe: ControlNetRecipe) -> Loadable:
        part = recipe.control_net
        return self.store.controlnet_of(part, self.device, self.dtype_of(part), recipe.base)

    def encode_text(self, encoding: Encoding, seen: Sequence[PictureRows] = ()) -> TextEncoding:
        """Encodes text to [1, T, D], and pooled [1, P] if the family has pooled output. seen: the
        rows of its `seen_pictures`, computed here if empty.
        """
        pictures = seen_pictures(encoding)
        rows = dict(zip(pictures, seen or map(self.see, pictures), strict=True))
        with ExitStack() as held:
            for clip in clips(encoding):
                held.enter_context(self.holding(clip))
            encode = partial(self._encode_prompt, rows)
            return self.residents.with_room(
                "encoding a prompt", partial(evaluate, encoding, encode, self._placed)
            )

    def see(self, recipe: SeenPicture) -> PictureRows:
        """Computes the rows of a picture for a text encoder, or copies its cached ones."""
        known = self._texts.get(recipe)
        if known is not None:
            hidden, *deep = (one.clone() for one in known.values())
            return PictureRows(hidden, tuple(deep))
        with self.residents.using(self._tower(recipe)) as tower:
            made = self.residents.with_room("encoding a picture", partial(see, tower, recipe))
        every = (made.hidden, *made.deep)
        self._keep_text(recipe, {str(number): one for number, one in enumerate(every)})
        return made

    def _keep_text(self, recipe: Hashable, made: Mapping[str, Tensor]) -> None:
        """Caches copies of the tensors of an encoding, if they fit."""
        cached = {name: one.clone() for name, one in made.items()}
        if self._texts.make_room(byte_size(cached.values())):
            self._texts.keep(recipe, cached)

    def _tower(self, recipe: SeenPicture) -> Loadable:
        dtype = self.text_dtype_of(recipe.tower)
        return self.store.text_encoder_of(recipe.tower, self.device, dtype)

    def _placed(self, tensor: Tensor) -> Tensor:
        return to_device(tensor.to(self.dtype), self.device)

    def _encode_prompt(
        self, rows: Mapping[SeenPicture, PictureRows], prompt: Prompt
    ) -> TextEncoding:
        """Encodes a prompt, or copies its cached encoding: equal recipes give equal numbers."""
        known = self._texts.get(prompt)
        if known is not None:
            parts: dict[str, Any] = {name: one.clone() for name, one in known.items()}
            return TextEncoding(**parts | {"slots": tuple(parts["slots"].tolist())})
        made = self._encoded(prompt, rows)
        each = {name: getattr(made, name) for name in field_names(TextEncoding)}
        tensors = {name: one for name, one in each.items() if isinstance(one, Tensor)}
        self._keep_text(prompt, tensors | {"slots": torch.tensor(made.slots, dtype=torch.int64)})
        return made

    def _encoded(self, prompt: Prompt, rows: Mapping[SeenPicture, PictureRows]) -> TextEncoding:
        clip, encoders = prompt.clip, []
        for recipe, parts in _with_parts(clip):
            module = self.residents.get(self._loadable(recipe.encoder, parts))
            self._resident(module, clip.loras, parts)
            encoders.append((module, self.store.tokenizer(recipe)))
        return text.encode(
            encoders,
            prompt.text,
            clip.last_layer,
            prompt.further,
            clip.learned,
            prompt.layout,
            prompt.absent,
            shown_with(prompt, rows),
        )

    def generate_text(self, clip: ClipRecipe, request: TextRequest) -> Generator[int, None, str]:
        """Generates text with a language model; yields the number of tokens after each. Returns the
        text. Between two tokens, other tasks may use the device and change the model's LoRAs.
        """
        recipe, prompt = generation.generator_of(clip), generation.seen_in(clip, request)
        ((_, parts),) = _with_parts(clip)
        tokenizer, made = self.store.tokenizer(recipe), list[int]()
        rows = {one: self.see(one) for one in seen_pictures(prompt)}
        with self.holding(clip), self._output_weights(recipe) as output:
            module = self.residents.get(self._loadable(recipe.encoder, parts))
            pictures = shown_with(prompt, rows).get(0, ())
            tokens = generation.tokens(module, output(module), tokenizer, recipe, request, pictures)
            while True:
                self._resident(module, clip.loras, parts)
                token = self.residents.with_room("generating text", lambda: next(tokens, None))
                if token is None:
                    return str(tokenizer.decode(made))
                made.append(token)
                yield len(made)

    @contextmanager
    def _output_weights(self, recipe: TextEncoderRecipe) -> Iterator[Callable[[Any], Tensor]]:
        """Yields the function from a loaded language model to the weights [words, D] of its
        scores.
        """
        name, part = generation.output_layer(recipe), recipe.encoder
        if not name:
            yield lambda module: module.get_input_embeddings().weight
            return
        wanted = self.store.output_layer_of(part, name, self.device, self.text_dtype_of(part))
        with self.residents.using(wanted) as layer:
            yield lambda _: layer.weight

    def decode_latent(
        self, recipe: VaeRecipe, samples: Tensor, tile: Tile | None = None
    ) -> tuple[Tensor, Notes]:
        """Decodes unscaled [B, C, h, w] or [B, C, 1, h, w] to [B, H, W, 3], or with alpha [B, H, W,
        4], in 0..1 on the CPU; in tiles if requested, or if a whole image does not fit into memory.
        """
        samples = of_pictures(samples)
        vae.check_samples(latent_space(recipe), samples, recipe.vae.folder)
        return self._by_vae(recipe, VAE_DECODE, samples, tile)

    def encode_image(
        self, recipe: VaeRecipe, pixels: Tensor, tile: Tile | None = None
    ) -> tuple[Tensor, Notes]:
        """Encodes [B, H, W, 3 or 4] in 0..1 to unscaled [B, C, h, w] on the CPU; tiles as in
        `decode_latent`.
        """
        return self._by_vae(recipe, VAE_ENCODE, pixels, tile)

    def _by_vae(
        self, recipe: VaeRecipe, stage: Stage, given: Tensor, tile: Tile | None
    ) -> tuple[Tensor, Notes]:
        """Runs a VAE stage. If half precision overflows, repeats it and runs later stages in
        float32.
        """
        check_half(recipe.vae, "encoder" if stage is VAE_ENCODE else "decoder")
        wanted = self._vae(recipe)
        try:
            with self.residents.using(wanted) as module:
                return self._done_in_parts(recipe.vae, module, stage, given, tile)
        except vae.Overflowed:
            self.store.vae_overflows(recipe.vae)
        self.residents.drop(wanted.key)
        with self.residents.using(self._vae(recipe)) as module:
            result, notes = self._done_in_parts(recipe.vae, module, stage, given, tile)
        return result, (*notes, "half precision overflowed, so it was repeated in float32")

    def _done_in_parts(
        self, part: Component, module: Any, stage: Stage, given: Tensor, tile: Tile | None
    ) -> tuple[Tensor, Notes]:
        """Computes in the largest parts that should fit into memory by their counted bytes; in
        smaller parts if memory runs out anyway.
        """
        batch, height, width = _sizes(module, stage, given)
        what = f"{stage.name.replace('vae_', 'VAE ')} of {batch} x {height} x {width} pixels"
        why = ""
        for parts in possible(batch, height, width, tile):
            need = self._need(
                part, stage, parts, (batch, height, width), next(module.parameters()).element_size()
            )
            if need > self.residents.within_reach():
                why = f"needs {need / GB:.2f} GB"
                continue
            self.residents.make_room(need, what)
            done = self.residents.attempt(
                what, partial(self._computed, module, stage, given, parts)
            )
            if not isinstance(done, RanOut):
                note = parts.note(batch, tile)
                return done, () if note is None else (note,)
            why = str(done)
        raise self.residents.short_of_memory(what, why)

    def _computed(self, module: Any, stage: Stage, given: Tensor, parts: Parts) -> Tensor:
        def work(some: Tensor) -> Tensor:
            (made,) = self.compute(
                stage, module, {"part": some.to(self.device), "tile": parts.tile}
            )
            return cast(Tensor, made)

        return in_parts(work, given, parts.pictures)

    def _need(
        self,
        part: Component,
        stage: Stage,
        parts: Parts,
        size: tuple[int, int, int],
        value_bytes: int,
    ) -> float:
        """Returns the bytes for computing, counted exactly only if the upper bound may not fit."""
        batch, height, width = size
        generous = surely_enough(part, parts, batch, height, width, value_bytes)
        if generous < self.residents.within_reach():
            return generous
        return needed(part, stage, parts, batch, height, width, value_bytes)

    def upscale(self, recipe: UpscaleModelRecipe, picture: Tensor) -> Tensor:
        """Upscales [B, 3, H, W] to float32 [B, 3, H·scale, W·scale] on the CPU. Raises OutOfMemory,
        before computing anything, if memory does not suffice.
        """
        batch, _, height, width = picture.shape
        what = f"enlarging {batch} x {height} x {width} pixels"
        need = network_peak(recipe.shape, batch, height, width)
        with self.residents.using(self._upscaler(recipe)) as network, torch.no_grad():
            if need > self.residents.within_reach():
                raise self.residents.short_of_memory(what, f"needs {need / GB:.2f} GB")
            self.residents.make_room(need, what)
            return self.residents.with_room(
                what, lambda: cast(Tensor, network(picture.to(self.device, torch.float32)).cpu())
            )

    def _upscaler(self, recipe: UpscaleModelRecipe) -> Loadable:
        key = recipe, str(self.device)
        name = f"upscaler {Path(recipe.file.path).stem}"
        return Loadable(
            key,
            name,
            lambda: size_of(recipe),
            lambda: load_upscaler(recipe, self.device),
            (recipe.file,),
        )

    def _vae(self, recipe: VaeRecipe) -> Loadable:
        """Returns the VAE, in a wider dtype if its configuration says that float16 overflows. On
        GPUs with bfloat16 that is bfloat16, in which images keep at least 45 dB.
        """
        dtype = self._wide() if overflows(recipe) else self.dtype
        return self.store.vae_of(recipe.vae, self.device, dtype)

    def dtype_of(self, network: Component) -> torch.dtype:
        """Returns the dtype that a network computes in."""
        return self._wide() if family_of(network).network.overflows else self.dtype

    def text_dtype_of(self, encoder: Component) -> torch.dtype:
        """Returns the dtype that a text encoder computes in."""
        return self._wide() if kind_of(encoder).overflows else self.dtype

    def _wide(self) -> torch.dtype:
        """Returns the dtype for networks that overflow in float16."""
        if self.dtype != torch.float16:
            return self.dtype
        gpu = self.device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        return torch.bfloat16 if gpu else torch.float32

    def _network(self, recipe: ModelRecipe) -> Any:
        return self.residents.get(self._loadable(recipe.network))

    def _loadable(self, part: Component, parts: TextParts = ()) -> Loadable:
        """Describes a network, or a text encoder if `parts` names parts of LoRA files."""
        dtype = self.text_dtype_of(part) if parts else self.dtype_of(part)
        if not isinstance(part, MergedComponent):
            read = self.store.text_encoder_of if parts else self.store.network_of
            return read(part, self.device, dtype)
        kind = "text encoder" if parts else family_of(part).network.part
        made = loadable(
            f"merged {kind}",
            part,
            self.device,
            dtype,
            lambda module: fill(module, named_tensors(merged_module(part, parts))),
        )
        return replace(
            made,
            key=(made.key, parts),
            extra_bytes=lambda: (
                MERGING_BYTES * count_values(part) if self.device.type == "cpu" else 0
            ),
        )

    def _resident(self, module: Any, loras: tuple[Lora, ...], parts: TextParts = ()) -> float:
        """Makes LoRAs resident; returns the seconds it took, 0 if they already were."""
        sets = self._sets_of(module)
        before = sets.replaced
        try:
            if seconds := sets.use(loras, parts):
                self.lora_merges += 1
                self.lora_seconds += seconds
            return seconds
        finally:
            if (replaced := sets.replaced).keys() != before.keys():
                self.compute.forget(module)  # recordings read the memory of the weights
                self.residents.takes_more(module, sum(replaced.values()))

    def _sets_of(self, module: Any) -> WeightSets:
        if module not in self._sets:
            # on a CPU, all originals are in host memory
            spare_memory = nowhere if self.device.type == "cpu" else self.residents.keeping
            make_room = partial(self.residents.make_room, what="weights with LoRAs")
            self._sets[module] = WeightSets(
                module, self.adapters.get, self._cache, spare_memory, self._upload, make_room
            )
        return self._sets[module]


def _with_parts(clip: ClipRecipe) -> Iterator[tuple[TextEncoderRecipe, TextParts]]:
    """Yields the text encoders of a model, each with the parts of LoRA files for it."""
    parts = text_parts(one.encoder for one in clip.encoders)
    return zip(clip.encoders, parts, strict=True)


def network_loras(recipe: ModelRecipe) -> Resident:
    """Returns the LoRAs that are resident in a recipe's network while it computes."""
    return as_resident(recipe.loras)


def _sizes(module: Any, stage: Stage, given: Tensor) -> tuple[int, int, int]:
    """Returns batch, height and width in pixels. Raises InputError for shapes invalid for VAEs."""
    if stage is VAE_ENCODE:
        vae.check_pixels(given)
        return given.shape[0], given.shape[1], given.shape[2]
    factor = vae.space(module).factor
    return given.shape[0], given.shape[2] * factor, given.shape[3] * factor
