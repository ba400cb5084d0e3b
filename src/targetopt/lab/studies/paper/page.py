"""The page of a figure that has no runs: its pictures, its verdicts, its tables."""

from __future__ import annotations

import base64
from pathlib import Path

import jinja2

from targetopt.lab.report import page as report
from targetopt.lab.statistics import verdicts
from targetopt.lab.store.files import write_whole

_STYLE = Path(report.__file__).with_name("assets") / "report.css"
_TEMPLATE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<title>{{ title }}</title>
<style>
{{ style | safe }}
figure { margin: 0 } img { max-width: 100%; background: #fff }
</style>
</head>
<body>
<header><p class="brand">targetopt report</p><h1>{{ title }}</h1></header>
<main>
{% for name, image in pictures %}
<figure><img alt="{{ name }}" src="data:image/png;base64,{{ image }}"></figure>
<p>figures/{{ name }}.png, figures/{{ name }}.pdf</p>
{% endfor %}
<section id="verdicts"><h2>Verdicts</h2>
<div class="scroll" tabindex="0" role="region" aria-label="Verdicts"><table>
<thead><tr><th scope="col">Claim</th><th scope="col">Verdict</th><th scope="col">Numbers</th>
<th scope="col" class="num">n</th><th scope="col">Test</th></tr></thead>
<tbody>
{% for v in judged %}
<tr><td class="prose">{{ v.claim }}</td>
<td class="nowrap"><span class="mark-{{ v.verdict | replace(' ', '-') }}">{{ v.verdict }}</span></td>
<td>{% for name, value in v.numbers.items() %}<div>{{ name }}:
{{ value | number if value is number else value }}</div>{% endfor %}</td>
<td class="num">{{ v.n }}</td><td class="prose">{{ v.test }}</td></tr>
{% endfor %}
</tbody></table></div></section>
<section><h2>Tables</h2><ul>{% for name in tables %}<li>tables/{{ name }}</li>{% endfor %}</ul></section>
</main>
</body>
</html>
"""


def write(directory: Path, title: str) -> Path:
    """Write ``directory/report.html`` from what lies in the directory; it needs no other file."""
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    environment.filters["number"] = report.number
    images = sorted((directory / "figures").glob("*.png"))
    text = environment.from_string(_TEMPLATE).render(
        title=title,
        style=_STYLE.read_text("utf-8"),
        pictures=[(p.stem, base64.b64encode(p.read_bytes()).decode()) for p in images],
        judged=verdicts.read(directory),
        tables=sorted(p.name for p in (directory / "tables").glob("*.csv")),
    )
    path = directory / "report.html"
    write_whole(path, text.encode())
    return path
