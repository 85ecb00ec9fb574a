"""Tables and pictures of what `compare.py` and `truth.py` have found.

python benchmarks/report.py FOLDER      # of results; prints Markdown, and writes the pictures there
"""

import json
import statistics
import sys
from pathlib import Path

NAMES = {
    "limit": "the limit: a bare loop",
    "plain_keras": "plain Keras, whole batch",
    "bigbatch_fit": "**bigbatch**, `micro_batch_size`",
    "bigbatch_windows": "**bigbatch**, `batches_per_update`",
    "bigbatch_loop": "**bigbatch**, `GradientAccumulator`",
    "keras_steps": "Keras, `gradient_accumulation_steps`",
    "tutorial": "a `tf.function` loop from a tutorial",
    "rival_model": "gradient-accumulator, model",
    "rival_optimizer": "gradient-accumulator, optimizer",
}


def table(header, rows):
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def ratio(times, name, clock):
    """Median and quartiles of the ratios to the limit in each round; "raises" for a group that did not get that far."""
    if name not in times:
        return None
    ratios = sorted(mine / theirs for mine, theirs in zip(times[name][clock], times["limit"][clock]))
    quarter = len(ratios) // 4
    return statistics.median(ratios), ratios[quarter], ratios[-1 - quarter]


def cell(found):
    return "" if found is None else f"{found[0]:.2f} ({found[1]:.2f}-{found[2]:.2f})"


def of_contender(groups, name, clock):
    for times in groups:
        if "raises" not in times and (name != "limit" or times is groups[0]) and ratio(times, name, clock):
            return cell(ratio(times, name, clock))
    return "raises" if any("raises" in times for times in groups) else ""


def comparison(result):
    """One table per workload, and one of the growth with the number of micro-batches."""
    parts = []
    for workload, alone in result["alone"].items():
        numbers = [key.split("/")[1] for key in result["times"] if key.startswith(f"{workload}/")]
        header = [
            workload,
            *(f"CPU time, K={number}" for number in numbers),
            "wall time",
            "peak",
            "first",
            "graph",
            "error",
        ]
        rows = []
        for name, label in NAMES.items():
            if name not in alone and name != "limit":
                continue
            cells = [of_contender(result["times"][f"{workload}/{number}"], name, "cpu") for number in numbers]
            wall = of_contender(result["times"][f"{workload}/{numbers[-1]}"], name, "wall")
            rows.append([label, *cells, wall, *measured(alone, name)])
        parts.append(table(header, rows))
    return "\n\n".join([*parts, growth(result)])


def measured(alone, name):
    """Peak over the floor, first update over plain Keras', operations, and error."""
    found = alone[name]
    if "raises" in found:
        return ["raises"] * 4
    first = found["first"] / alone["plain_keras"]["first"]
    peak = found["peak"] / alone["floor"]["peak"]
    return [f"{peak:.2f}", f"{first:.2f}", str(found["operations"]), f"{found['error']:.0e}"]


def growth(result):
    """Seconds per sample over those at 4 micro-batches."""
    numbers = sorted({int(key.split("/")[1]) for key in result["times"]})
    rows = []
    for workload in result["alone"]:
        for name in ("limit", "bigbatch_fit", "bigbatch_windows", "plain_keras", "keras_steps"):
            found = {number: result["times"].get(f"{workload}/{number}", [{}])[0].get(name) for number in numbers}
            each = {number: statistics.median(times["cpu"]) / number for number, times in found.items() if times}
            cells = [f"{each[number] / each[4]:.2f}" if number in each else "" for number in numbers]
            rows.append([workload, NAMES[name], *cells])
    return table(["CPU time per sample over that at K=4", "", *(f"K={number}" for number in numbers)], rows)


def truth(result):
    systems = list(dict.fromkeys(name for row in result["cases"].values() for name in row))
    rows = [[case, *(error_cell(row.get(name)) for name in systems)] for case, row in result["cases"].items()]
    return table(["error of the update", *(NAMES.get(name, name) for name in systems)], rows)


def error_cell(found):
    if found is None:
        return "-"
    return found if isinstance(found, str) else f"{found:.0e}"


def draw(result, path):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    workloads = list(result["alone"])
    figure, axes = pyplot.subplots(1, len(workloads), figsize=(3.2 * len(workloads), 3), sharey=True, squeeze=False)
    for ax, workload in zip(axes[0], workloads):
        for name in ("limit", "bigbatch_fit", "bigbatch_windows", "plain_keras", "keras_steps", "tutorial"):
            points = {
                int(key.split("/")[1]): ratio(groups[0], name, "cpu")
                for key, groups in result["times"].items()
                if key.startswith(f"{workload}/") and "raises" not in groups[0]
            }
            points = {number: found[0] for number, found in points.items() if found}
            style = {"color": "black", "linewidth": 1} if name == "limit" else {"marker": "o", "markersize": 3}
            ax.plot(list(points), list(points.values()), label=NAMES[name].replace("*", "").replace("`", ""), **style)
        ax.set(title=workload, xscale="log", yscale="log", xlabel="micro-batches")
    axes[0][0].set_ylabel("CPU time over the limit")
    axes[0][-1].legend(fontsize=6)
    figure.savefig(path, dpi=110, bbox_inches="tight")


def main():
    folder = Path(sys.argv[1])
    for name, show in (("compare", comparison), ("truth", truth)):
        path = folder / f"{name}.json"
        if path.exists():
            result = json.loads(path.read_text())
            print(json.dumps(result["facts"]), "\n\n" + show(result) + "\n")
            if name == "compare":
                draw(result, folder / "compare.png")


if __name__ == "__main__":
    main()
