PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Asked by the shell, because make expands a whole recipe before it runs the first line, which installs it.
RIVAL = $$(test -e .rival/.ready && echo .rival/bin/python)
export TF_CPP_MIN_LOG_LEVEL ?= 3

.PHONY: demo test test-matrix check format bench bench-quick example-ray clean

demo: $(READY)  ## trains in memory that is too small, compares, and writes bigbatch-demo.html
	$(BIN)/python -m bigbatch demo --report bigbatch-demo.html

test: $(READY)  ## runs the test suite; fetches a browser into .browser/ if none is installed
	$(BIN)/python -m pytest -n 3 --dist loadgroup  # of two cores, one waits: for memory, workers and time-outs

test-matrix: $(READY)  ## runs the tests of custom loops on TensorFlow 1.14 to the newest; ROWS chooses some
	$(BIN)/python tests/matrix.py $(ROWS)

check: $(READY)  ## lints, checks formatting and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)  ## repairs what `check` can repair
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY)  ## compares with everybody: time, memory and truth; hours, on an idle machine
	-$(MAKE) .rival/.ready  # where gradient-accumulator installs: Python 3.9 to 3.11
	$(BIN)/python benchmarks/compare.py --output benchmarks/results/compare.json --rival "$(RIVAL)"
	$(BIN)/python benchmarks/truth.py --output benchmarks/results/truth.json --rival "$(RIVAL)"
	$(BIN)/python benchmarks/auto.py --output benchmarks/results/auto.json
	$(BIN)/python benchmarks/report.py benchmarks/results docs/benchmarks.md
	$(BIN)/python benchmarks/coupled.py
	$(BIN)/python benchmarks/noise.py

bench-quick: $(READY)  ## whether the benchmarks run, in two minutes
	$(BIN)/python benchmarks/truth.py --quick & $(BIN)/python benchmarks/compare.py --quick && wait $$!

example-ray: $(READY)  ## installs Ray and trains with two of its workers
	$(BIN)/python -m pip install --quiet --editable '.[ray]'
	$(BIN)/python examples/ray_train.py

clean:
	rm -rf $(VENV) .browser .matrix .rival build dist

$(READY): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "bigbatch needs Python 3.10 or later: make PYTHON=...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@

.rival/.ready:
	$(PYTHON) -m venv .rival
	.rival/bin/python -m pip install --quiet 'tensorflow-cpu==2.15.1' 'numpy<2'
	.rival/bin/python -m pip install --quiet --no-deps 'gradient-accumulator==0.5.2'  # it asks for NumPy of 2022
	touch $@
