from rankwise.contract.ranks import ranks_in_words


def test_ranks_in_words() -> None:
    assert ranks_in_words([3]) == "rank 3"
    assert ranks_in_words([1, 0]) == "ranks 0, 1"
    assert ranks_in_words([9, 0, 1, 3, 4, 5]) == "ranks 0, 1, 3-5, 9"
