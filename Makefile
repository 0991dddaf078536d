# Everything a person does here starts with `make`. The first run makes the machine ready (.ci/setup); later ones are quick.
#
#   VENV=.venv       the virtual environment to use
#   PYTHON=python3   the interpreter it is made from
#   PYTHONS=...      the interpreters that wheels are built for, and tested with
#   ARGS=...         arguments for the demos, mininet, scale and bench
#   JOBS=...         how many compilers and C++ tests run at once
#   TEST_WORKERS=... how many files of Python tests run at once

VENV ?= .venv
PYTHON ?= python3
JOBS ?= $(shell nproc)
FUZZ_SECONDS ?= 300
SOAK_SEEDS ?= 10000
ASAN_SEEDS ?= 20

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
# Tests of time-outs do not share two cores with compilers.
.NOTPARALLEL:
export VENV PYTHON PYTHONS
export CMAKE_BUILD_PARALLEL_LEVEL := $(JOBS)
export CTEST_PARALLEL_LEVEL := $(JOBS)
export PATH := $(abspath $(VENV))/bin:$(PATH)
# Setup leaves it to the first import of a module to compile it.
unexport PYTHONDONTWRITEBYTECODE

py := $(VENV)/bin/python
code := host_agent plugins soft_switch controller p4src bmv2_tests mininet lab science
cpp := $(shell find host_agent plugins soft_switch -name '*.cpp' -o -name '*.hpp')
cpp += $(wildcard host_agent/include/wiresum/*.h host_agent/examples/c/*.c host_agent/tests/*/*.c plugins/openmpi/*/*.[ch])
scripts := $(wildcard .ci/* controller/deploy/debian/p*)
# What an installation is made from; tests, examples and benchmarks are not part of it.
installed := pyproject.toml lab/pyproject.toml CMakeLists.txt $(shell find host_agent/include host_agent/src host_agent/python plugins/*/wiresum \
  plugins/openmpi/src lab/wiresum_lab soft_switch/src soft_switch/wiresum controller/wiresum p4src/wiresum/compiled host_agent/CMakeLists.txt \
  soft_switch/CMakeLists.txt -type f \
  \( -name '*.[ch]' -o -name '*.[ch]pp' -o -name CMakeLists.txt -o -name '*.cmake' -o -name '*.py' -o -name '*.pyi' \
  -o -name 'py.typed' -o -name '*.map' -o -name '*.in' \))

.PHONY: help
help:
	@awk -F ':.*##! ' '/^[a-z0-9-]+:.*##! / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# ---- a ready machine -----------------------------------------------------------------------------------------------

ready := $(VENV)/.ready

$(ready)-demo: .ci/setup .ci/probes.sh $(installed)
	.ci/setup demo
	@touch $@

$(ready)-mininet: .ci/setup .ci/probes.sh $(installed)
	.ci/setup mininet
	@touch $@ $(ready)-demo

$(ready)-dev: .ci/setup .ci/probes.sh $(installed)
	.ci/setup dev
	@touch $@ $(ready)-mininet $(ready)-demo

$(ready)-bench: .ci/setup .ci/probes.sh $(installed)
	.ci/setup bench
	@touch $@ $(ready)-dev $(ready)-mininet $(ready)-demo

# ---- using it ------------------------------------------------------------------------------------------------------

.PHONY: demo mininet demo-bmv2 demo-racks demo-clicks science scale shell bench bench-gpu
demo: $(ready)-demo  ##! train on four workers through a software switch, and over Gloo
	$(py) -m wiresum_lab.demos.digits.demo $(ARGS)

mininet: $(ready)-mininet  ##! open Mininet on workers and switches (root); ARGS='train ...'
	$(py) -m wiresum_mininet $(ARGS)

demo-bmv2: $(ready)-dev  ##! train through bmv2 (root; needs simple_switch_grpc)
	$(py) -m wiresum_lab.demos.bmv2_demo $(ARGS)

demo-racks: $(ready)-mininet  ##! train in two racks below a spine (root)
	$(py) -m wiresum_mininet train --topology racks --gloo --switch software --rate 100 --epochs 30 \
	  --width 32 --no-captures --output build/demo-racks $(ARGS)

science: $(ready)-demo  ##! run the compression experiments
	$(py) -m wiresum.experiments $(ARGS)

demo-clicks: $(ready)-dev  ##! train a recommendation model with sparse embeddings (root)
	$(py) -m wiresum_lab.demos.clicks_demo $(ARGS)

scale: $(ready)-dev  ##! simulate sums of up to 4,096 workers: ARGS=--help
	cmake --preset dev -DPython_EXECUTABLE=$(abspath $(py)) >/dev/null
	cmake --build --preset dev --target wiresum_sim
	$(py) -m wiresum_lab.benchmarks.scale $(ARGS)

shell: $(ready)-dev  ##! open p4runtime-shell on a switch: ARGS='--p4runtime HOST:PORT'
	$(py) -m wiresum_lab.p4runtime_shell $(ARGS)

NAMES ?= dense sparse compress aggregators
bench: $(ready)-bench  ##! run benchmarks (root): NAMES='dense racks'; ARGS=--help lists them
	$(py) -m wiresum_lab.benchmarks $(NAMES) $(ARGS)

bench-gpu: $(ready)-demo  ##! test and measure tensors on this machine's GPU; TORCH=... chooses its PyTorch
	$(py) -m pip install --quiet pytest pytest-timeout
	$(py) -m wiresum_lab.benchmarks.gpu $(ARGS)

# ---- tests ---------------------------------------------------------------------------------------------------------

# run_ctest BUILD,OPTIONS: says how many tests passed, and shows those that did not. A run that hangs is ended, and says
# which tests had not. TEST_PATIENCE makes every time-out as many times longer as this machine is slower than a quiet one.
patience = $$($(PYTHON) lab/wiresum_lab/slowness.py $(1))
define run_ctest
@echo "ctest: $(1) $(2)"
@timeout --kill-after 10 $(call patience,1200) ctest --test-dir $(1) --no-tests=error --timeout $(call patience,180) $(2) \
  --output-on-failure \
  >$(1)/ctest.log 2>&1 || { grep -v -E '( Passed |^ +Start )' $(1)/ctest.log; \
  awk '/^ +Start +[0-9]+:/ { split($$2, n, ":"); began[n[1]] = $$0 } / Test +#[0-9]+:/ { match($$0, /#[0-9]+/); \
  delete began[substr($$0, RSTART + 1, RLENGTH - 1)] } END { for (id in began) print "did not end:" began[id] }' \
  $(1)/ctest.log; false; }
@grep -E 'tests passed' $(1)/ctest.log || echo 'none is here'
endef

# The tiers: CONTRIBUTING.md. Each has all that the one before has, and no test is in none.
.PHONY: test test-all test-nightly test-cpp test-cpp-slow test-cpp-nightly test-python test-quick test-slow times build-dev
.PHONY: sanitize asan asan-all tsan tsan-all fuzz fuzz-short soak
test: test-cpp test-quick  ##! run what tells whether something is broken, in minutes

test-all: test-cpp-slow sanitize fuzz-short test-slow  ##! run what decides about a change: with slow tests, sanitizers, short fuzz runs

# At its end it writes down what it has seen, so that `make test-all` knows what has changed since.
test-nightly: lint-tidy-all test-cpp-nightly asan-all tsan-all fuzz soak test-python soak-cluster deb wheels test-wheels  ##! run all there is, for hours
	$(py) -m wiresum_lab.suite.proofs

build-dev: $(ready)-dev
	cmake --preset dev -DPython_EXECUTABLE=$(abspath $(py)) >/dev/null
	cmake --build --preset dev

test-cpp: build-dev  ##! run the C++ tests, but slow ones
	$(call run_ctest,build/dev,--label-exclude 'slow|nightly')

test-cpp-slow: build-dev
	$(call run_ctest,build/dev,--label-exclude nightly)

test-cpp-nightly: build-dev
	$(call run_ctest,build/dev)

# They mostly wait: one file more at a time than there are compilers. So NumPy needs no threads of its own.
TEST_WORKERS ?= $(shell echo $$(($(JOBS) + 1)))
test-python test-quick test-slow times: export OPENBLAS_NUM_THREADS = 1
pytest = $(py) -m pytest --numprocesses $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)
test-python: build-dev  ##! run all Python tests, or those of PYTEST_ARGS='-k join'
	$(pytest)

test-quick: build-dev
	$(pytest) -m 'not slow and not nightly'

test-slow: build-dev
	$(pytest) -m 'not nightly or unproved'

times: build-dev  ##! measure the tests of PYTEST_ARGS, or all, for lab/tests/times.toml; the machine must be quiet
	$(pytest) --write-times

# What is pure, and the simulation, under ASan + UBSan; what has threads under TSan. `make asan-all` runs everything
# under ASan + UBSan.
sanitize: asan tsan

pure_tests := $(addprefix host_agent/tests/,numeric/numeric_test worker/worker_test schedule/schedule_test sim/sim_test \
  wire/packet_test transport/ethernet/ethernet_test) $(addprefix soft_switch/tests/,dataplane_test vectors_test)
run_side_by_side = printf '$(1)/%s\n' $(2) | xargs -P $(JOBS) -I{} timeout $(call patience,1200) {} --gtest_brief=1

# Python is not built with a sanitizer, so what the simulation's module needs of it is loaded first. What Python itself
# leaves behind is no leak of ours.
runtime = $(shell $(or $(CXX),c++) -print-file-name=$(1))
asan: $(ready)-dev
	cmake --preset asan -DPython_EXECUTABLE=$(abspath $(py)) >/dev/null
	cmake --build --preset asan --target wiresum_sim $(notdir $(pure_tests))
	$(call run_side_by_side,build/asan,$(pure_tests))
	$(simulate_under_asan) $(ASAN_SEEDS)

asan-all: $(ready)-dev
	cmake --preset asan -DPython_EXECUTABLE=$(abspath $(py)) >/dev/null
	cmake --build --preset asan
	$(call run_ctest,build/asan)
	$(simulate_under_asan) $(ASAN_SEEDS)

simulate_under_asan = \
	LD_PRELOAD='$(call runtime,libasan.so) $(call runtime,libubsan.so) $(call runtime,libstdc++.so)' \
	  ASAN_OPTIONS=detect_leaks=0 WIRESUM_SIM=$(CURDIR)/build/asan/host_agent/tests/sim \
	  $(py) -m pytest --numprocesses $(JOBS) --capture sys host_agent/tests/sim --seeds

# The longest first: they run side by side.
threaded_tests := $(if $(wildcard /usr/include/xdp/xsk.h),host_agent/tests/transport/xdp/xdp_test)
threaded_tests += host_agent/tests/stress/stress_test host_agent/tests/engine/engine_test host_agent/tests/session/session_test \
  soft_switch/tests/server_test host_agent/tests/transport/transport_test
tsan: $(ready)-dev
	cmake --preset tsan >/dev/null
	cmake --build --preset tsan --target $(notdir $(threaded_tests))
	$(call run_side_by_side,build/tsan,$(threaded_tests))

# All C++ tests, whether they have threads or not.
tsan-all: $(ready)-dev
	cmake --preset tsan >/dev/null
	cmake --build --preset tsan
	$(call run_ctest,build/tsan)

fuzz: $(ready)-dev  ##! fuzz parser and state machines, FUZZ_SECONDS=300 each
	.ci/fuzz $(FUZZ_SECONDS)

fuzz-short: $(ready)-dev
	.ci/fuzz 5

soak: $(ready)-dev  ##! run the simulation, and the lives of whole jobs, with SOAK_SEEDS=10000 seeds
	cmake --preset dev -DPython_EXECUTABLE=$(abspath $(py)) >/dev/null
	cmake --build --preset dev --target wiresum_sim
	$(py) -m pytest host_agent/tests/sim host_agent/tests/agent/test_lives.py --seeds $(SOAK_SEEDS) --maxfail 10

SOAK_SECONDS ?= 3600

.PHONY: soak-cluster
soak-cluster: $(ready)-dev  ##! train under faults and attacks for SOAK_SECONDS=3600
	$(py) -m wiresum_lab.soaks.cluster_soak --seconds $(SOAK_SECONDS) $(ARGS)

# ---- the code itself -----------------------------------------------------------------------------------------------

.PHONY: lint lint-python lint-types lint-imports lint-cpp lint-tidy lint-tidy-all lint-proto lint-constants lint-p4 lint-shell format proto constants p4
lint: lint-python lint-types lint-imports lint-proto lint-constants lint-p4 lint-cpp lint-tidy lint-shell  ##! check style, types, layers and C++

lint-python: $(ready)-dev
	$(VENV)/bin/ruff check --quiet .
	$(VENV)/bin/ruff format --quiet --check .

lint-types: $(ready)-dev
	$(VENV)/bin/mypy --no-error-summary $(code)

lint-imports: $(ready)-dev
	$(VENV)/bin/lint-imports

lint-proto: $(ready)-dev
	$(py) controller/wiresum/join/generate.py --check

lint-constants: $(ready)-dev
	$(py) p4src/generate_constants.py --check

lint-p4:
	$(PYTHON) p4src/wiresum/compiled/compile_program.py --check

lint-cpp: $(ready)-dev
	@echo "clang-format: $(words $(cpp)) files"
	@$(VENV)/bin/clang-format --dry-run -Werror $(cpp)

lint-tidy: $(ready)-dev
	$(py) -m wiresum_lab.tidy --jobs $(JOBS)

# Those that are known to be clean, too.
lint-tidy-all: $(ready)-dev
	$(py) -m wiresum_lab.tidy --jobs $(JOBS) --all

lint-shell:
	@if command -v shellcheck >/dev/null; then shellcheck $(scripts); else echo "shellcheck is not here: scripts not checked"; fi

format: $(ready)-dev  ##! format Python and C++
	$(VENV)/bin/ruff check --quiet --fix-only .
	$(VENV)/bin/ruff format --quiet .
	@echo "clang-format: $(words $(cpp)) files"
	@$(VENV)/bin/clang-format -i $(cpp)

# Generates the Python messages from join.proto.
proto: $(ready)-dev
	$(py) controller/wiresum/join/generate.py

# Writes what C++, Python and Lua have of p4src/constants.toml.
constants: $(ready)-dev
	$(py) p4src/generate_constants.py

p4:  ##! compile the switch program with p4c
	$(PYTHON) p4src/wiresum/compiled/compile_program.py

# ---- documentation -------------------------------------------------------------------------------------------------

# Needs nothing of the rest, so it has an environment of its own.
docs_venv := build/docs-venv
$(docs_venv)/.ready: pyproject.toml
	$(PYTHON) -m venv $(docs_venv)
	$(docs_venv)/bin/python -m pip install --quiet --upgrade pip
	$(docs_venv)/bin/python -m pip install --quiet --group docs
	@touch $@

.PHONY: docs
docs: $(docs_venv)/.ready  ##! build the documentation as a site into build/docs, and check its links
	REPOSITORY_URL='$(REPOSITORY_URL)' NO_MKDOCS_2_WARNING=1 $(docs_venv)/bin/mkdocs build --strict

# ---- packages ------------------------------------------------------------------------------------------------------

.PHONY: wheel wheels test-wheels deb clean
wheel: $(ready)-dev  ##! build a wheel into dist, and try it
	.ci/wheel

wheels: $(ready)-dev  ##! build an sdist, and a wheel for each Python that is here
	.ci/wheels

# Runs the tests that need no PyTorch on the wheels in dist, with each Python that is here.
test-wheels:
	.ci/test-wheels $(PYTEST_ARGS)

deb: wheel  ##! build a Debian package into dist, and try it
	.ci/deb

clean:  ##! remove what was built, not the virtual environment
	rm -rf build dist
	rm -f $(VENV)/.ready-*
	find $(code) \( -name __pycache__ -o -name '*.so' \) -prune -exec rm -rf {} +
