# Every command sets itself up: the first run creates .venv, later runs install nothing.
PYTHON ?= python3
BIN := .venv/bin
CLIENTS := .venv-clients

.PHONY: train test test-oracle test-faults test-ray test-clients test-report browser docs bench bench-train results \
	coverage lint format clean

# Until CartPole is solved; videos, a curve, a report and checkpoints are in runs/CartPole-v1.
train: .venv/installed
	$(BIN)/envfleet train CartPole-v1 --preset fast --until-solved --record-every 40000

# In parallel, for tests mostly wait; then, one by one, those that measure the machine; and those
# that share one Ray.
test: .venv/installed
	@failed=0; \
	$(BIN)/python -m pytest -m "not full and not alone and not ray" -n auto --dist worksteal || failed=1; \
	$(BIN)/python -m pytest -m "alone and not full" || failed=1; \
	$(BIN)/python -m pytest tests/cluster -m "ray and not full" || failed=1; \
	exit $$failed

# The conformance tests on Gymnasium's own engines: is what we compare with what we think it is?
test-oracle: .venv/installed
	$(BIN)/python -m pytest tests/test_conformance.py --engines=gymnasium -n auto

test-faults: .venv/installed
	$(BIN)/python -m pytest tests/faults -m "full or not full" -n 8

# Everything on Ray: the conformance tests, killed actors, lost nodes.
test-ray: .venv/installed
	@failed=0; \
	$(BIN)/python -m pytest tests/cluster -m ray || failed=1; \
	$(BIN)/python -m pytest tests/test_conformance.py --engines=ray || failed=1; \
	exit $$failed

# Other libraries on our fleets, in environments of their own, for some ask for older versions of what
# we run on. It installs much, so that it is no part of .ci/run. Their own warnings are not ours. Each has
# a process of its own: rl-zoo replaces Gymnasium's TimeLimit, and TorchRL changes the start method.
test-clients: $(CLIENTS)/common/installed $(CLIENTS)/xuance/installed $(CLIENTS)/rllib/installed
	@failed=0; \
	for library in rl_zoo skrl tianshou torchrl; do \
		$(CLIENTS)/common/bin/python -m pytest -W ignore tests/clients/test_$$library.py || failed=1; \
	done; \
	$(CLIENTS)/xuance/bin/python -m pytest tests/clients/test_xuance.py || failed=1; \
	$(CLIENTS)/rllib/bin/python -m pytest -W ignore tests/clients/test_rllib.py || failed=1; \
	exit $$failed

# The report in Debian's Chromium; screenshots of it are in build/report.
test-report: .venv/installed browser
	$(BIN)/python -m pytest tests/browser

# Installs what is missing where it may, else says what to install: no test is left out.
browser: .venv/installed
	@if ! command -v chromium >/dev/null || ! command -v chromedriver >/dev/null; then \
		install='apt-get install --yes chromium chromium-driver'; \
		if [ "$$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then \
			echo "make test-report needs a browser; as root: $$install" >&2; exit 1; \
		fi; \
		apt-get update && DEBIAN_FRONTEND=noninteractive $$install; \
	fi
	@$(BIN)/python -c 'import selenium' 2>/dev/null || $(BIN)/pip install --quiet selenium

# The site, in build/docs, from docs/ and the docstrings; needs no network. Warnings, among them links
# to pages or headings that do not exist, are errors.
docs: .venv/installed
	rm -rf build/docs
	$(BIN)/sphinx-build --fail-on-warning --keep-going --quiet --doctree-dir build/doctrees docs build/docs
	@! grep -rE '<(script|link|img|iframe)[^>]+(src|href)="(https?:)?//' build/docs --include='*.html' \
		|| { echo 'a page loads something from the network' >&2; exit 1; }
	@echo 'open build/docs/index.html'

# The last two show native engines beside Gymnasium's.
bench: .venv/installed
	$(BIN)/envfleet bench
	$(BIN)/envfleet bench CartPole-v1 --num-envs 512 --engines 'envfleet native' 'Gymnasium sync' 'Gymnasium async'
	$(BIN)/envfleet bench Breakout-84x84x4-gymnasium --num-envs 32 --engines limit 'envfleet native' 'Gymnasium async'

# Trains what docs/results.md shows; hours, but it can be stopped and goes on where it was.
results: .venv/installed
	$(BIN)/pip install --quiet --constraint constraints.txt -e '.[mujoco]'
	$(BIN)/python benchmarks/results.py

# Training beside Stable-Baselines3 and, in an environment of its own, SBX.
bench-train: .venv/installed $(CLIENTS)/sbx/installed
	$(BIN)/python benchmarks/train.py

# Branches of src that the suite takes, worker processes included; in .coverage/html line by line.
# Without the tests marked `alone` (a traced machine is not the one that they measure) or `untraced`.
# What workers that were killed while they saved have left cannot be combined: that is said, once.
coverage: .venv/installed
	rm -rf .coverage && mkdir .coverage
	@failed=0; \
	$(BIN)/coverage run -m pytest -m "not full and not alone and not ray and not untraced" \
		-n auto --dist worksteal || failed=1; \
	$(BIN)/coverage combine --quiet; \
	rm -f .coverage/data.*; \
	$(BIN)/coverage html --quiet && $(BIN)/coverage report || failed=1; \
	exit $$failed

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: .venv/installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv .venv-clients .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

$(CLIENTS)/common/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(CLIENTS)/common
	$(CLIENTS)/common/bin/pip install --quiet --constraint constraints.txt --editable '.[sb3,testing,tianshou]' \
		pytest pytest-xdist torch tianshou==2.0.1 torchrl==0.14.1 skrl==2.1.1 rl_zoo3==2.9.2
	touch $@

# XuanCe without what it asks for, and what importing it takes.
$(CLIENTS)/xuance/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(CLIENTS)/xuance
	$(CLIENTS)/xuance/bin/pip install --quiet --constraint constraints.txt --editable '.[atari,testing]' \
		pytest pytest-xdist torch pyglet==1.5.15 PyYAML scipy tensorboard tqdm wandb
	$(CLIENTS)/xuance/bin/pip install --quiet --no-deps xuance==1.4.4
	touch $@

# RLlib pins another Gymnasium.
$(CLIENTS)/rllib/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(CLIENTS)/rllib
	grep '^torch==' constraints.txt > $(CLIENTS)/torch.txt
	$(CLIENTS)/rllib/bin/pip install --quiet --constraint $(CLIENTS)/torch.txt --editable '.[testing]' \
		pytest pytest-xdist torch 'ray[rllib]==2.60.0'
	touch $@

$(CLIENTS)/sbx/installed: constraints.txt
	$(PYTHON) -m venv $(CLIENTS)/sbx
	$(CLIENTS)/sbx/bin/pip install --quiet --constraint constraints.txt torch 'gymnasium[box2d]' sbx-rl==0.28.0
	touch $@
