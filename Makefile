# make ui         set up once, then open the page (ARGS="--port 7900" goes to `dflash-lab ui`)
# make test       the fast tests, browser included      make test-all   the slow ones too
# make lint       ruff                                  make screenshots  the pictures in docs/
# make notebooks  executes them in a temporary folder  ARGS=--save writes the outputs back
# PYTHON names the interpreter that makes the environment, VENV the folder it is made in.

PYTHON ?= python3
VENV ?= .venv
ARGS ?=
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
FONTS := fonts-noto-core fonts-noto-cjk fonts-noto-color-emoji fonts-dejavu

.PHONY: ui test test-all lint notebooks browser screenshots
.DELETE_ON_ERROR:

ui: $(VENV)/.ui
	@$(BIN)/dflash-lab models bundled --fetch >/dev/null
	@$(BIN)/dflash-lab ui $(ARGS)

test: $(VENV)/.dev browser
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not slow" $(ARGS)

test-all: $(VENV)/.ray browser
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(ARGS)

lint: $(VENV)/.dev
	@$(BIN)/ruff check .

notebooks: $(VENV)/.dev
	@OMP_NUM_THREADS=1 $(BIN)/python notebooks/run.py $(ARGS)

screenshots: $(VENV)/.dev browser
	$(BIN)/dflash-lab models bundled --fetch
	$(BIN)/python docs/shoot.py

# torch goes first and by exact version: an open range may resolve to another build, gigabytes larger.
$(VENV)/.torch: constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Python 3.11 or newer is needed; name one: make PYTHON=python3.12" >&2; exit 1; }
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	@echo "installing $$(grep '^torch==' constraints.txt)" >&2
	@$(PIP) "$$(grep '^torch==' constraints.txt)" -c constraints.txt
	@touch $@

$(VENV)/.ui: $(VENV)/.torch pyproject.toml
	@echo "installing dflash-lab" >&2
	@$(PIP) --editable '.[ui]' -c constraints.txt
	@touch $@

$(VENV)/.dev: $(VENV)/.torch pyproject.toml
	@echo "installing dflash-lab with what its tests need" >&2
	@$(PIP) --editable '.[ui,notebook,dev]' -c constraints.txt
	@$(PIP) --no-deps dflash -c constraints.txt
	@touch $@ $(VENV)/.ui

# Ray is 80 MB that only a slow test needs.
$(VENV)/.ray: $(VENV)/.dev
	@$(PIP) --editable '.[ray]' -c constraints.txt
	@touch $@

browser:
	@command -v chromium >/dev/null || { \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    echo "installing chromium and fonts" >&2; \
	    { apt-get update -q && DEBIAN_FRONTEND=noninteractive \
	      apt-get install -q -y --no-install-recommends chromium $(FONTS); } >&2; \
	  else \
	    echo "the browser tests need chromium: apt-get install chromium $(FONTS)," \
	      "or leave them out: $(BIN)/python -m pytest -m 'not browser and not slow'" >&2; \
	    exit 1; \
	  fi; }
