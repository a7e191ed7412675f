"""Numbers in arguments of the load-test harness."""

import pytest

from loadtest.errors import UsageError
from loadtest.numerals import MOST
from loadtest.options import parser


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("--rate", "0"),
        ("--rate", "-1"),
        ("--rate", "nan"),
        ("--rate", "inf"),
        ("--rate", "fast"),
        ("--duration-s", "0"),
        ("--start-rate", "nan"),
        ("--requests", "-1"),
        ("--requests", "1.5"),
        ("--requests", str(MOST + 1)),
        ("--turns", "0"),
        ("--seed", "-1"),
        ("--families", "-1"),
        ("--think-s", "-1"),
        ("--length-scale", "nan"),
        ("--cancel-share", "1.1"),
        ("--timeout-s", "0"),
        ("--scrape-s", "0"),
        ("--max-lag-ms", "nan"),
    ],
)
def test_a_number_out_of_its_range_is_named_in_one_line(option, text):
    with pytest.raises(UsageError, match=option) as raised:
        parser().parse_args(["URL", option, text])
    assert len(str(raised.value).splitlines()) == 1


def test_numbers_of_their_range_are_taken():
    found = parser().parse_args(["URL", "--rate", "0.5", "--seed", "0", "--requests", "1e3"])
    assert (found.rate, found.seed, found.requests) == (0.5, 0, 1000)
