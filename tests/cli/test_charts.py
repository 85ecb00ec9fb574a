"""Where points lie, on linear and on logarithmic axes."""

import re
import xml.etree.ElementTree as ET
from itertools import pairwise

import pytest
from canned import RESULTS

from bigbatch.cli import charts, figures, picture


@pytest.mark.parametrize("values", [[0.3, 2.1], [7], [0.004, 0.0191], [1234.5, 3], [10], [1e-9]], ids=str)
def test_a_linear_axis_holds_all_values(values):
    axis = charts.linear("label", values)
    assert [axis.place(value) <= 1 + 1e-9 for value in values] == [True] * len(values)
    assert axis.place(0) == 0
    assert 3 <= len(axis.ticks) <= 8
    assert len({words for _, words in axis.ticks}) == len(axis.ticks)


def test_updates_are_counted_in_whole_numbers():
    assert [words for _, words in charts.linear("updates", [4], whole=True).ticks] == ["0", "1", "2", "3", "4"]


def test_a_decade_is_as_long_as_the_next():
    axis = charts.decades("label", [1e-7, 2e-2])
    places = [axis.place(value) for value, _ in axis.ticks]
    assert [b - a for a, b in pairwise(places)] == pytest.approx([1 / (len(places) - 1)] * (len(places) - 1))


def test_zero_lies_at_the_bottom_of_a_logarithmic_axis():
    assert charts.decades("label", [0, 1e-7, 1e-2]).place(0) == 0


def test_points_lie_where_the_ticks_say():
    x, y = charts.linear("x", [10]), charts.linear("y", [10])
    text = charts.draw("title", x, y, [charts.Series("name", "ours", ((0.0, 0.0), (10.0, 10.0)))])
    [low, high] = re.findall(r"[\d.]+,[\d.]+", re.search(r'<polyline points="([^"]*)"', text)[1])
    assert low == f"{charts.LEFT:.1f},{charts.HEIGHT - charts.BOTTOM:.1f}"
    assert high == f"{charts.WIDTH - charts.RIGHT:.1f},{charts.TOP:.1f}"


def test_words_are_escaped():
    axis = charts.linear("<axis> & more", [1])
    text = charts.draw('a "title" <b>', axis, axis, [charts.Series("<name>", "ours", ((0.0, 1.0),))])
    root = ET.fromstring(text)
    assert root.get("aria-label") == 'a "title" <b>'
    assert {"<axis> & more", "<name>"} <= {each.text for each in root.iter() if each.text}


@pytest.mark.parametrize("draw", [figures.losses, figures.memory, figures.distance, picture.draw])
def test_figures_are_well_formed_and_named(draw):
    root = ET.fromstring(draw(RESULTS))
    assert root.get("role") == "img"
    assert root.find("{http://www.w3.org/2000/svg}title").text == root.get("aria-label")
