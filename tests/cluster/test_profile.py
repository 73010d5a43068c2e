"""`katz profile` on two workers measures devices, links, and stages alone and with a busy
neighbour.
"""

from __future__ import annotations

from pathlib import Path

from command import Katz

WORKFLOW = Path(__file__).parents[2] / "workflows" / "txt2img.json"


def test_stages_and_devices_are_measured_concurrently(katz_on_threads: Katz) -> None:
    times = katz_on_threads(
        "profile", WORKFLOW, "--devices", "cpu*2", "--set", "KSampler.steps=4", "--json"
    ).data
    for device in ("cpu:0", "cpu:1"):
        loop = [
            time for time in times if time["device"] == device and time["stage"].startswith("unet_")
        ]
        assert {(time["stage"], time["rows"]) for time in loop} == {
            (stage, rows)
            for stage in ("unet_encoder", "unet_mid", "unet_decoder")
            for rows in (1, 2, 8)
        }
        assert all(0 < time["alone"] < 10 and 0 < time["busy"] < 10 for time in loop)

    rates = katz_on_threads("profile", "--devices", "cpu*2", "--json").data
    assert [device["device"] for device in rates["devices"]] == ["cpu:0", "cpu:1"]
    assert all(
        device["contention"] >= 1 and device["memory_contention"] >= 1 and device["threads"] == 1
        for device in rates["devices"]
    )
    assert {(link["from"], link["to"]) for link in rates["links"]} == {
        ("cpu:0", "cpu:1"),
        ("cpu:1", "cpu:0"),
    }
    assert all(
        link["bytes_per_second"] > 1e7 and 0 <= link["latency"] < 1 for link in rates["links"]
    )
