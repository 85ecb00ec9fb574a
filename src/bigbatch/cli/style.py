"""How the demo's page and picture look, in dark and in light."""

from __future__ import annotations

COLOURS = (
    "--paper: #fdfdfb; --card: #ffffff; --ink: #1b1e24; --faint: #5d6470; --rule: #e4e5e1; --ours: #1f5fd6; "
    "--plain: #c3c8d1; --built-in: #c8650a; --budget: #c02a2a; --good: #16794a;"
)
DARK = (
    "--paper: #13151a; --card: #1a1d24; --ink: #eceef2; --faint: #a0a7b4; --rule: #2c313b; --ours: #7eaaff; "
    "--plain: #565e6d; --built-in: #f0a254; --budget: #ff8078; --good: #5fd39a;"
)
CHARTS = """
.chart text { fill: var(--ink); font-size: 14px; }
.chart .tick { fill: var(--faint); font-size: 13px; }
.chart .level-name { fill: var(--budget); font-size: 13px; }
.chart .grid { stroke: var(--rule); stroke-width: 1; }
.chart .level { stroke: var(--budget); stroke-width: 1.5; stroke-dasharray: 6 5; }
.chart .series polyline { fill: none; stroke-width: 2.2; stroke-linejoin: round; stroke-linecap: round; }
.chart .ours polyline { stroke: var(--ours); } .chart .ours circle { fill: var(--ours); }
.chart .plain polyline { stroke: var(--plain); stroke-width: 9; } .chart .plain circle { fill: var(--plain); r: 7px; }
.chart .built-in polyline { stroke: var(--built-in); } .chart .built-in circle { fill: var(--built-in); }
"""
PAGE = f"""
:root {{ color-scheme: light dark; {COLOURS} }}
@media (prefers-color-scheme: dark) {{ :root {{ {DARK} }} }}
{CHARTS}
* {{ box-sizing: border-box; }}
body {{ margin: 0; background: var(--paper); color: var(--ink); line-height: 1.6; font-size: 17px;
  font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Open Sans", sans-serif; }}
main {{ max-width: 800px; margin: 0 auto; padding: 72px 24px 96px; }}
h1 {{ font-size: clamp(30px, 5.4vw, 46px); line-height: 1.12; letter-spacing: -0.022em; margin: 0 0 20px; }}
h2 {{ font-size: 25px; line-height: 1.25; letter-spacing: -0.012em; margin: 76px 0 10px; }}
p {{ margin: 0 0 16px; }} .lead {{ font-size: 20px; color: var(--faint); max-width: 40em; }}
.name {{ color: var(--ours); font-weight: 650; letter-spacing: 0.01em; margin: 0 0 10px; }}
.tiles {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 14px; margin: 38px 0 0; }}
.tile {{ background: var(--card); border: 1px solid var(--rule); border-radius: 12px; padding: 16px 18px; }}
.tile b {{ display: block; font-size: 27px; letter-spacing: -0.02em; line-height: 1.25; white-space: nowrap; }}
.tile span {{ font-size: 14px; color: var(--faint); line-height: 1.4; display: block; }}
.scroll {{ overflow-x: auto; }} .formula {{ white-space: nowrap; }}
table {{ border-collapse: collapse; width: 100%; font-size: 14px; font-variant-numeric: tabular-nums; }}
th, td {{ text-align: right; padding: 9px 0 9px 14px; border-bottom: 1px solid var(--rule); white-space: nowrap; }}
th:first-child, td:first-child {{ text-align: left; padding-left: 0; }}
thead th {{ color: var(--faint); font-weight: 500; white-space: normal; vertical-align: bottom; line-height: 1.3; }}
tbody th {{ font-weight: 500; }} tr.ours th, tr.ours td {{ font-weight: 650; color: var(--ours); }}
td.died {{ color: var(--budget); font-weight: 650; }}
figure {{ margin: 24px 0 0; background: var(--card); border: 1px solid var(--rule); border-radius: 12px;
  padding: 22px 20px 14px; }}
.chart {{ display: block; width: 100%; height: auto; }}
details {{ margin-top: 10px; font-size: 14px; }} summary {{ cursor: pointer; color: var(--faint); }}
details .scroll {{ margin-top: 10px; max-height: 320px; overflow-y: auto; }}
pre {{ background: var(--card); border: 1px solid var(--rule); border-left: 4px solid var(--budget); border-radius: 8px;
  padding: 16px 18px; white-space: pre-wrap; overflow-wrap: anywhere; font-size: 14px; line-height: 1.5; }}
code, pre {{ font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }} code {{ font-size: 0.9em; }}
.verdict {{ color: var(--good); font-weight: 600; margin-top: 18px; }} .verdict.broken {{ color: var(--budget); }}
footer {{ margin-top: 84px; padding-top: 20px; border-top: 1px solid var(--rule); color: var(--faint);
  font-size: 14px; }}
@media (max-width: 600px) {{
  body {{ font-size: 16px; }} main {{ padding-top: 40px; }} figure {{ padding: 16px 10px 10px; }}
  .chart text, .chart .tick, .chart .level-name {{ font-size: 20px; }}
}}
"""
