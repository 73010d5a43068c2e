"""Trains the miniature transformer, which predicts velocities, together with a small T5 on latents
of drawn pictures. CLIP's encoders are those of the noise-predicting miniature and stay frozen.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from diffusers import ModelMixin
from transformers import (
    CLIPTextModel,
    CLIPTextModelWithProjection,
    CLIPTokenizer,
    T5Config,
    T5EncoderModel,
    T5Tokenizer,
)

from katz_graph.mini.corpus import Bucket
from katz_graph.mini.text import WIDTH, rows_at, write_unigram_tokenizer
from katz_graph.mini.train_noise import batch_captions, pick
from katz_graph.mini.training import (
    Budget,
    Descent,
    autocast,
    hidden_weights,
    load_model,
    squared_error,
)
from katz_graph.models.families.shared.miniature import miniature

FLOW = miniature("flow")
STATE = "state.pt"  # state from which an interrupted training resumes
EARLIER = 0.5  # above 0: draws strong noise more often


def build_t5(tokenizer: T5Tokenizer) -> T5EncoderModel:
    """Makes a T5 of random weights. It is as wide as both CLIP encoders together, because their
    hidden states are concatenated along the tokens.
    """
    return T5EncoderModel(
        T5Config(
            vocab_size=len(tokenizer),
            d_model=2 * WIDTH,
            d_kv=32,
            d_ff=256,
            num_layers=2,
            num_heads=4,
            feed_forward_proj="gated-gelu",
            dropout_rate=0.0,
            is_encoder_decoder=False,
            use_cache=False,
            tie_word_embeddings=False,
        )
    )


@dataclass(slots=True)
class FlowPainter:
    """Predicts velocities from captions and noisy latents. Holds the trainable transformer and T5,
    CLIP's frozen encoders, and the tokenizers.
    """

    transformer: ModelMixin
    encoder: CLIPTextModel
    encoder_2: CLIPTextModelWithProjection
    encoder_3: T5EncoderModel
    tokenizer: CLIPTokenizer
    tokenizer_2: CLIPTokenizer
    tokenizer_3: T5Tokenizer

    def trained(self) -> tuple[torch.nn.Module, ...]:
        return self.transformer, self.encoder_3

    def encode(self, captions: list[str], rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns hidden states [B, 2·rows, 2·WIDTH], CLIP's rows followed by T5's, and pooled [B,
        2·WIDTH], as a loader of three encoders does with 77 rows each.
        """
        first, second, third = (
            tokenizer(
                captions, padding="max_length", max_length=rows, truncation=True,
                return_tensors="pt",
            ).input_ids
            for tokenizer in (self.tokenizer, self.tokenizer_2, self.tokenizer_3)
        )  # fmt: skip
        with torch.no_grad():  # CLIP is causal, so fewer rows do not change the others
            one = self.encoder(first, output_hidden_states=True)
            two = self.encoder_2(second, output_hidden_states=True)
        hidden = torch.cat([one.hidden_states[-2], two.hidden_states[-2]], dim=-1)
        long = self.encoder_3(third).last_hidden_state
        return (
            torch.cat([hidden, long], dim=1),
            torch.cat([one.pooler_output, two.text_embeds], dim=-1),
        )


def new_flow_painter(clip: Path, tokenizer: Path) -> FlowPainter:
    """Makes a painter of random weights with CLIP's encoders from the pipeline folder `clip`;
    writes T5's tokenizer.
    """
    words = write_unigram_tokenizer(tokenizer)
    transformer = FLOW.network(WIDTH)
    return FlowPainter(transformer, *_clip_of(clip), build_t5(words), *_words(clip), words)


def load_flow_painter(clip: Path, folder: Path) -> FlowPainter:
    """Loads a painter in fp32 from its folder, and CLIP's encoders from the pipeline folder
    `clip`.
    """
    return FlowPainter(
        load_model(folder / FLOW.part),
        *_clip_of(clip),
        T5EncoderModel.from_pretrained(folder / "text_encoder_3", dtype=torch.float32),
        *_words(clip),
        T5Tokenizer.from_pretrained(folder / "tokenizer_3"),
    )


def _clip_of(folder: Path) -> tuple[CLIPTextModel, CLIPTextModelWithProjection]:
    encoders = (
        CLIPTextModel.from_pretrained(folder / "text_encoder", dtype=torch.float32),
        CLIPTextModelWithProjection.from_pretrained(folder / "text_encoder_2", dtype=torch.float32),
    )
    for encoder in encoders:
        encoder.requires_grad_(False).eval()
    return encoders


def _words(folder: Path) -> tuple[CLIPTokenizer, CLIPTokenizer]:
    return (
        CLIPTokenizer.from_pretrained(folder / "tokenizer"),
        CLIPTokenizer.from_pretrained(folder / "tokenizer_2"),
    )


def save_flow_painter(
    painter: FlowPainter, folder: Path, dtype: torch.dtype = torch.float16
) -> None:
    """Writes transformer, T5, its tokenizer and the scheduler in the layout of a pipeline
    folder.
    """
    for module, name in (painter.transformer, FLOW.part), (painter.encoder_3, "text_encoder_3"):
        copy.deepcopy(module).to(dtype).save_pretrained(folder / name, safe_serialization=True)
    painter.tokenizer_3.save_pretrained(folder / "tokenizer_3")
    FLOW.scheduler().save_pretrained(folder / "scheduler")


def on_the_way(latents: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns latents interpolated towards noise, the velocity (noise minus latents), and the
    interpolation factors [B] in 0..1, whose logits are normal (Esser et al. 2024, equation 19).
    """
    way = torch.sigmoid(torch.randn(len(latents)) + EARLIER)
    noise = torch.randn_like(latents)
    far = way.view(-1, 1, 1, 1)
    return (1 - far) * latents + far * noise, noise - latents, way


Control = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], list[torch.Tensor]]


def flow_error(
    painter: FlowPainter,
    latents: torch.Tensor,
    captions: list[str],
    progress: float,
    control: Control | None = None,
) -> torch.Tensor:
    """Returns the squared error of the painter's velocities at random points between latents [B, C,
    h, w] and noise. `control` returns residuals for noisy latents, hidden states, pooled text and
    timesteps.
    """
    noisy, velocity, way = on_the_way(latents.float())
    with autocast():
        hidden, pooled = painter.encode(captions, rows_at(progress))
        conditions = hidden, pooled, 1000 * way
        residuals = None if control is None else control(noisy, *conditions)
        predicted = painter.transformer(
            noisy, *conditions, block_controlnet_hidden_states=residuals
        ).sample
    return squared_error(predicted, velocity)


def train_transformer(
    painter: FlowPainter, buckets: list[Bucket], output: Path, budget: Budget,
    seed: int = 0, batch: int = 32, peak: float = 1.2e-3, native: float = 0.7,
    resume: bool = False,
) -> None:  # fmt: skip
    """Trains transformer and T5 together. The first 65 % use only the native size, the rest a share
    `native` of it. Every 500 updates it writes the averaged weights to `output`, and the state that
    `resume` reads.
    """
    torch.manual_seed(seed)
    generator = np.random.default_rng(seed)
    for module in painter.trained():
        module.train()
    parameters = [parameter for module in painter.trained() for parameter in module.parameters()]
    hidden = hidden_weights(*painter.trained())
    descent = Descent("transformer", parameters, budget, peak, 0.999, every=500, hidden=hidden)
    state = output / STATE
    if resume:
        descent.go_on(state, generator)

    def loss(progress: float) -> torch.Tensor:
        bucket, chosen = pick(buckets, batch, generator, 1.0 if progress < 0.65 else native)
        captions = batch_captions((bucket.scenes[i] for i in chosen), generator)
        return flow_error(painter, bucket.latents[chosen], captions, progress)

    descent.run(
        loss, lambda: save_flow_painter(painter, output), lambda: descent.keep(state, generator)
    )
