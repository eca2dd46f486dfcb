"""Run the command as a module."""

from quantum.cli.app import main

main()
