"""Files that PEFT and LyCORIS save change a model's weights as PEFT and LyCORIS do, to 1e-6 of each
weight's norm in float32.
"""

import copy

import pytest
import torch
from lycoris.wrapper import LycorisNetwork
from peft import LoHaConfig, LoKrConfig, LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from tiny_models import random, unet

from katz_graph.adapters.fit import fit
from katz_graph.adapters.lora import describe, read_lora
from katz_graph.models.families.unet.family import FAMILY as UNETS
from katz_graph.models.loading.identity import file_identity

BOUND = 1e-6  # of a weight's norm: a few float32 roundings
LINEAR, CONVOLUTION, ONE_BY_ONE = "attn1.to_q", "conv1", "proj_in"
LAYERS = [LINEAR, "attn2.to_v", CONVOLUTION, ONE_BY_ONE, "conv_shortcut"]


def randomize(tensors):
    """Fills each tensor with other, large values."""
    with torch.no_grad():
        for number, tensor in enumerate(tensors):
            tensor.copy_(0.3 * random(*tensor.shape, seed=number))


def changed(path, strength=1.0, family="sd1"):
    """Returns the parameters of a UNet after a file changed them."""
    parameters = dict(unet(family).named_parameters())
    methods = fit(read_lora(file_identity(path)), UNETS, parameters)
    described = fit(describe(file_identity(path)), UNETS, parameters)
    assert {name: (one.name, one.shape) for name, one in methods.items()} == {
        name: (one.name, one.shape) for name, one in described.items()
    }
    results = {}
    for name, method in methods.items():
        results[name] = parameters[name].clone()
        method.add_to(results[name], strength)
    return results, methods


def assert_near(ours, theirs):
    assert (ours - theirs).norm() <= BOUND * theirs.norm()


PEFT = {
    "LoRA": LoraConfig(r=3, lora_alpha=5, target_modules=LAYERS),
    "rank-stabilised": LoraConfig(r=3, lora_alpha=5, use_rslora=True, target_modules=LAYERS),
    "patterns": LoraConfig(
        r=3,
        lora_alpha=5,
        rank_pattern={LINEAR: 2},
        alpha_pattern={CONVOLUTION: 7},
        target_modules=LAYERS,
    ),
    "bias": LoraConfig(r=3, lora_alpha=5, lora_bias=True, target_modules=[CONVOLUTION, ONE_BY_ONE]),
    "DoRA": LoraConfig(r=3, lora_alpha=5, use_dora=True, target_modules=LAYERS),
    "rank-stabilised DoRA": LoraConfig(
        r=3, lora_alpha=5, use_dora=True, use_rslora=True, target_modules=LAYERS
    ),
    "LoHa": LoHaConfig(r=3, alpha=5, target_modules=LAYERS),
    "LoHa patterns": LoHaConfig(
        r=3,
        alpha=5,
        rank_pattern={LINEAR: 2},
        alpha_pattern={CONVOLUTION: 7},
        target_modules=LAYERS,
    ),
    "LoHa, Tucker": LoHaConfig(r=3, alpha=5, use_effective_conv2d=True, target_modules=LAYERS),
    "LoKr": LoKrConfig(r=2, alpha=5, target_modules=LAYERS),
    "LoKr, whole": LoKrConfig(
        r=64, alpha=5, alpha_pattern={LINEAR: 7}, rank_pattern={LINEAR: 32}, target_modules=LAYERS
    ),
    "LoKr, both": LoKrConfig(
        r=1, alpha=5, decompose_both=True, decompose_factor=4, target_modules=LAYERS
    ),
    "LoKr, Tucker": LoKrConfig(r=2, alpha=5, use_effective_conv2d=True, target_modules=LAYERS),
}


@pytest.mark.parametrize("config", PEFT.values(), ids=PEFT)
def test_peft_files_match_peft_merges(tmp_path, config):
    model = get_peft_model(copy.deepcopy(unet("sd1")), copy.deepcopy(config))
    randomize(value for value in model.parameters() if value.requires_grad)
    model.save_pretrained(tmp_path)
    ours, methods = changed(tmp_path / "adapter_model.safetensors")
    theirs = dict(model.merge_and_unload().named_parameters())
    for name, weight in unet("sd1").named_parameters():
        assert_near(ours.get(name, weight), theirs[name])
    touched = {
        name
        for name, weight in unet("sd1").named_parameters()
        if not torch.equal(weight, theirs[name])
    }
    assert touched == methods.keys()
    assert {unet("sd1").get_parameter(name).ndim for name in methods} >= (
        {1, 4} if getattr(config, "lora_bias", False) else {2, 4}
    )


def test_peft_s_magnitudes_have_two_names(tmp_path):
    model = get_peft_model(copy.deepcopy(unet("sd1")), copy.deepcopy(PEFT["DoRA"]))
    randomize(value for value in model.parameters() if value.requires_grad)
    model.save_pretrained(tmp_path)
    path = tmp_path / "adapter_model.safetensors"
    (first, _), tensors = changed(path), load_file(path)
    renamed = {
        f"{key}.default.weight" if key.endswith("magnitude_vector") else key: value
        for key, value in tensors.items()
    }
    assert renamed.keys() != tensors.keys()
    save_file(renamed, path)
    second, methods = changed(path)
    assert {method.name for method in methods.values()} == {"DoRA over LoRA"}
    assert all(torch.equal(value, second[name]) for name, value in first.items())


def effective(module):
    """Returns a LyCORIS module's additions to the weight and bias of its layer."""
    seen = []

    def record(x, weight=None, bias=None, **_):
        seen.append((weight, bias))
        return 0.0

    layer = module.org_module[0]
    module.op = record
    module.org_forward = lambda x, *_, **__: 0.0
    module(torch.zeros(1, layer.weight.shape[min(1, layer.weight.ndim - 1)], 8, 8))
    ((weight, bias),) = seen
    return weight, bias


LYCORIS = {
    "LoCon": {"network_module": "locon"},
    "LoCon, Tucker": {"network_module": "locon", "use_tucker": True},
    "LoCon, rank-stabilised": {"network_module": "locon", "rs_lora": True},
    "LoHa": {"network_module": "loha"},
    "LoHa, Tucker": {"network_module": "loha", "use_tucker": True},
    "LoKr": {"network_module": "lokr", "factor": 4},
    "LoKr, both": {"network_module": "lokr", "factor": 8, "decompose_both": True, "lora_dim": 1},
    "LoKr, Tucker": {"network_module": "lokr", "factor": 4, "use_tucker": True},
    "LoKr, whole": {"network_module": "lokr", "full_matrix": True},
    "norms": {"network_module": "locon", "train_norm": True},
}
DECOMPOSED = {
    f"{name}, decomposed by {axis}": {
        **LYCORIS[name],
        "weight_decompose": True,
        "wd_on_out": axis == "output",
    }
    for name in ("LoCon", "LoCon, Tucker", "LoHa", "LoHa, Tucker", "LoKr", "LoKr, Tucker")
    for axis in ("output", "input")
}
STRENGTHS = dict.fromkeys(LYCORIS, 0.7) | dict.fromkeys(DECOMPOSED, 1.0)


def network_over(model, strength=1.0, **options):
    """Makes LyCORIS modules for all layers of a UNet's middle block, with trainers' names."""
    kinds = ["Linear", "Conv2d", "GroupNorm", "LayerNorm"]
    preset = {"target_module": kinds, "lora_prefix": "lora_unet_mid_block"}
    sizes = {"lora_dim": 2, "conv_lora_dim": 2, "alpha": 3, "conv_alpha": 3}
    return LycorisNetwork.apply_preset(preset)(model, multiplier=strength, **(sizes | options))


def saved(path, network):
    """Saves like `LycorisNetwork.save_weights`, without applying it to the model."""
    tensors = {
        f"{module.lora_name}.{key}": value.detach().clone().contiguous()
        for module in network.loras
        for key, value in module.state_dict().items()
    }
    save_file(tensors, path)
    return path


@torch.no_grad()
@pytest.mark.parametrize("name", STRENGTHS)
def test_lycoris_files_match_lycoris(tmp_path, name):
    """Decomposed weights have strength 1, as LyCORIS scales V instead of the weight (see
    `methods.Dora`).
    """
    model, strength = copy.deepcopy(unet("sd1").mid_block), STRENGTHS[name]
    network = network_over(model, strength, **(LYCORIS | DECOMPOSED)[name])
    for module in network.loras:
        randomize(module.parameters())
        if hasattr(module, "dora_scale"):
            module.dora_scale.abs_().add_(0.5)
    ours, methods = changed(saved(tmp_path / "lycoris.safetensors", network), strength)
    paths = {id(module): f"mid_block.{place}" for place, module in model.named_modules()}
    seen = set()
    for module in network.loras:
        place = paths[id(module.org_module[0])]
        for parameter, delta in zip(("weight", "bias"), effective(module), strict=True):
            if delta is not None:
                full = f"{place}.{parameter}"
                assert_near(ours[full], unet("sd1").get_parameter(full) + delta)
                seen.add(full)
    assert seen == methods.keys() and len(seen) >= len(network.loras) > 10


@torch.no_grad()
def test_whole_differences_of_lycoris(tmp_path):
    model = copy.deepcopy(unet("sd1").mid_block)
    paths = {id(module): f"mid_block.{place}" for place, module in model.named_modules()}
    network = network_over(model, network_module="full")
    for module in network.loras:
        randomize(module.parameters())
        module.apply_to()  # adds the layer's own weights
    ours, methods = changed(saved(tmp_path / "lycoris.safetensors", network))
    theirs = {
        f"{paths[id(module.org_module[0])]}.{parameter}": value
        for module in network.loras
        for parameter, value in module.named_parameters()
    }
    assert theirs.keys() == methods.keys()
    for name, value in theirs.items():
        assert_near(ours[name], value)
