"""Sequential specifications: what each call would do and answer if it ran alone."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Protocol, TypeAlias, TypeVar, assert_never

StateT = TypeVar("StateT", bound=Hashable)
CallT_contra = TypeVar("CallT_contra", bound=Hashable, contravariant=True)


class Model(Protocol[CallT_contra, StateT]):
    """A deterministic object whose calls each touch one key.

    Because no call touches two keys, a history is linearizable exactly if its part for
    each key is, and `state` is the state of one key alone.
    """

    @property
    def initial(self) -> StateT: ...

    def key(self, call: CallT_contra, /) -> Hashable:
        """Say which key the call touches."""
        ...

    def apply(self, state: StateT, call: CallT_contra, /) -> tuple[StateT, Hashable]:
        """Return the state after the call and the answer the call must give."""
        ...

    def is_read(self, call: CallT_contra, result: Hashable, /) -> bool:
        """Say whether the call, having answered this, cannot have changed any state."""
        ...


@dataclass(frozen=True, slots=True)
class Read:
    """Answers the value."""


@dataclass(frozen=True, slots=True)
class ModelWrite:
    """Answers None."""

    value: Hashable


@dataclass(frozen=True, slots=True)
class CompareAndSet:
    """Answers whether the value was `expected` and is now `value`."""

    expected: Hashable
    value: Hashable


RegisterCall: TypeAlias = Read | ModelWrite
CasRegisterCall: TypeAlias = Read | ModelWrite | CompareAndSet


@dataclass(frozen=True, slots=True)
class Register:
    """One value that is read and written."""

    initial: Hashable = None

    def key(self, call: RegisterCall, /) -> Hashable:  # noqa: ARG002 - there is only one
        return None

    def apply(self, state: Hashable, call: RegisterCall, /) -> tuple[Hashable, Hashable]:
        match call:
            case Read():
                return state, state
            case ModelWrite(value):
                return value, None
            case _:
                assert_never(call)

    def is_read(self, call: RegisterCall, result: Hashable, /) -> bool:  # noqa: ARG002
        return isinstance(call, Read)


@dataclass(frozen=True, slots=True)
class CasRegister:
    """One value that is read, written, and replaced on condition."""

    initial: Hashable = None

    def key(self, call: CasRegisterCall, /) -> Hashable:  # noqa: ARG002 - there is only one
        return None

    def apply(self, state: Hashable, call: CasRegisterCall, /) -> tuple[Hashable, Hashable]:
        match call:
            case Read():
                return state, state
            case ModelWrite(value):
                return value, None
            case CompareAndSet(expected, value):
                return (value, True) if state == expected else (state, False)
            case _:
                assert_never(call)

    def is_read(self, call: CasRegisterCall, result: Hashable, /) -> bool:
        return isinstance(call, Read) or result is False


@dataclass(frozen=True, slots=True)
class ModelGet:
    """Answers the value, or the model's `absent`."""

    key: Hashable


@dataclass(frozen=True, slots=True)
class ModelPut:
    """Answers None."""

    key: Hashable
    value: bytes


@dataclass(frozen=True, slots=True)
class Append:
    """Answers None; appending to an absent key puts."""

    key: Hashable
    value: bytes


@dataclass(frozen=True, slots=True)
class Cas:
    """Answers whether the value was `expected` (None: absent) and is now `value`."""

    key: Hashable
    expected: bytes | None
    value: bytes


@dataclass(frozen=True, slots=True)
class ModelDelete:
    """Answers whether there was something to delete."""

    key: Hashable


KvCall: TypeAlias = ModelGet | ModelPut | Append | Cas | ModelDelete


@dataclass(frozen=True, slots=True)
class KeyValue:
    """A map from keys to bytes."""

    # What a Get of a key that is not there answers.
    absent: bytes | None = None

    @property
    def initial(self) -> bytes | None:
        return None

    def key(self, call: KvCall, /) -> Hashable:
        return call.key

    def apply(self, state: bytes | None, call: KvCall, /) -> tuple[bytes | None, Hashable]:
        match call:
            case ModelGet():
                return state, self.absent if state is None else state
            case ModelPut(value=value):
                return value, None
            case Append(value=value):
                return (value if state is None else state + value), None
            case Cas(expected=expected, value=value):
                return (value, True) if state == expected else (state, False)
            case ModelDelete():
                return None, state is not None
            case _:
                assert_never(call)

    def is_read(self, call: KvCall, result: Hashable, /) -> bool:
        # A refused compare-and-set, or a delete that found nothing.
        return isinstance(call, ModelGet) or result is False
