"""Tables and pictures of what `compare.py`, `truth.py` and `auto.py` have found.

    python benchmarks/report.py FOLDER [PAGE]

FOLDER has their results, and gets the picture. The tables are printed, or put into a page between
`<!-- compare -->` and `<!-- end -->`.
"""

import json
import re
import statistics
import sys
from pathlib import Path

import goals
from measuring import Ratio, median_cpu, ratio

NAMES = {
    "limit": "the limit: a bare loop",
    "twin": "the limit once more",
    "limit_of_windows": "a bare loop that pulls its batches",
    "plain_keras": "plain Keras, whole batch",
    "bigbatch_fit": "**bigbatch**, `micro_batch_size`",
    "bigbatch_windows": "**bigbatch**, `batches_per_update`",
    "bigbatch_graph": "**bigbatch**, `GradientAccumulator` in one `tf.function`",
    "bigbatch_loop": "**bigbatch**, `GradientAccumulator` called from Python",
    "keras_steps": "Keras, `gradient_accumulation_steps`",
    "tutorial": "a `tf.function` loop from a tutorial",
    "rival_model": "gradient-accumulator, model",
    "rival_optimizer": "gradient-accumulator, optimizer",
}


def table(header, rows):
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def over_limit(times, name, clock):
    """None, if that contender did not run."""
    return ratio(times[name][clock], times["limit"][clock]) if name in times else None


def of_contender(groups, name, clock):
    for times in groups:
        found = over_limit(times, name, clock)
        if found:
            return str(found)
    return "raises" if any("raises" in times for times in groups) else ""


def numbers_of(result, workload):
    """Of micro-batches, in their order, which is not that of a file to which they were added."""
    return sorted(int(key.split("/")[1]) for key in result["times"] if key.startswith(f"{workload}/"))


def comparison(result):
    """One table per workload, each of one run, and one of the growth with the number of micro-batches."""
    parts = []
    for workload, alone in result["alone"].items():
        numbers = numbers_of(result, workload)
        header = [
            workload,
            *(f"CPU time, K={number}" for number in numbers),
            f"wall time, K={result['number']}",
            *(f"peak, K={number}" for number in (result["number"], result["most"])),
            "first",
            "graph",
            "error",
        ]
        rows = []
        for name, label in ((name, label) for name, label in NAMES.items() if name in alone):
            cells = [of_contender(result["times"][f"{workload}/{number}"], name, "cpu") for number in numbers]
            wall = of_contender(result["times"][f"{workload}/{result['number']}"], name, "wall")
            rows.append([label, *cells, wall, *measured(alone, name)])
        parts += [table(header, rows), of_machine(result["facts"][workload])]
    return "\n\n".join([*parts, growth(result), marginal(result), shared(result), imports(result)])


def summary(result):
    """How far the goals were reached."""
    return table(["goal, at most", *(NAMES[name] for name in goals.NAMES)], goals.rows(result))


def measured(alone, name):
    """Peaks over the floor, first update over plain Keras', operations, and error."""
    found = alone[name]
    if "raises" in found:
        return ["raises"] * 5
    peaks = [f"{found[key] / alone['floor']:.2f}" if key in found else "" for key in ("peak", "peak_of_most")]
    first = found["first"] / alone["plain_keras"]["first"]
    return [*peaks, f"{first:.2f}", str(found["operations"]), f"{found['error']:.0e}"]


def growth(result):
    """Seconds per sample over those at 4 micro-batches."""
    numbers = sorted({int(key.split("/")[1]) for key in result["times"]})
    rows = []
    for workload in result["alone"]:
        for name in ("limit", "bigbatch_fit", "bigbatch_windows", "plain_keras", "keras_steps"):
            found = {number: result["times"].get(f"{workload}/{number}", [{}])[0] for number in numbers}
            each = {number: median_cpu(times, name) / number for number, times in found.items() if name in times}
            cells = [f"{each[number] / each[4]:.2f}" if number in each else "" for number in numbers]
            rows.append([workload, NAMES[name], *cells])
    return table(["CPU time per sample over that at K=4", "", *(f"K={number}" for number in numbers)], rows)


def marginal(result):
    """What one more micro-batch takes, from 4 to the most that were measured, over what the limit takes for it."""
    names, rows = [name for name in NAMES if not name.startswith(("rival", "limit_of", "twin"))], []
    for workload in result["alone"]:
        numbers = numbers_of(result, workload)
        if max(numbers) <= 4:
            continue
        few, many = (result["times"][f"{workload}/{number}"][0] for number in (4, max(numbers)))
        more = {name: median_cpu(many, name) - median_cpu(few, name) for name in names if name in many}
        rows.append([workload, *(f"{more[name] / more['limit']:.2f}" if name in more else "" for name in names)])
    return table(["CPU time of one more micro-batch", *map(NAMES.get, names)], rows)


def shared(result):
    """Two devices or two workers that share the micro-batches."""
    rows = []
    for place, found in result["shared"].items():
        for name in (each for each in NAMES if each in found["alone"]):
            times = [of_contender([found["times"]], name, clock) for clock in ("cpu", "wall")]
            rows.append([place, NAMES[name], *times, *sent(found["alone"][name])])
    header = ["micro-batches shared by", "", "CPU time", "wall time", "collectives", "bytes sent", "error"]
    return table(header, rows)


def sent(found):
    """Collectives, bytes that each worker sends over those of the gradients, and error."""
    if "raises" in found:
        return ["raises"] * 3
    cells = [str(found["collectives"]), f"{found['sent'] / found['gradients']:.2f}"] if "sent" in found else ["", ""]
    return [*cells, f"{found['error']:.0e}"]


def imports(result):
    bare, first_use = (statistics.median(each) * 1000 for each in zip(*result["import"]))
    return (
        f"`import bigbatch` after TensorFlow and Keras: {bare:.0f} ms; with `bigbatch.accumulate`: {first_use:.0f} ms."
    )


def truth(result):
    systems = list(dict.fromkeys(name for row in result["cases"].values() for name in row))
    rows = [[case, *(error_cell(row.get(name)) for name in systems)] for case, row in result["cases"].items()]
    header = ["error of the update", *(NAMES.get(name, name) for name in systems)]
    return f"{of_machine(result['facts'])}\n\n{table(header, rows)}"


def auto(result):
    """What "auto" and `plan` found under limits, and how they compare with plain Keras where there are none."""
    columns = ["found", "failed", "time over that size given", "its twin", "`plan`: largest", "predicted over its peak"]
    rows = [
        [
            *(name, str(found["size"]), str(found["failed"]), str(Ratio(*found["auto"])), str(Ratio(*found["twin"]))),
            *(str(found["plan"]["largest"]), f"{found['plan']['accuracy']:.2f}", f"{found['plan']['seconds']:.0f}"),
        ]
        for name, found in result["limited"].items()
    ]
    with_room = [
        [
            name,
            str(Ratio(*found["auto"])),
            f"{Ratio(*found['planned'])}, of {found['size']}",
            str(Ratio(*found["twin"])),
        ]
        for name, found in result["with_room"].items()
    ]
    header = ["of plain Keras' CPU time", '`"auto"`', "`plan`'s choice", "plain Keras' twin"]
    tables = [table(["limit", *columns, "seconds"], rows), table(header, with_room)]
    return "\n\n".join([of_machine(result["facts"]), *tables])


def error_cell(found):
    if found is None:
        return "-"
    return found if isinstance(found, str) else f"{found:.0e}"


SECTIONS = {
    "goals": ("compare.json", summary),
    "truth": ("truth.json", truth),
    "compare": ("compare.json", comparison),
    "auto": ("auto.json", auto),
}


def draw(result, path):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    workloads = list(result["alone"])
    figure, axes = pyplot.subplots(1, len(workloads), figsize=(3.2 * len(workloads), 3), sharey=True, squeeze=False)
    for ax, workload in zip(axes[0], workloads):
        for name in ("limit", "bigbatch_fit", "bigbatch_windows", "plain_keras", "keras_steps", "tutorial"):
            points = {
                number: over_limit(result["times"][f"{workload}/{number}"][0], name, "cpu")
                for number in numbers_of(result, workload)
            }
            points = {number: found.median for number, found in points.items() if found}
            style = {"color": "black", "linewidth": 1} if name == "limit" else {"marker": "o", "markersize": 3}
            ax.plot(list(points), list(points.values()), label=NAMES[name].replace("*", "").replace("`", ""), **style)
        ax.set(title=workload, xscale="log", yscale="log", xlabel="micro-batches")
    axes[0][0].set_ylabel("CPU time over the limit")
    axes[0][-1].legend(fontsize=6)
    figure.savefig(path, dpi=110, bbox_inches="tight")


def main(folder, page=None):
    for name, (file, show) in SECTIONS.items():
        path = Path(folder) / file
        if not path.exists():
            continue
        result = json.loads(path.read_text())
        if name == "compare":
            draw(result, path.with_suffix(".png"))
        if page is None:
            print(show(result), "\n")
        else:
            put(show(result), name, Path(page))


def put(shown, name, page):
    def between(found):
        return f"{found[1]}\n{shown}\n\n{found[2]}"

    page.write_text(re.sub(rf"(<!-- {name} -->\n).*?(<!-- end -->)", between, page.read_text(), flags=re.DOTALL))


def of_machine(facts):
    versions = ", ".join(f"{name} {facts[name]}" for name in ("bigbatch", "keras", "tensorflow", "python"))
    machine = f"{facts['cores']} cores ({facts['machine']}), load {facts['load']:.1f} at the start"
    return f"*{facts['date']}: {versions}; {machine}.*"


if __name__ == "__main__":
    main(*sys.argv[1:])
