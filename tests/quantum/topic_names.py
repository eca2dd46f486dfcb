"""Topics and filters that meet: few names, so that drawn filters often match drawn topics."""

from __future__ import annotations

from hypothesis import strategies as st

NAMES = (b"a", b"b", b"", b"$s", b"ab", b"a ")


def _joined(parts: tuple[list[bytes], list[bytes]]) -> bytes:
    return b"/".join(parts[0] + parts[1])


topics = st.lists(st.sampled_from(NAMES), min_size=1, max_size=4).map(b"/".join).filter(bool)
filters = (
    st.tuples(
        st.lists(st.sampled_from((*NAMES, b"+", b"+")), max_size=3),
        st.sampled_from(([b"#"], [b"+"], [b"a"], [b"b"], [b""])),
    )
    .map(_joined)
    .filter(bool)
)
