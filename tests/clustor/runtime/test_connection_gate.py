"""A port that is full: a flood from one place pushes out itself, and others still get in."""

from __future__ import annotations

from clustor.runtime.peers.connection_gate import ConnectionGate, GateLimits


def gate(connections: int = 100, half_open: int = 4) -> ConnectionGate[str]:
    return ConnectionGate(GateLimits(connections, half_open))


def test_the_oldest_goes_of_whoever_has_most() -> None:
    door = gate()
    assert door.arrive("quiet", "10.0.0.2") is None
    for number in range(3):
        assert door.arrive(f"flood{number}", "10.0.0.1") is None
    assert door.arrive("flood3", "10.0.0.1") == "flood0"
    door.left("flood0")
    assert door.arrive("other", "10.0.0.3") == "flood1"
    door.left("flood1")
    assert (door.half_open, door.present, door.turned_away) == (4, 4, 2)


def test_who_has_shown_himself_is_half_open_no_more() -> None:
    door = gate()
    for number in range(50):
        assert door.arrive(f"good{number}", "10.0.0.1") is None
        door.opened(f"good{number}")
    assert (door.half_open, door.present) == (0, 50)


def test_one_source_never_has_all() -> None:
    door = gate(connections=8, half_open=8)
    for number in range(6):
        assert door.arrive(f"{number}", "10.0.0.1") is None
        door.opened(f"{number}")
    assert door.arrive("seventh", "10.0.0.1") == "seventh"
    door.left("seventh")
    assert door.arrive("neighbour", "10.0.0.2") is None


def test_a_full_port_turns_the_newcomer_away() -> None:
    door = gate(connections=4)
    for number in range(4):
        assert door.arrive(f"{number}", f"10.0.0.{number}") is None
        door.opened(f"{number}")
    assert door.arrive("late", "10.0.0.9") == "late"


def test_what_has_left_is_forgotten_whole() -> None:
    door = gate()
    for number in range(1000):
        assert door.arrive(f"{number}", f"10.0.0.{number}") is None
        if number % 2:
            door.opened(f"{number}")
        door.left(f"{number}")
        door.left(f"{number}")
    assert (door.present, door.half_open) == (0, 0)
    assert not door._held and not door._half_open and not door._sources
