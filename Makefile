# Every command sets itself up: the first run creates .venv, later runs install nothing.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: train test test-oracle test-faults test-clients bench coverage lint format clean

# Until CartPole is solved; films, a curve and checkpoints are in runs/CartPole-v1.
train: .venv/installed
	$(BIN)/envfleet train CartPole-v1 --preset fast --until-solved --record-every 40000

# In parallel, for tests mostly wait; then, one by one, those that measure the machine.
test: .venv/installed
	@failed=0; \
	$(BIN)/python -m pytest -m "not full and not alone" -n auto --dist worksteal || failed=1; \
	$(BIN)/python -m pytest -m "alone and not full" || failed=1; \
	exit $$failed

# The conformance tests on Gymnasium's own engines: is what we compare with what we think it is?
test-oracle: .venv/installed
	$(BIN)/python -m pytest tests/test_conformance.py --engines=gymnasium -n auto

test-faults: .venv/installed
	$(BIN)/python -m pytest tests/faults -m "full or not full" -n 8

# Other libraries on our fleets, in an environment of their own, for they ask for older versions of
# what we run on. It installs much, so that it is no part of .ci/run.
test-clients: .venv-clients/installed
	.venv-clients/bin/python -m pytest tests/clients

# The last two show native engines beside Gymnasium's.
bench: .venv/installed
	$(BIN)/envfleet bench
	$(BIN)/envfleet bench CartPole-v1 --num-envs 512 --engines 'envfleet native' 'Gymnasium sync' 'Gymnasium async'
	$(BIN)/envfleet bench Breakout-84x84x4-gymnasium --num-envs 32 --engines limit 'envfleet native' 'Gymnasium async'

# Branches of src that the suite takes, worker processes included; in .coverage/html line by line.
# Without the tests marked `alone` (a traced machine is not the one that they measure) or `untraced`.
# What workers that were killed while they saved have left cannot be combined: that is said, once.
coverage: .venv/installed
	rm -rf .coverage && mkdir .coverage
	@failed=0; \
	$(BIN)/coverage run -m pytest -m "not full and not alone and not untraced" \
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

# XuanCe without what it asks for, and what importing it takes.
.venv-clients/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-clients
	.venv-clients/bin/pip install --quiet --constraint constraints.txt --editable '.[atari,testing]' \
		pytest pytest-xdist torch pyglet==1.5.15 PyYAML scipy tensorboard tqdm wandb
	.venv-clients/bin/pip install --quiet --no-deps xuance==1.4.4
	touch $@
