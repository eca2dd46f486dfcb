"""A production node is one file: what it must say, what it may not, and where its paths begin."""

from __future__ import annotations

from pathlib import Path

import pytest

from quantum.config import ConfigurationError, HostSettings, is_host_file, load_host

LEAST = 'cluster = "prod"\nnode = 1\nhost = "10.0.0.1"\n'


def said(tmp_path: Path, text: str) -> HostSettings:
    file = tmp_path / "quantum.toml"
    file.write_text(text)
    return load_host(file).settings


def test_three_lines_are_enough_and_nothing_is_plaintext(tmp_path: Path) -> None:
    settings = said(tmp_path, LEAST)
    assert (settings.mqtt, settings.ws) == (None, None)
    assert settings.mqtts is not None and settings.mqtts.port == 8883
    assert settings.client_auth == "required"
    assert settings.zone == "10.0.0.1"


@pytest.mark.parametrize("name", ["cluster", "node", "host"])
def test_who_it_is_must_be_said(tmp_path: Path, name: str) -> None:
    text = "".join(line for line in LEAST.splitlines(keepends=True) if not line.startswith(name))
    with pytest.raises(ConfigurationError, match=name):
        said(tmp_path, text)


@pytest.mark.parametrize(
    "line",
    [
        'mqtt = "127.0.0.1:1883"',
        'ws = "10.0.0.1:8083"',
        'kek = "kek.key"',
        'kek = "vault:x"',
        'advertise = "mqtts"',
        "node = 0",
        'cluster = "Not A Name"',
        'surprise = "x"',
    ],
)
def test_what_no_host_may_say(tmp_path: Path, line: str) -> None:
    kept = [each for each in LEAST.splitlines() if each.split()[0] != line.split(maxsplit=1)[0]]
    with pytest.raises(ConfigurationError):
        said(tmp_path, "\n".join((*kept, line)) + "\n")


def test_relative_paths_begin_where_the_file_is(tmp_path: Path) -> None:
    settings = said(tmp_path, LEAST + 'data = "/srv/q"\nkeys = "k"\nkek = "file:kek.key"\n')
    assert settings.data == Path("/srv/q")
    assert settings.keys == tmp_path / "k"
    assert settings.kek == f"file:{tmp_path / 'kek.key'}"
    assert said(tmp_path, LEAST + 'kek = "command:get key"\n').kek == "command:get key"


def test_names_that_are_advertised_win_over_the_ports(tmp_path: Path) -> None:
    text = LEAST + 'wss = "off"\nadvertise = "mqtts=mqtt.example:443,admin=[fd00::1]:9080"\n'
    assert said(tmp_path, text).advertised() == {
        "peer": "10.0.0.1:7001",
        "admin": "[fd00::1]:9080",
        "mqtts": "mqtt.example:443",
    }


def test_a_development_broker_s_file_is_another(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text('mqtt = "off"\n')
    assert not is_host_file(file)
    file.write_text(LEAST)
    assert is_host_file(file)
