# Everything a person does here starts with `make`. The first run makes the machine ready (.ci/setup); later ones are quick.
#
#   VENV=.venv       the virtual environment to use
#   PYTHON=python3   the interpreter it is made from
#   PYTHONS=...      the interpreters that wheels are built for, and tested with
#   ARGS=...         arguments for demo, mininet, science and bench
#   JOBS=...         how many compilers run at once; C++ tests are three times as many
#   TEST_WORKERS=... how many files of Python tests run at once

VENV ?= .venv
PYTHON ?= python3
JOBS ?= $(shell nproc)

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
# Tests of time-outs do not share two cores with compilers.
.NOTPARALLEL:
export VENV PYTHON PYTHONS
export CMAKE_BUILD_PARALLEL_LEVEL := $(JOBS)
# C++ tests mostly wait, for timers and sockets.
export CTEST_PARALLEL_LEVEL := $(shell echo $$((3 * $(JOBS))))
export PATH := $(abspath $(VENV))/bin:$(PATH)
# Setup leaves it to the first import of a module to compile it.
unexport PYTHONDONTWRITEBYTECODE

py := $(VENV)/bin/python
cpp := $(shell find host_agent lab/wiresum_lab plugins soft_switch -name '*.cpp' -o -name '*.hpp')
cpp += $(wildcard host_agent/include/wiresum/*.h host_agent/examples/c/*.c host_agent/tests/*/*.c plugins/openmpi/*/*.[ch])
scripts := $(wildcard .ci/* controller/deploy/debian/p*)
# What an installation is made from; tests, examples and benchmarks are not part of it.
installed := pyproject.toml lab/pyproject.toml CMakeLists.txt $(shell find host_agent/include host_agent/src host_agent/python plugins/*/wiresum \
  plugins/openmpi/src plugins/nccl/src lab/wiresum_lab soft_switch/src soft_switch/wiresum controller/wiresum p4src/wiresum/compiled host_agent/CMakeLists.txt \
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

# ---- using it ------------------------------------------------------------------------------------------------------

.PHONY: demo mininet science bench
demo: $(ready)-demo  ##! train on four workers through a software switch, and over Gloo
	$(py) -m wiresum_lab.demos.digits.demo $(ARGS)

mininet: $(ready)-mininet  ##! open Mininet on workers and switches (root); ARGS='train ...'
	$(py) -m wiresum_mininet $(ARGS)

science: $(ready)-demo  ##! run the compression experiments
	$(py) -m wiresum.experiments $(ARGS)

NAMES ?= dense sparse aggregators
bench: $(ready)-dev  ##! run benchmarks (most as root): NAMES='dense racks'; ARGS=--help lists them
	$(py) -m wiresum_lab.benchmarks $(NAMES) -- $(ARGS)

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
.PHONY: build-dev test test-all test-nightly sanitize sanitize-all
build-dev: $(ready)-dev  ##! build the C++ tests, in build/dev, and what Python needs of them
	cmake --preset dev -DPython_EXECUTABLE=$(abspath $(py)) >/dev/null
	cmake --build --preset dev

# Tests mostly wait: one file more at a time than there are compilers.
TEST_WORKERS ?= $(shell echo $$(($(JOBS) + 1)))
pytest = $(py) -m pytest --numprocesses $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder

test: build-dev  ##! run what tells whether something is broken, in minutes
	$(call run_ctest,build/dev,--label-exclude 'slow|nightly')
	$(pytest) -m 'not slow and not nightly'

test-all: build-dev sanitize  ##! run what decides about a change: with slow tests, sanitizers, short fuzz runs
	$(call run_ctest,build/dev,--label-exclude nightly)
	.ci/fuzz 5
	$(pytest) -m 'not nightly or unproved'

# At its end it writes down what it has seen, so that `make test-all` knows what has changed since.
test-nightly: build-dev sanitize-all  ##! run all there is, for hours
	$(py) -m wiresum_lab.tidy --jobs $(JOBS) --all
	$(call run_ctest,build/dev)
	.ci/fuzz 300
	$(py) -m pytest host_agent/tests/sim host_agent/tests/agent/test_lives.py --seeds 10000 --maxfail 10
	$(py) -m pytest plugins/nccl/tests -k random --seeds 10000 --maxfail 10
	$(pytest)
	$(py) -m wiresum_lab.soaks.cluster_soak --seconds 3600
	.ci/wheel
	.ci/deb
	.ci/wheels
	.ci/test-wheels
	$(py) -m wiresum_lab.suite.proofs

pure_tests := $(addprefix host_agent/tests/,numeric/numeric_test worker/worker_test schedule/schedule_test sim/sim_test \
  wire/packet_test transport/ethernet/ethernet_test) $(addprefix soft_switch/tests/,dataplane_test vectors_test)
# The longest first: they run side by side.
threaded_tests := $(if $(wildcard /usr/include/xdp/xsk.h),host_agent/tests/transport/xdp/xdp_test)
threaded_tests += host_agent/tests/stress/stress_test host_agent/tests/engine/engine_test host_agent/tests/session/session_test \
  soft_switch/tests/server_test host_agent/tests/transport/transport_test plugins/nccl/src/nccl_test
run_side_by_side = printf '$(1)/%s\n' $(2) | xargs -P $(JOBS) -I{} timeout $(call patience,1200) {} --gtest_brief=1

# NCCL's plug-in, called as NCCL does it: nccl_under BUILD,FLAGS.
nccl_under = WIRESUM_NCCL_LIBRARY=$(CURDIR)/build/$(1)/plugins/nccl/src/libnccl-net-wiresum.so WIRESUM_NCCL_FLAGS='-g1 $(2)' \
	$(py) -m pytest plugins/nccl/tests

# Python is not built with a sanitizer, so what the simulation's module needs of it is loaded first. What Python itself
# leaves behind is no leak of ours.
runtime = $(shell $(or $(CXX),c++) -print-file-name=$(1))
simulate_under_asan = \
	LD_PRELOAD='$(call runtime,libasan.so) $(call runtime,libubsan.so) $(call runtime,libstdc++.so)' \
	  ASAN_OPTIONS=detect_leaks=0 WIRESUM_SIM=$(CURDIR)/build/asan/host_agent/tests/sim \
	  $(py) -m pytest --numprocesses $(JOBS) --capture sys host_agent/tests/sim --seeds 20

sanitize: $(ready)-dev  ##! run what is pure, and the simulation, under ASan and UBSan, what has threads under TSan
	cmake --preset asan -DPython_EXECUTABLE=$(abspath $(py)) >/dev/null
	cmake --build --preset asan --target wiresum_sim $(notdir $(pure_tests))
	$(call run_side_by_side,build/asan,$(pure_tests))
	$(simulate_under_asan)
	cmake --preset tsan >/dev/null
	cmake --build --preset tsan --target $(notdir $(threaded_tests))
	$(call run_side_by_side,build/tsan,$(threaded_tests))

sanitize-all: $(ready)-dev  ##! run all C++ tests under both sanitizers, and the simulation
	cmake --preset asan -DPython_EXECUTABLE=$(abspath $(py)) >/dev/null
	cmake --build --preset asan
	$(call run_ctest,build/asan)
	$(simulate_under_asan)
	$(call nccl_under,asan,-fsanitize=address -fsanitize=undefined)
	cmake --preset tsan >/dev/null
	cmake --build --preset tsan
	$(call run_ctest,build/tsan)
	$(call nccl_under,tsan,-fsanitize=thread)

# ---- the code itself -----------------------------------------------------------------------------------------------

.PHONY: lint format constants
lint: $(ready)-dev  ##! check style, types, layers and C++
	$(VENV)/bin/ruff check --quiet .
	$(VENV)/bin/ruff format --quiet --check .
	$(VENV)/bin/mypy --no-error-summary
	$(VENV)/bin/lint-imports
	$(py) controller/wiresum/join/generate.py --check
	$(py) p4src/generate_constants.py --check
	$(py) p4src/wiresum/compiled/compile_program.py --check
	$(py) -m wiresum_lab.rules
	@echo "clang-format: $(words $(cpp)) files"
	@$(VENV)/bin/clang-format --dry-run -Werror $(cpp)
	$(py) -m wiresum_lab.tidy --jobs $(JOBS)
	@if command -v shellcheck >/dev/null; then shellcheck $(scripts); else echo "shellcheck is not here: scripts not checked"; fi

format: $(ready)-dev  ##! format Python and C++
	$(VENV)/bin/ruff check --quiet --fix-only .
	$(VENV)/bin/ruff format --quiet .
	@echo "clang-format: $(words $(cpp)) files"
	@$(VENV)/bin/clang-format -i $(cpp)

# What the generated files say how to change them.
constants: $(ready)-dev  ##! write what C++, Python and Lua have of p4src/constants.toml
	$(py) p4src/generate_constants.py

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

.PHONY: wheels deb release clean
wheels: $(ready)-dev  ##! build an sdist, and a wheel for each Python that is here
	.ci/wheels

deb: $(ready)-dev  ##! build a Debian package into dist, and try it
	.ci/wheel
	.ci/deb

release: $(ready)-dev  ##! check the tagged commit, build its packages, and try them: for an hour
	.ci/release

clean:  ##! remove what was built, not the virtual environment
	rm -rf build dist
	rm -f $(VENV)/.ready-*
	find host_agent plugins soft_switch controller p4src conformance bmv2_tests mininet lab science \
	  \( -name __pycache__ -o -name '*.so' \) -prune -exec rm -rf {} +
