# Short names for the scripts; each makes its own virtual environment in .venv the first time.
.PHONY: demo test check nightly bench sanitize wheel docs clean

demo:
	scripts/demo

test:
	scripts/test

check:
	scripts/check

nightly:
	scripts/nightly

bench:
	scripts/bench $(if $(BEFORE),--before $(BEFORE))

sanitize:
	scripts/sanitize

wheel:
	scripts/wheel

docs:
	scripts/setup docs
	"$${EDGERT_VENV:-.venv}/bin/python" tools/docs_site.py

clean:
	rm -rf .venv dist build out .mypy_cache .ruff_cache .pytest_cache .hypothesis
