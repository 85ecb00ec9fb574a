"""The picture of the demo in the README: two figures and a headline in one SVG, for dark and light."""

from __future__ import annotations

from html import escape

from bigbatch.cli import charts, figures
from bigbatch.cli.demo_results import Results
from bigbatch.cli.style import CHARTS, COLOURS, DARK
from bigbatch.core.bytes import readable

_HEAD, _GAP = 84, 24
_STYLE = f"""
svg {{ {COLOURS} font-family: system-ui, -apple-system, "Segoe UI", "Open Sans", sans-serif; }}
@media (prefers-color-scheme: dark) {{ svg {{ {DARK} }} }}
.paper {{ fill: var(--paper); }} .headline {{ fill: var(--ink); font-size: 25px; font-weight: 650; }}
.below {{ fill: var(--faint); font-size: 17px; }}
{CHARTS}"""


def draw(results: Results) -> str:
    """A document of its own."""
    width, height = 2 * charts.WIDTH + 3 * _GAP, charts.HEIGHT + _HEAD + _GAP
    places = (_GAP, charts.WIDTH + 2 * _GAP)
    drawn = (figures.memory(results), figures.distance(results))
    nested = [
        chart.replace("<svg ", f'<svg x="{left}" y="{_HEAD}" width="{charts.WIDTH}" height="{charts.HEIGHT}" ', 1)
        for left, chart in zip(places, drawn)
    ]
    headline = (
        f"Batches of {results.batch_size} in {readable(results.ours.peak or 0)} instead of "
        f"{readable(results.plain.peak or 0)}, and the same weights"
    )
    below = f"Drawn by bigbatch demo: micro-batches of {results.micro_batch_size}; {results.versions}"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
            f'aria-label="{escape(headline)}">',
            f"<title>{escape(headline)}</title><style>{_STYLE}</style>",
            f'<rect class="paper" width="{width}" height="{height}" rx="12"/>',
            f'<text class="headline" x="{_GAP + 14}" y="42">{escape(headline)}</text>',
            f'<text class="below" x="{_GAP + 14}" y="68">{escape(below)}</text>',
            *nested,
            "</svg>\n",
        ]
    )
