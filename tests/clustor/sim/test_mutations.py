"""Every planted bug is noticed: by the simulator within its seeds, or by a named story."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from clustor.sim.run import run_seed
from tests.clustor.sim.mutations import MUTATIONS, Mutation
from tests.clustor.sim.stories import STORIES


@pytest.mark.parametrize("story", STORIES, ids=[story.__name__ for story in STORIES])
def test_a_story_holds_on_sound_code(story: Callable[[], None]) -> None:
    story()


@pytest.mark.parametrize("mutation", MUTATIONS, ids=[mutation.name for mutation in MUTATIONS])
def test_a_planted_bug_is_noticed(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    mutation.plant(monkeypatch)
    if mutation.story is not None:
        with pytest.raises(AssertionError):
            mutation.story()
        return
    assert any(run_seed(seed).violation is not None for seed in mutation.seeds)
