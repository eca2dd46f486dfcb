"""Settings: who wins, what is refused and how it is said."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import pytest
from typer.testing import CliRunner

from quantum.cli.config import app
from quantum.config import (
    NAMES,
    BadValue,
    ConfigurationError,
    FileUnreadable,
    ListenAddress,
    Settings,
    UnknownSetting,
    load,
)

runner = CliRunner()


def test_the_defaults_are_those_of_development() -> None:
    settings = load({}, {}).settings
    assert settings == Settings()
    assert [str(a) for a in (settings.mqtt, settings.mqtts, settings.ws, settings.admin)] == [
        "127.0.0.1:1883",
        "127.0.0.1:8883",
        "127.0.0.1:8083",
        "127.0.0.1:9080",
    ]
    assert (settings.tenant_prgs, settings.queue_bytes_max, settings.queue_messages_max) == (
        0,
        64 << 20,
        1_000,
    )


def test_flags_before_environment_before_file_before_defaults(tmp_path: Path) -> None:
    file = tmp_path / "q.toml"
    file.write_text('mqtt = "127.0.0.1:1"\nws = "127.0.0.1:2"\nmqtts = "off"\ntenant_prgs = 5\n')
    environment = {"QUANTUM_MQTT": "127.0.0.1:3", "QUANTUM_WS": "127.0.0.1:4", "HOME": "/"}
    found = load({"mqtt": "127.0.0.1:5", "data": None}, environment, file)
    assert found.settings.mqtt == ListenAddress("127.0.0.1", 5)
    assert found.settings.ws == ListenAddress("127.0.0.1", 4)
    assert found.settings.mqtts is None
    assert found.settings.tenant_prgs == 5
    assert found.settings.data == Path("var")
    sources = [found.sources[name] for name in ("mqtt", "ws", "mqtts", "data")]
    assert sources == ["--mqtt", "QUANTUM_WS", f"{file}: mqtts", "default"]


def test_the_environment_may_name_the_file(tmp_path: Path) -> None:
    file = tmp_path / "q.toml"
    file.write_text("tenant_prgs = 7")
    assert load({}, {"QUANTUM_CONFIG": str(file)}).settings.tenant_prgs == 7


def test_every_default_is_allowed_and_is_read_as_it_is_shown() -> None:
    default = load({}, {})
    shown = {f"QUANTUM_{name.upper()}": default.shown(name) for name in NAMES}
    assert load({}, shown).settings == default.settings
    assert set(NAMES) == {each.name for each in fields(Settings)}


@pytest.mark.parametrize(
    ("text", "number"),
    [("65536", 65_536), ("64 KiB", 65_536), ("64KiB", 65_536), ("500_000", 500_000)],
)
def test_sizes_may_have_units(text: str, number: int) -> None:
    assert load({}, {"QUANTUM_PACKET_BYTES_MAX": text}).settings.packet_bytes_max == number


BAD = {
    "an unknown variable": (
        {"QUANTUM_MQQT": "x"},
        UnknownSetting,
        "QUANTUM_MQQT is no setting; did you mean mqtt?",
    ),
    "a strange address": (
        {"QUANTUM_MQTTS": "8883"},
        BadValue,
        "QUANTUM_MQTTS is '8883', and must be HOST:PORT, or off",
    ),
    "a port beyond the last": (
        {"QUANTUM_MQTTS": "h:70000"},
        BadValue,
        "QUANTUM_MQTTS is 'h:70000', and must be HOST:PORT, or off",
    ),
    "plaintext for the world": (
        {"QUANTUM_MQTT": "0.0.0.0:1883"},
        BadValue,
        "QUANTUM_MQTT is '0.0.0.0:1883', and must be a loopback HOST:PORT (it is plaintext), "
        "or off",
    ),
    "no number": (
        {"QUANTUM_TENANT_PRGS": "many"},
        BadValue,
        "QUANTUM_TENANT_PRGS is 'many', and must be a whole number from 0 to 512",
    ),
    "too small": (
        {"QUANTUM_PACKET_BYTES_MAX": "12"},
        BadValue,
        "QUANTUM_PACKET_BYTES_MAX is '12', and must be a size from 1 KiB to 16448 KiB",
    ),
}


@pytest.mark.parametrize(("environment", "kind", "says"), BAD.values(), ids=BAD.keys())
def test_what_is_wrong_is_said_with_key_value_and_what_is_allowed(
    environment: dict[str, str], kind: type[ConfigurationError], says: str
) -> None:
    with pytest.raises(kind) as caught:
        load({}, environment)
    assert str(caught.value) == says


@pytest.mark.parametrize(
    ("text", "says"),
    {
        "an unknown key": ("colour = 1", "colour is no setting; there are: data, mqtt"),
        "a table": ("[mqtt]\nport = 1", "mqtt is {'port': 1}, and must be"),
        "a truth for a number": ("tenant_prgs = true", "tenant_prgs is True, and must be"),
        "not TOML": ("mqtt =", "is not TOML"),
    }.values(),
)
def test_a_bad_file_is_named(text: str, says: str, tmp_path: Path) -> None:
    file = tmp_path / "q.toml"
    file.write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        load({}, {}, file)
    assert str(file) in str(caught.value)
    assert says in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileUnreadable, match=r"cannot read .*nowhere\.toml: No such file"):
        load({}, {}, tmp_path / "nowhere.toml")


def test_show_tells_values_and_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUANTUM_TENANT_PRGS", "9")
    monkeypatch.delenv("QUANTUM_PURE", raising=False)
    result = runner.invoke(app, ["show", "--json"])
    assert result.exit_code == 0, result.output
    shown = json.loads(result.output)
    assert shown["tenant_prgs"] == {"value": 9, "source": "QUANTUM_TENANT_PRGS"}
    assert shown["mqtt"] == {"value": "127.0.0.1:1883", "source": "default"}
    assert "127.0.0.1:1883" in runner.invoke(app, ["show"]).output


def test_show_of_a_bad_value_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUANTUM_TENANT_PRGS", "-1")
    result = runner.invoke(app, ["show"])
    assert result.exit_code == 2
    assert "QUANTUM_TENANT_PRGS is '-1'" in result.output.replace("\n", " ")
