"""The configuration of a broker: typed, and each part knows where it came from."""

from quantum.config.errors import BadValue, ConfigurationError, FileUnreadable, UnknownSetting
from quantum.config.kinds import ListenAddress
from quantum.config.loading import Configuration, load
from quantum.config.settings import NAMES, Settings, about

__all__ = [
    "NAMES",
    "BadValue",
    "Configuration",
    "ConfigurationError",
    "FileUnreadable",
    "ListenAddress",
    "Settings",
    "UnknownSetting",
    "about",
    "load",
]
