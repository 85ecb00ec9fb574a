"""The page of the demo: one HTML file that needs nothing else, no script, no network."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from bigbatch.cli import figures
from bigbatch.cli.demo_results import COLUMNS, PROMISED_DISTANCE, Results, table
from bigbatch.cli.style import PAGE
from bigbatch.core.bytes import readable

# A browser that is asked for anything else refuses and complains, so the page cannot come to need it unnoticed.
_ALONE = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_CHECKED = (
    "Checked by the run that wrote this page: plain Keras died in {0}, bigbatch stayed within them, and its weights "
    "never lay more than {1:.0e} from plain Keras'."
)
_DIED = ' class="died"'


def page(results: Results) -> str:
    """The whole document."""
    sections = (_top, _death, _comparison, _losses, _memory, _distance, _foot)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_ALONE}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n<link rel="icon" href="data:,">\n'
        f"<title>bigbatch: the batch you want in the memory you have</title>\n<style>{PAGE}</style>\n</head>\n"
        f"<body>\n<main>\n{''.join(section(results) for section in sections)}</main>\n</body>\n</html>\n"
    )


def _top(results: Results) -> str:
    plain, ours = results.plain.peak or 0, results.ours.peak or 1
    tiles = [
        (f"{readable(ours)}", f"peak memory of bigbatch; plain Keras takes {readable(plain)}"),
        (f"{plain / ours:.0f} times", "less memory for the same batches and the same updates"),
        (f"{results.worst:.0e}".replace("e-0", "e-"), "largest distance of its weights, relative, after any update"),
    ]
    shown = "".join(f'<div class="tile"><b>{escape(big)}</b><span>{escape(small)}</span></div>' for big, small in tiles)
    return (
        f'<p class="name">bigbatch demo</p>\n<h1>The batch you want in the memory you have</h1>\n'
        f'<p class="lead">The same network is trained on the same batches of {results.batch_size} samples. '
        f"In {results.small}, plain Keras dies. bigbatch finishes there, with the weights that plain Keras "
        f'gets when it has room.</p>\n<div class="tiles">{shown}</div>\n'
    )


def _death(results: Results) -> str:
    if results.starved.error is None:
        return f"<h2>Plain Keras fits</h2><p>{results.small} were enough for it, so they show nothing.</p>\n"
    return (
        f"<h2>Plain Keras in {results.small}</h2>\n"
        f"<p>A whole batch of {results.batch_size} and all that its gradient needs must be in memory at once. They "
        f"do not fit, and the first update is never made. TensorFlow's last words:</p>\n"
        f"<pre>ResourceExhaustedError: {escape(results.starved.error)}</pre>\n"
    )


def _comparison(results: Results) -> str:
    broken = results.broken_promises()
    verdict = " ".join(broken) if broken else _CHECKED.format(results.small, PROMISED_DISTANCE)
    kind = "broken" if broken else "kept"
    rows = "".join(_row(cells, "ours" if cells[0] == results.ours.name else "") for cells in table(results))
    return (
        "<h2>The runs side by side</h2>\n"
        f"<p>{results.epochs} epochs over {results.num_samples:,} handwritten digits (scikit-learn), in their order; "
        f"AdamW, the same first weights. Times are medians, per {results.batch_size} samples. Loss and accuracy are "
        "those of the final weights on these samples. The distance is "
        '<span class="formula">|a &minus; b| / |b|</span>, where b '
        "are all weights of plain Keras with room.</p>\n"
        f'<div class="scroll"><table>{_head(COLUMNS)}<tbody>{rows}</tbody></table></div>\n'
        f'<p class="verdict {kind}">{escape(verdict)}</p>\n'
    )


def _losses(results: Results) -> str:
    rows = [
        (str(number), str(plain.samples), f"{plain.loss:.6f}", f"{ours.loss:.6f}")
        for number, (plain, ours) in enumerate(zip(results.plain.updates, results.ours.updates), 1)
    ]
    words = (
        "Two lines, one on the other: the wide one is plain Keras with room, the narrow one bigbatch in the small "
        f"budget. Each batch is split into micro-batches of {results.micro_batch_size}, whose gradients are summed "
        "by their number of samples; the optimizer is applied once. So there is nothing to tune anew."
    )
    return _figure(
        "The same loss, update by update",
        words,
        figures.losses(results),
        ("update", "samples seen", "plain Keras", "bigbatch"),
        rows,
    )


def _memory(results: Results) -> str:
    rows = [(str(each.micro_batch_size), readable(each.peak)) for each in results.peaks]
    words = (
        f"Memory follows the micro-batch, not the batch: every point makes updates of {results.batch_size} samples. "
        "What stays when micro-batches become small are weights, optimizer and one copy of the gradients. "
        "The dashed line is the budget of the small runs. Measured in two updates per size, by TensorFlow's allocator."
    )
    return _figure(
        "You choose how much memory",
        words,
        figures.memory(results),
        ("micro-batch size", "peak memory"),
        [*rows, (f"plain Keras, {results.batch_size}", readable(results.plain.peak or 0))],
    )


def _distance(results: Results) -> str:
    rows = [
        (str(each.update), str(each.samples), f"{each.bigbatch:.2e}", f"{each.built_in:.2e}", f"{applied.num_applied}")
        for each, applied in zip(results.distances, results.built_in.updates)
    ]
    tail = results.num_samples % results.batch_size
    joined = results.batch_size // results.micro_batch_size
    words = (
        "After every update of the whole batch, that is after equally many samples, the weights are compared with "
        "those of plain Keras with room. bigbatch stays at the rounding of float32: the same sums in another order. "
        "(The network is smooth by choice: with relu, rounding grows from update to update, whoever rounds.) "
        "Keras' own accumulation sees the same samples in the same order, cut into batches of "
        f"{results.micro_batch_size} with <code>gradient_accumulation_steps={joined}</code>. It agrees while batches "
        f"divide evenly. But the last batch of an epoch has {tail} samples: it is no full window, so its update waits "
        f"for the next epoch, every window after it begins elsewhere, and its last {tail % results.micro_batch_size} "
        f"samples count as much as {results.micro_batch_size}."
    )
    return _figure(
        "The same weights, not merely similar ones",
        words,
        figures.distance(results),
        ("update", "samples seen", "bigbatch", "Keras' own", "updates it has made"),
        rows,
    )


def _foot(results: Results) -> str:
    return (
        f"<footer><p>Written by <code>bigbatch demo</code> in {results.seconds:.0f} s. {escape(results.versions)}. "
        "It ends with exit code 1 if what it checks is not so.</p></footer>\n"
    )


def _figure(title: str, words: str, chart: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    body = "".join(_row(cells) for cells in rows)
    return (
        f'<h2>{title}</h2>\n<p>{words}</p>\n<figure><div class="scroll">{chart}</div>\n'
        f'<details><summary>The numbers</summary><div class="scroll"><table>{_head(columns)}<tbody>{body}</tbody>'
        "</table></div></details></figure>\n"
    )


def _head(columns: Sequence[str]) -> str:
    cells = "".join(f'<th scope="col">{escape(name)}</th>' for name in columns)
    return f"<thead><tr>{cells}</tr></thead>"


def _row(cells: Sequence[str], kind: str = "") -> str:
    first, *rest = map(escape, cells)
    numbers = "".join(f"<td{_DIED if cell == 'out of memory' else ''}>{cell}</td>" for cell in rest)
    return f'<tr class="{kind}"><th scope="row">{first}</th>{numbers}</tr>'
