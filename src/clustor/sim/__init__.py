"""Run a whole cluster in one thread, and judge what its clients saw."""
