"""Run the command as a module."""

from slipstream.cli.app import main

main()
