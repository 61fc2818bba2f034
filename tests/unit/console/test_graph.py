"""Lines over time, as SVG."""

from memq.console.graph import HEIGHT, SPAN_S, WIDTH, graph

NOW_S = 1_800_000_000  # at eight o'clock


def test_a_line_goes_from_left_to_right_and_touches_the_top():
    """The greatest value is at the top, 0 at the bottom, the end of the axis is now."""
    found = graph([NOW_S - SPAN_S, NOW_S - SPAN_S + 100, NOW_S - 100, NOW_S], [0, 5, 10, 10], NOW_S)
    assert found.lines == [f"0,{HEIGHT}.0 3,{HEIGHT / 2}", f"716,0.0 {WIDTH},0.0"]
    assert (found.most, found.last) == (10, 10)
    assert found.hours[0] == (0, "02:00")
    assert found.hours[-1] == (WIDTH, "08:00")


def test_what_is_not_known_is_a_gap():
    """An unknown value is neither 0 nor bridged, when looks before and after are far enough."""
    times_s = [NOW_S - 400 + 10 * number for number in range(40)]
    values = [7] * 10 + [-1] * 20 + [7] * 10
    found = graph(times_s, values, NOW_S)
    assert len(found.lines) == 2
    assert all(",0.0" in line for line in found.lines)
    assert graph(times_s[:20], values[:20], NOW_S).last is None


def test_nothing_and_zero_are_told_apart():
    """Without a look there is no line; a lag of 0 is a line at the bottom."""
    assert graph([], [], NOW_S).lines == []
    assert graph([], [], NOW_S).last is None
    assert graph([NOW_S], [0], NOW_S).lines == [f"{WIDTH + 1},{HEIGHT}.0 {WIDTH},{HEIGHT}.0"]
    assert graph([NOW_S], [0], NOW_S).last == 0


def test_of_many_looks_at_one_place_the_greatest_shows():
    """A peak of ten seconds is not lost, and a line has no more points than places."""
    times_s = list(range(NOW_S - SPAN_S, NOW_S, 10))
    values = [1] * len(times_s)
    values[1_001] = 9
    (line,) = graph(times_s, values, NOW_S).lines
    points = line.split()
    assert len(points) <= WIDTH + 1
    assert sum(each.endswith(",0.0") for each in points) == 1


def test_what_is_older_is_left_out():
    """Looks before the axis, or after its end, draw nothing."""
    found = graph([NOW_S - SPAN_S - 1, NOW_S + 1], [5, 5], NOW_S)
    assert (found.lines, found.most) == ([], 0)
