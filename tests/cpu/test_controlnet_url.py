"""A ControlNet named by URL equals the one in the file."""

from dataclasses import replace

import pytest
import torch
from file_server import file_server
from node_calls import call, context_in, registry
from single_files import checkpoint, controlnet, save

from katz_graph.checks.validate import check
from katz_graph.core.errors import InputError, RunError
from katz_graph.files.urls import ANY
from katz_graph.formats.api import from_api
from katz_graph.models.loading.sources import pipeline_recipes
from katz_graph.models.loading.store import ModelStore

CPU = ("cpu", torch.float32)
NAME = "canny.safetensors"


@pytest.fixture
def server():
    with file_server() as server:
        yield server


@pytest.fixture
def context(tmp_path, monkeypatch):
    monkeypatch.setenv("KATZ_CACHE", str(tmp_path))
    made = context_in(tmp_path)
    made.folders = replace(made.folders, fetch=ANY)
    return made


def serve(server, tmp_path, weights):
    save(tmp_path / "served.safetensors", weights)
    return server.put(NAME, (tmp_path / "served.safetensors").read_bytes())


def test_the_file_is_fetched_and_is_the_controlnet(tmp_path, server, context):
    expected = controlnet("sd1").state_dict()
    url = serve(server, tmp_path, expected)
    recipe = call("ControlNetLoader", context, control_net_name=url)
    (line,) = context.warnings
    assert line.startswith(f"{url} is fetched to {tmp_path / 'fetched'}")
    module = ModelStore().controlnet(recipe.control_net, *CPU)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in module.state_dict().items())
    server.files.clear()
    assert call("ControlNetLoader", context, control_net_name=url) == recipe
    assert len(context.warnings) == 1


def test_one_of_differences(tmp_path, server, context):
    weights = controlnet("sd1").state_dict()
    url = serve(server, tmp_path, weights | {"difference": torch.tensor([])})
    model, _, _ = pipeline_recipes(checkpoint("sd1"))
    assert (
        call("DiffControlNetLoader", context, model=model, control_net_name=url).base
        == model.network
    )


def test_other_files_than_controlnets_are_named(tmp_path, server, context):
    url = serve(server, tmp_path, {"unrelated": torch.zeros(3)})
    with pytest.raises(InputError, match=r"fetched/\w+-canny\.safetensors"):
        call("ControlNetLoader", context, control_net_name=url)


def test_checking_a_workflow_fetches_nothing(tmp_path, server, context):
    """A missing file is reported only when the node runs."""
    absent = server.url("none.safetensors")
    graph = from_api(
        {"1": {"class_type": "ControlNetLoader", "inputs": {"control_net_name": absent}}}
    )
    assert not [
        problem
        for problem in check(graph, registry(), context.folders).errors
        if "control_net_name" in str(problem)
    ]
    assert not (tmp_path / "fetched").exists()
    with pytest.raises(RunError, match="could not be fetched"):
        call("ControlNetLoader", context, control_net_name=absent)
