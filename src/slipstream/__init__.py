"""Slipstream: watchable config whose cursor never names what was not applied. Not built yet."""
