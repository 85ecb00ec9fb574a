"""The demo checks its own claims, and says which are broken."""

import json
from dataclasses import replace

import pytest
from canned import DISTANCES, MIB, RESULTS, changed

from bigbatch.cli.demo_results import COLUMNS, table

TOO_FAR = (*DISTANCES[:3], replace(DISTANCES[3], bigbatch=2e-4), *DISTANCES[4:])
BROKEN = {
    "plain_survives": (changed(starved=replace(RESULTS.plain, budget=64 * MIB)), "Plain Keras fits in 64 MiB"),
    "ours_too_large": (changed(budget=15 * MIB), "bigbatch needs more than 15 MiB"),
    "ours_dies": (changed(ours=replace(RESULTS.starved, name="bigbatch")), "bigbatch needs more than 64 MiB: OOM"),
    "far_in_between": (changed(distances=TOO_FAR), "The weights lie 2.0e-04 from plain Keras', not within 1e-04"),
    "never_compared": (changed(distances=()), "The weights lie inf"),
    "not_a_number": (changed(distances=(replace(DISTANCES[0], bigbatch=float("nan")),)), "The weights lie nan"),
}


def test_kept_promises_are_not_reported():
    assert RESULTS.broken_promises() == []


@pytest.mark.parametrize("name", BROKEN)
def test_broken_promises_are(name):
    results, message = BROKEN[name]
    [promise] = results.broken_promises()
    assert promise.startswith(message)


def test_the_table_has_a_row_per_run():
    rows = {cells[0]: dict(zip(COLUMNS[1:], cells[1:])) for cells in table(RESULTS)}
    assert rows["plain Keras, small budget"]["peak memory"] == "out of memory"
    assert rows["plain Keras, small budget"]["final loss"] == "-"
    assert rows["plain Keras, with room"] == {
        "memory budget": "-",
        "in memory at a time": "512 samples",
        "peak memory": "167.0 MiB",
        "per update": "0.40 s",
        "final loss": "0.25000",
        "accuracy": "90.0 %",
        "distance": "0",
    }
    assert rows["bigbatch, small budget"]["distance"] == "8.0e-08"
    assert rows["Keras' own accumulation"]["distance"] == "2.0e-02"


def test_results_are_json():
    read = json.loads(json.dumps(RESULTS.to_dict()))
    assert read["ours"]["updates"][-1]["samples"] == 3594
    assert read["broken_promises"] == []
