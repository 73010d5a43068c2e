"""`import katz_graph as katz`: the docs' examples run; errors, threads, event loops and graphs work
as documented.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from PIL import Image

import katz_graph as katz
from katz_graph.core.events import Progress
from katz_graph.formats.read import read_workflow

ROOT = Path(__file__).parents[2]
TXT2IMG = ROOT / "workflows" / "txt2img.json"
TWO_STEPS = {"5.steps": 2}


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, costs: Path) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KATZ_CACHE", str(costs))
    return tmp_path


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory, costs: Path) -> Iterator[katz.Engine]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KATZ_CACHE", str(costs))
        with katz.open(devices="cpu", output=tmp_path_factory.mktemp("output")) as engine:
            yield engine


def star(graph: katz.Graph, steps: int = 2) -> tuple[katz.Output, katz.Output]:
    """Returns latent and picture of a small text-to-image workflow."""
    model, clip, vae = graph.CheckpointLoaderSimple(ckpt_name="katz-mini")
    positive, negative = (graph.CLIPTextEncode(clip=clip, text=text) for text in ("a red star", ""))
    empty = graph.EmptyLatentImage(width=64, height=64)
    (latent,) = graph.KSampler(
        model=model, positive=positive, negative=negative, latent_image=empty, steps=steps
    )
    (picture,) = graph.VAEDecode(samples=latent, vae=vae)
    return latent, picture


def test_an_option_is_accepted_by_its_old_name() -> None:
    with pytest.warns(FutureWarning, match="^tell_evictions is now report_evictions;") as warned:
        katz.open(devices="cpu", tell_evictions=True).close()
    assert [one.filename for one in warned] == [__file__]


def test_importing_it_loads_no_library() -> None:
    code = (
        "import time\nstart = time.perf_counter()\nimport katz_graph\nseconds = "
        "time.perf_counter() - start\n"
        "import sys\nprint(*(name for name in ('torch', 'numpy', 'pydantic', 'rich', 'PIL') if "
        "name in sys.modules))\n"
        "assert seconds < 0.1, seconds\nassert set(katz_graph.__all__) <= set(dir(katz_graph))\n"
        "graph = katz_graph.Graph()\ngraph.EmptyLatentImage()\nkatz_graph.open()\nassert 'torch' "
        "not in sys.modules"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == []


def test_every_name_is_available() -> None:
    assert all(getattr(katz, name) for name in katz.__all__)
    with pytest.raises(AttributeError, match="no attribute 'opne'"):
        getattr(katz, "opne")  # noqa: B009


@pytest.mark.defect(46)
def test_examples_of_the_docs_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Outside of a checkout, the package's workflows are used."""
    blocks = re.findall(
        r"^```python\n(.*?)^```",
        (ROOT / "docs" / "python.md").read_text("utf-8"),
        re.DOTALL | re.MULTILINE,
    )
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "docs/python.md", "exec"), names)
    assert Image.open("star.png").size == (128, 128)
    assert "<svg" in Path("plan.svg").read_text()
    printed = capsys.readouterr().out
    for line in re.findall(r"print\(\w+\)  # (.*)", "\n".join(blocks)):
        assert line in printed


def test_a_run_gives_pictures_files_seconds_and_the_plan(opened: katz.Engine) -> None:
    result = opened.run(TXT2IMG, seed=3, set=TWO_STEPS)
    (file,) = result.files
    assert [picture.size for picture in result.images] == [Image.open(file).size]
    assert json.loads(Image.open(file).text["prompt"])["5"]["inputs"]["seed"] == result.seed == 3
    assert result.seconds["total"] >= result.seconds["denoise"] > 0
    assert result.plan.as_json()["evaluations"] == 2 and "<svg" in (result.plan._repr_svg_() or "")
    # nothing runs again, and the picture is cached
    again = opened.run(TXT2IMG, seed=3, set=TWO_STEPS)
    assert again.files == () and again.images[0].tobytes() == result.images[0].tobytes()


def test_a_picture_json_and_a_graph_run_alike(opened: katz.Engine) -> None:
    first = opened.run(TXT2IMG, set=TWO_STEPS)
    sources = first.files[0], json.loads(TXT2IMG.read_text()), read_workflow(TXT2IMG).graph
    for source in sources:
        assert opened.run(source, set=TWO_STEPS).images[0].tobytes() == first.images[0].tobytes()


def test_targets_give_tensors_and_write_nothing(opened: katz.Engine) -> None:
    graph = opened.graph()
    latent, picture = star(graph)
    result = opened.run(graph, targets=[latent, picture])
    assert result[picture].shape == (1, 64, 64, 3) and result.files == ()
    assert result[picture] is result[picture.link.node][0]
    assert torch.equal(result.latents[0]["samples"], result[latent]["samples"])
    assert [one.size for one in result.images] == [(64, 64)]
    assert set(opened.run(graph, targets="VAEDecode").outputs) == {picture.link.node}
    with pytest.raises(katz.InputError, match='node "1" is not a target of this run'):
        result["1"]


def test_errors_are_those_of_the_command_line(opened: katz.Engine) -> None:
    with pytest.raises(katz.InputError, match=r"nowhere.json: no such file"):
        opened.run("nowhere.json")
    with pytest.raises(
        katz.InputError,
        match=r"txt2img.json: node 5 .*, steps: got 0, expected a whole number from 1",
    ):
        opened.run(TXT2IMG, set={"5.steps": 0})
    with pytest.raises(katz.InputError, match=r"--devices gpu: gpu is not a device"):
        katz.open(devices="gpu")


def test_a_partial_run_returns_results_and_the_error(opened: katz.Engine) -> None:
    nodes = json.loads(TXT2IMG.read_text())
    nodes["99"] = {"class_type": "SaveImage", "inputs": {}}
    with pytest.raises(katz.InputError, match="node 99"):
        opened.run(nodes, set=TWO_STEPS)
    result = opened.run(nodes, set=TWO_STEPS, partial=True)
    assert len(result.images) == 1 and any(
        "some outputs are refused" in line for line in result.warnings
    )
    assert isinstance(result.error, katz.RunError) and "some outputs were refused: node 99" in str(
        result.error
    )


def test_threads_run_at_once_and_alike(opened: katz.Engine) -> None:
    alone = [opened.run(TXT2IMG, set=TWO_STEPS, seed=seed).images[0].tobytes() for seed in range(3)]
    with katz.open(devices="cpu", cache="none") as engine, ThreadPoolExecutor(3) as pool:
        runs = pool.map(lambda seed: engine.run(TXT2IMG, set=TWO_STEPS, seed=seed), range(3))
        assert [run.images[0].tobytes() for run in runs] == alone


def test_progress_hears_every_evaluation(opened: katz.Engine) -> None:
    events: list[object] = []
    opened.run(TXT2IMG, set={"5.steps": 3}, seed=11, progress=events.append)
    evaluations = [
        event.value for event in events if isinstance(event, Progress) and event.evaluations
    ]
    assert evaluations == [1, 2, 3]


def test_cancelling_a_task_ends_its_run() -> None:
    async def cancelled_early() -> None:
        started = asyncio.Event()
        async with katz.open(devices="cpu") as engine:
            long = engine.arun(TXT2IMG, set={"5.steps": 2000}, progress=lambda _: started.set())
            task = asyncio.create_task(long)
            await started.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(asyncio.wait_for(cancelled_early(), 60))


def test_closing_ends_runs_and_refuses_others() -> None:
    engine, started = katz.open(devices="cpu"), threading.Event()
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(
            engine.run, TXT2IMG, set={"5.steps": 2000}, progress=lambda _: started.set()
        )
        assert started.wait(60)
        engine.close()
        assert isinstance(run.exception(), katz.Cancelled)
    with pytest.raises(katz.InputError, match="closed"):
        engine.run(TXT2IMG)


def test_options_of_a_workflow_count_unless_others_were_given(opened: katz.Engine) -> None:
    document = {
        "format": "katz",
        "version": 1,
        "graph": json.loads(TXT2IMG.read_text()),
        "run": {"dtype": "bfloat16"},
    }
    with katz.open(devices="cpu") as engine:
        assert engine.plan(document).as_json()["dtype"] == "bfloat16"
    assert any(
        "run options are ignored" in line for line in opened.run(document, set=TWO_STEPS).warnings
    )


def test_a_graph_is_saved_as_any_client_takes_it(folder: Path) -> None:
    graph = katz.Graph()
    _, picture = star(graph)
    graph.SaveImage(images=picture, _title="The picture")
    graph.save("star.json")
    saved = json.loads(Path("star.json").read_text())
    assert saved["5"]["inputs"]["latent_image"] == ["4", 0]
    # defaults are written, because other programs need them
    assert saved["5"]["inputs"]["sampler_name"] == "euler"
    assert saved["7"]["_meta"] == {"title": "The picture"}
    assert read_workflow("star.json").graph == graph.graph


def test_node_types_are_completed_and_described() -> None:
    graph = katz.Graph()
    assert "KSampler" in dir(graph)
    steps = inspect.signature(graph.KSampler).parameters["steps"]
    assert steps.annotation is int and steps.default == 20 and steps.kind is steps.KEYWORD_ONLY
    assert "Denoises a latent" in (inspect.getdoc(graph.KSampler) or "")


PACK = """
from katz_graph.node import Node
from katz_graph.node.wires import Image

class Negative(Node, category="tests"):
    def run(self, image: Image) -> Image:
        return 1 - image
"""


def test_nodes_of_packs_are_functions_of_a_graph(folder: Path) -> None:
    (folder / "packs").mkdir()
    (folder / "packs" / "negative.py").write_text(PACK)
    assert "Negative" in dir(katz.Graph(packs="packs"))
    with katz.open(devices="cpu", packs="packs") as engine:
        graph = engine.graph()
        black = graph["EmptyImage"](width=8, height=8)
        white = graph.Negative(image=black)
        result = engine.run(graph, targets=white, set="EmptyImage.width=16")
    assert result.images[0].size == (16, 8) and result.images[0].getpixel((0, 0)) == (255, 255, 255)


def test_a_wrong_call_is_one_line() -> None:
    graph, other = katz.Graph(), katz.Graph()
    model, _, vae = graph.CheckpointLoaderSimple(ckpt_name="katz-mini")
    latent = other.EmptyLatentImage()
    wrong = {
        "unknown node type 'KSamplr'; did you mean \"KSampler\"?": lambda: graph.KSamplr,
        "has no input 'widht'; did you mean \"width\"?": lambda: graph.EmptyLatentImage(widht=64),
        'width: got "wide", expected a whole number': lambda: graph.EmptyLatentImage(width="wide"),
        "clip: got MODEL from output 0 (MODEL) of node 1": lambda: graph.CLIPTextEncode(
            clip=model, text=""
        ),
        "clip: is missing; expected a link to an output of type CLIP": lambda: graph.CLIPTextEncode(
            text=""
        ),
        "has 3 outputs (MODEL, CLIP, VAE); choose one": lambda: other.CLIPTextEncode(
            clip=other.CheckpointLoaderSimple(ckpt_name="katz-mini"), text=""
        ),
        "belongs to another graph": lambda: graph.VAEDecode(samples=latent, vae=vae),
    }
    for line, call in wrong.items():
        with pytest.raises(katz.InputError, match=re.escape(line)) as refused:
            call()
        assert "\n" not in str(refused.value)
    assert list(graph.graph.nodes) == ["1"]  # refused calls add no node
