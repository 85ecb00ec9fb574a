PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
export TF_CPP_MIN_LOG_LEVEL ?= 3

.PHONY: demo test test-matrix check format bench example-ray clean

demo: $(READY)  ## trains in memory that is too small, compares, and writes bigbatch-demo.html
	$(BIN)/python -m bigbatch demo --report bigbatch-demo.html

test: $(READY)  ## runs the test suite; fetches a browser into .browser/ if none is installed
	$(BIN)/python -m pytest -n 2 --dist loadgroup

test-matrix: $(READY)  ## runs the tests of custom loops on TensorFlow 1.14 to the newest; ROWS chooses some
	$(BIN)/python tests/matrix.py $(ROWS)

check: $(READY)  ## lints, checks formatting and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)  ## repairs what `check` can repair
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY)  ## prints time and memory against the bare loop
	$(BIN)/python benchmarks/overhead.py
	$(BIN)/python benchmarks/memory.py
	$(BIN)/python benchmarks/auto.py
	$(BIN)/python benchmarks/embedding.py
	$(BIN)/python benchmarks/loops.py
	$(BIN)/python benchmarks/coupled.py
	$(BIN)/python benchmarks/distributed.py

example-ray: $(READY)  ## installs Ray and trains with two of its workers
	$(BIN)/python -m pip install --quiet --editable '.[ray]'
	$(BIN)/python examples/ray_train.py

clean:
	rm -rf $(VENV) .browser .matrix build dist

$(READY): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "bigbatch needs Python 3.10 or later: make PYTHON=...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@
