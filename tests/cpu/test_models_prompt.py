"""The prompt syntax: weights, nesting, escapes, and chunks of tokens."""

import pytest

from katz_graph.models.text.prompt import chunks, weighted_segments


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("plain, text", [("plain, text", 1.0)]),
        ("a (b) c", [("a ", 1.0), ("b", 1.1), (" c", 1.0)]),
        ("((a)) b", [("a", 1.1 * 1.1), (" b", 1.0)]),
        ("(a:1.3)", [("a", 1.3)]),
        ("(a:0)(b:-0.5)( c : 2 )", [("a", 0.0), ("b", -0.5), (" c ", 2.0)]),
        ("((a:1.3))", [("a", 1.3)]),
        ("((a) b:1.5)", [("a", 1.1 * 1.5), (" b", 1.5)]),
        ("a (b (c:0.5) d) e", [("a ", 1.0), ("b ", 1.1), ("c", 0.5), (" d", 1.1), (" e", 1.0)]),
        (r"\(a\) (b\))", [("(a) ", 1.0), ("b)", 1.1)]),
        ("(a", [("(a", 1.0)]),
        ("a)", [("a)", 1.0)]),
        ("a) (b", [("a) (b", 1.0)]),
        ("()", []),
        ("(:1.2)", [(":1.2", 1.1)]),
        ("(time 12:30 noon)", [("time 12:30 noon", 1.1)]),
        ("(a:nan)(b:inf)", [("a:nan", 1.1), ("b:inf", 1.1)]),
        ("(a:1.5", [("(a:1.5", 1.0)]),
        ("a (b (c) d", [("a ", 1.0), ("(b (c) d", 1.0)]),
        ("a (b (c:1.3)", [("a ", 1.0), ("b ", 1.3), ("(c", 1.3)]),
        ("((a)", [("(a", 1.1)]),
        ("(a)) b (c:1.3) d", [("a", 1.1), (") b (c:1.3) d", 1.0)]),
        ("a) (b) (c", [("a) (b) (c", 1.0)]),
        ("a) ((b:1.3) c", [("a) (", 1.0), ("b", 1.3), (" c", 1.0)]),
    ],
)
def test_weights(text, expected):
    got = weighted_segments(text)
    assert [segment for segment, _ in got] == [segment for segment, _ in expected]
    assert [weight for _, weight in got] == pytest.approx([weight for _, weight in expected])


def test_deep_nesting_needs_no_stack():
    ((text, weight),) = weighted_segments("(" * 5000 + "a" + ":1)" * 5000)
    assert (text, weight) == ("a", 1.0)


def test_chunks_fill_up_and_short_segments_stay_whole():
    def numbers(*lengths):
        return [[(start, 1.0)] * length for start, length in enumerate(lengths)]

    assert chunks([], 75) == [[]]
    assert [len(row) for row in chunks(numbers(75), 75)] == [75]
    assert [len(row) for row in chunks(numbers(76), 75)] == [75, 1]
    assert [len(row) for row in chunks(numbers(70, 7), 75)] == [70, 7]
    assert [len(row) for row in chunks(numbers(70, 8), 75)] == [75, 3]
    assert [len(row) for row in chunks(numbers(70, 5, 3), 75)] == [75, 3]
    rows = chunks([[(index, 0.5) for index in range(200)]], 75)
    assert [token for row in rows for token, _ in row] == list(range(200))
