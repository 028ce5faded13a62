"""A platform is named by its hardware."""

from __future__ import annotations

from pathlib import Path

import pytest

from hrm.agent.platform_name import NAME_MAX, platform_name


@pytest.mark.parametrize(
    ("text", "gpus", "name"),
    [
        ("model name\t: Intel(R) Xeon(R) Gold 1 CPU @ 2.1GHz\n", [], "intel-xeon-gold-1-2.1ghz"),
        ("model name : AMD EPYC 7B13\nmodel name : AMD EPYC 7B13\n", [], "amd-epyc-7b13"),
        ("Hardware : BCM2835\n", ["", "NVIDIA A100-SXM4-80GB"], "bcm2835+nvidia-a100-sxm4-80gb"),
        ("model name : x\n", ["b", "a", "b"], "x+a+b"),
    ],
)  # fmt: skip
def test_models_make_a_name(tmp_path: Path, text: str, gpus: list[str], name: str) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(text)

    assert platform_name(gpus, cpuinfo) == name


def test_a_machine_without_a_model_has_its_architecture(tmp_path: Path) -> None:
    assert platform_name([], tmp_path / "missing")


def test_names_are_bounded_and_those_of_this_machine_the_same(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("model name : " + "x" * 1000)

    assert len(platform_name(["y" * 1000], cpuinfo)) == NAME_MAX
    assert platform_name([]) == platform_name([])
