"""What is in `deploy/`, and the wheels: each is checked by what can be had on this machine."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any, Final

import pytest

from tools import package

ROOT: Final = Path(__file__).parents[2]
yaml: Any = pytest.importorskip("yaml", reason="no YAML reader is installed")
DEPLOY: Final = ROOT / "deploy"


def installed(wheel: Path, place: Path) -> Path:
    """Install a wheel where nothing of ours is; its dependencies are this environment's own."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True)
    site = next(place.glob("lib/python*/site-packages"))
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    command += ["--disable-pip-version-check", "--target", str(site), str(wheel)]
    subprocess.run(command, check=True)
    # A path alone: the files of this environment that would put the work tree first are not read.
    (site / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return place


def versions(place: Path) -> list[str]:
    alone = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    said = []
    for name in ("quantum", "slipstream"):
        call = f"import {name}.cli as c, {name}; print({name}.__file__); c.main()"
        done = subprocess.run(
            [str(place / "bin" / "python"), "-c", call, "--version"],
            capture_output=True,
            text=True,
            env=alone,
            cwd=place,
        )
        assert done.returncode == 0, done.stderr
        file, version = done.stdout.splitlines()
        assert Path(file).is_relative_to(place), file
        said.append(version)
    return said


def test_a_wheel_of_plain_python_gives_both_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(package, "STAGES", tmp_path / "stages")
    monkeypatch.setattr(package, "DIST", tmp_path / "dist")
    package.build(package.stage("pure"))
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    quantum, slipstream = versions(installed(wheel, tmp_path / "empty"))
    assert quantum.startswith("quantum 0.1.0 (commit ") and ", plain)" in quantum
    assert "unknown" not in quantum
    assert slipstream.startswith("slipstream 0.1.0")


def test_the_compiled_wheel_runs_compiled(tmp_path: Path) -> None:
    wheels = list((ROOT / "dist").glob(f"*-cp{sys.version_info.major}{sys.version_info.minor}-*"))
    if not wheels:
        pytest.skip("no compiled wheel in dist/: `make package` builds it, which takes a minute")
    quantum, _ = versions(installed(wheels[0], tmp_path / "empty"))
    assert ", compiled)" in quantum


# systemd


def unit() -> str:
    return (DEPLOY / "systemd" / "quantum.service").read_text()


def test_the_unit_is_one_that_systemd_takes(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd-analyze")
    there = unit().replace("/opt/quantum/bin/quantum", sys.executable)
    (tmp_path / "quantum.service").write_text(there)
    done = subprocess.run(
        ["systemd-analyze", "verify", str(tmp_path / "quantum.service")],
        capture_output=True,
        text=True,
    )
    said = [line for line in done.stderr.splitlines() if "quantum.service" in line]
    assert not said and done.returncode == 0, done.stderr


def test_the_unit_exposes_little(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd-analyze")
    (tmp_path / "quantum.service").write_text(unit())
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", str(tmp_path / "quantum.service")],
        capture_output=True,
        text=True,
    )
    found = re.search(r"exposure level[^:]*: ([0-9.]+)", done.stdout)
    if found is None:
        pytest.skip(f"this systemd-analyze judges no unit offline: {done.stderr.strip()}")
    assert float(found[1]) <= 2.0, done.stdout


def test_the_unit_waits_for_the_node_s_own_word() -> None:
    settings = dict(line.split("=", 1) for line in unit().splitlines() if "=" in line[1:])
    assert settings["Type"] == "notify" and int(settings["WatchdogSec"]) > 0
    assert settings["User"] == "quantum"


# Containers and Kubernetes


def test_the_image_is_nobody_s_root_and_asks_itself() -> None:
    text = (DEPLOY / "container" / "Containerfile").read_text()
    lines = re.sub(r"\\\n", " ", text).splitlines()
    last = lines[max(n for n, line in enumerate(lines) if line.startswith("FROM")) :]
    (user,) = [line for line in last if line.startswith("USER")]
    assert user.split()[1].partition(":")[0] not in ("0", "root")
    assert any(line.startswith("HEALTHCHECK") and '"ready"' in line for line in last)
    copied = [line.split() for line in lines if line.startswith("COPY") and "--from" not in line]
    for _, source, _ in copied:
        assert source == "dist/" or (ROOT / source).exists(), source


def test_three_containers_make_a_cluster() -> None:
    found = yaml.safe_load((DEPLOY / "container" / "compose.yaml").read_text())
    services = found["services"]
    assert sorted(services) == ["quantum-a", "quantum-b", "quantum-c"]
    for name, service in services.items():
        assert service["read_only"] and service["cap_drop"] == ["ALL"], name
        folder, data = service["volumes"]
        assert folder.endswith(f"/{name[-1]}:/etc/quantum")
        assert data.partition(":")[0] in found["volumes"]


@pytest.fixture(scope="module")
def objects() -> dict[str, dict[str, Any]]:
    text = (DEPLOY / "kubernetes" / "quantum.yaml").read_text()
    return {f"{each['kind']}/{each['metadata']['name']}": each for each in yaml.safe_load_all(text)}


def test_the_manifests_fit_their_schemas() -> None:
    tool = shutil.which("kubeconform") or shutil.which("kubeconform", path=_go_bin())
    if tool is None:
        pytest.skip("there is no kubeconform: go install github.com/yannh/kubeconform/…@latest")
    file = DEPLOY / "kubernetes" / "quantum.yaml"
    done = subprocess.run([tool, "-strict", "-summary", str(file)], capture_output=True, text=True)
    if "failed downloading schema" in done.stdout:
        pytest.skip("kubeconform cannot have its schemas from here")
    assert done.returncode == 0, done.stdout


def _go_bin() -> str:
    return os.environ.get("GOBIN", str(Path.home() / "go" / "bin"))


def test_one_pod_at_most_is_taken_away(objects: dict[str, dict[str, Any]]) -> None:
    pods = objects["StatefulSet/quantum"]["spec"]["selector"]["matchLabels"]
    budget = objects["PodDisruptionBudget/quantum"]["spec"]
    assert budget["maxUnavailable"] == 1 and budget["selector"]["matchLabels"] == pods
    for name in ("Service/nodes", "Service/mqtt"):
        assert objects[name]["spec"]["selector"] == pods


def test_pods_are_confined_and_ask_themselves_whether_they_are_ready(
    objects: dict[str, dict[str, Any]],
) -> None:
    spec = objects["StatefulSet/quantum"]["spec"]["template"]["spec"]
    assert spec["securityContext"]["runAsNonRoot"]
    for container in (*spec["initContainers"], *spec["containers"]):
        assert container["securityContext"]["readOnlyRootFilesystem"], container["name"]
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    (container,) = spec["containers"]
    assert container["readinessProbe"]["exec"]["command"][:3] == ["quantum", "node", "ready"]
    assert objects["StatefulSet/quantum"]["spec"]["serviceName"] == "nodes"
    mounted = {each["name"] for each in container["volumeMounts"]}
    claimed = {
        each["metadata"]["name"]
        for each in objects["StatefulSet/quantum"]["spec"]["volumeClaimTemplates"]
    }
    assert mounted <= claimed | {each["name"] for each in spec["volumes"]}


def test_keys_and_data_are_on_volumes_apart(objects: dict[str, dict[str, Any]]) -> None:
    (container,) = objects["StatefulSet/quantum"]["spec"]["template"]["spec"]["containers"]
    by_path = {each["mountPath"]: each["name"] for each in container["volumeMounts"]}
    assert by_path["/etc/quantum"] != by_path["/var/lib/quantum"]
