"""What an error says to people."""

from __future__ import annotations

import pytest

from ottla.errors import CoordinatorNotAvailable, CorruptMessage, UnknownServerError, UnknownTopicOrPartition, error_of, reason_of


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (error_of(3, "topic __audit"), UnknownTopicOrPartition, "topic __audit: UnknownTopicOrPartition (error code 3)"),
        (error_of(15), CoordinatorNotAvailable, "CoordinatorNotAvailable (error code 15)"),
        (error_of(2, "a-0", message="the batch at 7 fails its CRC"), CorruptMessage, "the batch at 7 fails its CRC"),
        (error_of(2, "a-0", message=""), CorruptMessage, "a-0: CorruptMessage (error code 2)"),
        (error_of(4711, "a-0", message=None), UnknownServerError, "a-0: UnknownServerError (error code 4711)"),
    ],
)
def test_an_error_code_is_said_by_name_where_the_other_side_gave_no_reason(error: Exception, kind: type[Exception], text: str) -> None:
    assert type(error) is kind and str(error) == text


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (OSError("no route"), "no route"),
        (ConnectionResetError(), "ConnectionResetError"),
        (TimeoutError(), "timed out"),
        (CorruptMessage("the batch at 7 fails its CRC"), "CorruptMessage: the batch at 7 fails its CRC"),
        (CorruptMessage(), "CorruptMessage"),
        (error_of(2, "a-0"), "a-0: CorruptMessage (error code 2)"),
    ],
)
def test_a_reason_names_an_error_of_kafkas_table_and_one_that_says_nothing(error: Exception, text: str) -> None:
    assert reason_of(error) == text
