"""The configuration of a broker: typed, and each part knows where it came from."""

from quantum.config.errors import BadValue, ConfigurationError, FileUnreadable, UnknownSetting
from quantum.config.host_settings import HostSettings, is_host_file, load_host
from quantum.config.kinds import ListenAddress
from quantum.config.loading import EffectiveSettings, load
from quantum.config.settings import NAMES, Settings, about

__all__ = [
    "NAMES",
    "BadValue",
    "ConfigurationError",
    "EffectiveSettings",
    "FileUnreadable",
    "HostSettings",
    "ListenAddress",
    "Settings",
    "UnknownSetting",
    "about",
    "is_host_file",
    "load",
    "load_host",
]
