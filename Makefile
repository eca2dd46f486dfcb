# Every target does its own set-up on a fresh clone; nothing but Python 3.11+ is needed.
PYTHON ?= python3
PY := .venv/bin/python
PIP := $(PY) -m pip --disable-pip-version-check --quiet
TESTS ?= tests
# A test that its own timeout does not end (a callback of a loop may swallow it) says where it hangs
# and ends its process, which is not started again: it would hang in the same place.
HANGS := --max-worker-restart 0 -o faulthandler_timeout=960 -o faulthandler_exit_on_timeout=true
PREFIX ?= $(HOME)/.local
# The suite starts a thousand processes: where the environment forbids it to keep compiled modules,
# each of them compiles all of ours again, which takes longer than everything else at its start.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help package setup setup-dev both install uninstall compile run test lint format check soak bench docs console lock clean
help: ## What each target does
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: .venv/.base compile ## The virtual environment for running, and nothing else
setup-dev: .venv/.base ## The virtual environment for contributing: all extras and tools
	@$(MAKE) --no-print-directory -j 2 both
both: .venv/.dev compile

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Quantum needs Python 3.11 or newer; say which with: make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv .venv

.venv/.base: requirements/base.lock pyproject.toml | .venv/bin/python
	$(PIP) install --require-hashes -r requirements/base.lock
	$(PIP) install --no-deps --no-build-isolation -e .
	@touch $@

.venv/.dev: requirements/dev.lock .venv/.base
	$(PIP) install --no-compile --require-hashes -r requirements/dev.lock
	@$(PY) -m compileall -qq -j 0 .venv/lib || true  # pip would do it on one core; what fails is no module of ours
	@touch $@

compile: .venv/.base ## Compile the hot modules with mypyc where a C compiler is there
	@$(PY) tools/compile_hot.py

run: setup ## Start a development broker on this machine, durable under ./var
	@.venv/bin/quantum up

package: setup ## Wheels into dist/: one with compiled hot modules, one of plain Python
	@PYTHONPATH=$(CURDIR) $(PY) -m tools.package

install: setup ## Put `quantum` and `slipstream` on the PATH: PREFIX/bin, by default ~/.local/bin
	@mkdir -p "$(PREFIX)/bin"
	@for name in quantum slipstream; do ln -sf "$(CURDIR)/.venv/bin/$$name" "$(PREFIX)/bin/$$name"; done
	@echo "installed in $(PREFIX)/bin: quantum, slipstream"
	@case ":$$PATH:" in *":$(PREFIX)/bin:"*) ;; *) echo "it is not on your PATH yet: export PATH=\"$(PREFIX)/bin:\$$PATH\"" ;; esac

uninstall: ## Take them off again
	rm -f "$(PREFIX)/bin/quantum" "$(PREFIX)/bin/slipstream"

# Units wait for disks, clusters for elections: side by side they fill two cores. The units give way,
# so that a cluster's clocks go as if it were alone. What is judged by its own time runs alone.
RUN := $(PY) -m pytest $(HANGS)
UNITS := $(RUN) $(TESTS) -n 3 --dist worksteal -m "not soak" --ignore tests/interop --ignore tests/slipstream/test_clustor_kill.py --junitxml build/tests/units.xml
REAL := $(RUN) tests/interop tests/slipstream/test_clustor_kill.py -n 4 --dist loadfile --no-loadscope-reorder -m "not soak and not quiet" --junitxml build/tests/real.xml
QUIET := $(RUN) tests/interop -m "quiet and not soak" --junitxml build/tests/quiet.xml
PLAIN := QUANTUM_PURE=1 $(RUN) tests/clustor/log tests/quantum/mqtt tests/quantum/kafka/test_hot.py tests/quantum/protocols -k "formats or vectors or fuzz or golden or test_log or hot" -n 2 -q -m "not soak" --junitxml build/tests/plain.xml

test: setup-dev check ## Lint, types, walls, and the whole suite on the compiled and the plain sources
	@rm -rf build/tests && mkdir -p build/tests
ifdef ONE_BY_ONE
	$(REAL)
	$(UNITS)
else
	@echo "units beside real processes; what the units say comes after, and is in build/tests/units.log"
	@nice -n 5 $(UNITS) >build/tests/units.log 2>&1 & units=$$!; trap "kill $$units" INT TERM; \
	  $(REAL); real=$$?; wait $$units; units=$$?; cat build/tests/units.log; test "$$units $$real" = "0 0"
endif
	$(QUIET)
	$(PLAIN)
	@$(PY) tools/slowest.py build/tests

check: setup-dev lint ## ruff, mypy and import-linter alone
lint:
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/mypy --num-workers 2
	.venv/bin/lint-imports --no-cache

format: setup-dev ## Let ruff format and mend
	.venv/bin/ruff format .
	.venv/bin/ruff check --fix .

SEEDS := .venv/bin/quantum sim --seeds 10000 --processes 2

soak: setup-dev ## The long runs: 10,000 seeds of each world, 100,000 crash states, a million fuzzed inputs
	$(SEEDS)
	$(SEEDS) --broker
	$(SEEDS) --streams
	$(PY) -m pytest $(TESTS) -m soak --timeout 0

bench: setup-dev ## Print the benchmark tables, each beside a peer in the same run
	@for bench in log raft rounds large_writes slipstream topics control mqtt streams kafka amqp_engine lake; do $(PY) -m bench.$$bench; done

.venv/.docs: requirements/docs.lock | .venv/bin/python
	$(PIP) install --require-hashes -r requirements/docs.lock
	@touch $@

docs: .venv/.docs ## Build the book under ./site, every link checked
	NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --strict
	@echo "the book is in site/index.html"

console: setup ## Build the console anew from console/ (npm is needed; nothing else needs it)
	cd console && npm ci --no-audit --no-fund && npm run types && npm run build
	@$(PY) tools/pack_console.py

lock: setup-dev ## Resolve the pinned dependencies anew
	$(PIP) install uv
	.venv/bin/uv pip compile --quiet --universal --generate-hashes --no-header --python-version 3.11 \
	  --no-emit-index-url --group build pyproject.toml -o requirements/base.lock
	.venv/bin/uv pip compile --quiet --universal --generate-hashes --no-header --python-version 3.11 \
	  --no-emit-index-url --all-extras --group dev -c requirements/base.lock pyproject.toml -o requirements/dev.lock
	.venv/bin/uv pip compile --quiet --universal --generate-hashes --no-header --python-version 3.11 \
	  --no-emit-index-url --group docs -c requirements/base.lock -c requirements/dev.lock -o requirements/docs.lock

clean: ## Remove everything that was built
	rm -rf .venv build dist site .hot-stamp src/*.egg-info
	find src -name '*.so' -delete
