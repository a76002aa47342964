# Each target creates .venv and installs what is missing (tools/bootstrap.py).
PYTHON ?= python3
PORT ?= 8888
LESSONS ?=
VENV_PYTHON := .venv/bin/python

.DEFAULT_GOAL := help
.PHONY: help lab test site render lint

help: ## show this list
	@echo "The grouped GEMM course"
	@echo
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1|\2/p' Makefile | awk -F'|' '{ printf "%-14s %s\n", $$1, $$2 }'
	@echo
	@echo "  Variables: PORT=$(PORT)  PYTHON=$(PYTHON)  LESSONS=\"03 05\" (render)"

lab: ## open your copy of the course in JupyterLab (PORT=8888, or the next free one)
	@$(PYTHON) tools/bootstrap.py lab
	@$(VENV_PYTHON) tools/lab.py $(PORT)

test: ## run ruff, the unit tests, every notebook and the browser test
	@$(PYTHON) tools/bootstrap.py test
	@$(VENV_PYTHON) tools/run_tests.py

site: ## build the course's website in site/_build/html, from the stored notebooks
	@$(PYTHON) tools/bootstrap.py site
	@$(VENV_PYTHON) tools/make_site.py

render: ## execute the lesson sources into notebooks/ (LESSONS="03 05" for some)
	@$(PYTHON) tools/bootstrap.py test
	@$(VENV_PYTHON) tools/render.py $(LESSONS)

lint: ## format the code and repair what ruff can repair
	@$(PYTHON) tools/bootstrap.py test
	@$(VENV_PYTHON) -m ruff check --fix .
	@$(VENV_PYTHON) -m ruff format .
