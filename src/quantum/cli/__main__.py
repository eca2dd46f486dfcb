"""Run the command as a module."""

from quantum.cli import main

main()
