from __future__ import annotations

import pytest

from ddl.store.search import last_present


@pytest.mark.parametrize("known", [0, 1, 5])
@pytest.mark.parametrize("last", [5, 6, 7, 8, 9, 63, 64, 65, 1000])
def test_it_finds_the_last_of_a_dense_numbering(last: int, known: int) -> None:
    """Whatever is known beforehand, the last number is found."""
    assert last_present(lambda n: n <= last, known=known) == last


def test_an_empty_numbering_ends_at_zero() -> None:
    """Nothing there: 0."""
    assert last_present(lambda _: False) == 0


def test_it_asks_logarithmically_often() -> None:
    """A log of a million records takes about 2 * 20 questions."""
    asked: list[int] = []

    def is_there(n: int) -> bool:
        asked.append(n)
        return n <= 1_000_000

    last_present(is_there)
    assert len(asked) <= 44
