# The site is built from the sources alone, in a virtual environment of its own: the package itself is not installed.
DOCS_VENV := build/docs-venv
DOCS_TOOLS = import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"])

.PHONY: docs
docs: $(DOCS_VENV)/.installed  ## Build the documentation as a site, in site/; any warning is an error
	$(DOCS_VENV)/bin/zensical build --clean --strict
	@echo "To read it: $(PYTHON) -m http.server --bind 127.0.0.1 --directory site 8000"

$(DOCS_VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(DOCS_VENV)
	$(DOCS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check $$($(PYTHON) -c '$(DOCS_TOOLS)')
	@touch $@
