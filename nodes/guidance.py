"""Makes noise and guiders for custom samplers, beside sampler and schedule."""

from __future__ import annotations

from typing import Literal, cast

from katz_graph.guidance_spec import Guider as GuiderValue
from katz_graph.guidance_spec import Noise as NoiseValue
from katz_graph.knobs import Guidance, Seed
from katz_graph.node import Node
from katz_graph.wires import Conditioning, Guider, Latent, LatentSamples, Model, Noise, Sigmas


class RandomNoise(Node, category="sampling/custom_sampling/noise", title="Random Noise"):
    """Noise of a seed, drawn on the CPU whatever the device."""

    noise_seed: Seed = 0

    def run(self) -> Noise:
        return NoiseValue(self.noise_seed)


class DisableNoise(Node, category="sampling/custom_sampling/noise", title="Disable Noise"):
    """No noise: for a latent that has some left."""

    def run(self) -> Noise:
        return NoiseValue(0, drawn=False)


class BasicGuider(Node, category="sampling/custom_sampling/guiders", title="Basic Guider"):
    """One conditioning, without guidance."""

    def run(self, model: Model, conditioning: Conditioning) -> Guider:
        return GuiderValue("basic", model, conditioning)


class CFGGuider(Node, category="sampling/custom_sampling/guiders", title="CFG Guider"):
    """Classifier-free guidance of a positive against a negative conditioning."""

    cfg: Guidance = 8.0

    def run(self, model: Model, positive: Conditioning, negative: Conditioning) -> Guider:
        return GuiderValue("cfg", model, positive, negative, guidance=self.cfg)


class DualCFGGuider(Node, category="sampling/custom_sampling/guiders", title="Dual CFG Guider"):
    """Two guidances: regular, of cond2 against the negative and, on top, of cond1 against cond2;
    nested, of cond1 against cond2, and of what comes of it against the negative.
    """

    cfg_conds: Guidance = 8.0
    cfg_cond2_negative: Guidance = 8.0
    style: Literal["regular", "nested"] = "regular"

    def run(self, model: Model, cond1: Conditioning, cond2: Conditioning, negative: Conditioning) -> Guider:
        kind: Literal["dual", "nested"] = "nested" if self.style == "nested" else "dual"
        return GuiderValue(kind, model, cond1, negative, cond2, self.cfg_conds, self.cfg_cond2_negative)


class AddNoise(Node, category="sampling/custom_sampling/noise", title="Add Noise"):
    """A latent with noise of the level between the first and the last sigma, of the first where
    there is only one.
    """

    def run(self, model: Model, noise: Noise, sigmas: Sigmas, latent_image: Latent) -> Latent:
        from katz_graph.sampling.noise import initial_noise

        samples = latent_image["samples"].float()
        if not len(sigmas):
            return latent_image
        level = float((sigmas[0] - sigmas[-1]).abs() if len(sigmas) > 1 else sigmas[0])
        drawn = initial_noise(samples.shape, noise.seed, latent_image.get("batch_index")) if noise.drawn else samples * 0.0
        noisy = samples + drawn * level / model.latent_scale
        return cast(LatentSamples, {**latent_image, "samples": noisy.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)})
