"""What can be wrong with a configuration.

ConfigurationError
├── UnknownSetting    a key that means nothing here
├── BadValue          a value that is not allowed for its key
└── FileUnreadable    the file is not there, or not TOML
"""

from __future__ import annotations


class ConfigurationError(Exception):
    """Root of the room's errors: one sentence that a person can act on."""


class UnknownSetting(ConfigurationError):
    """A key that means nothing here."""


class BadValue(ConfigurationError):
    """A value that is not allowed for its key."""


class FileUnreadable(ConfigurationError):
    """The file is not there, or not TOML."""
