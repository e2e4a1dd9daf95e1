# make run    environment, then the whole pipeline on real data
# make test   environment, then the tests (make test-slow adds the long ones)
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
CONSTRAINTS ?= constraints.txt
PIP = $(BIN)/python -m pip install --quiet --constraint $(CONSTRAINTS)
# For make image and make test-images; docs/images.md explains them.
DOCKER_BUILD ?= docker build
BASE_IMAGE ?= python:3.11-slim-bookworm
TORCH_INDEX_URL ?= https://download.pytorch.org/whl/cpu
VERSION = $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' gpu_pipelines/__init__.py)
IMAGE ?= gpu-pipelines/steps:$(VERSION)
SERVING_IMAGE ?= $(subst /steps:,/serving:,$(IMAGE))
BUILD_ARGUMENTS = --build-arg BASE_IMAGE=$(BASE_IMAGE) --build-arg TORCH_INDEX_URL=$(TORCH_INDEX_URL) \
	--build-arg VERSION=$(VERSION) --build-arg REVISION=$(shell git rev-parse HEAD)

.PHONY: run test tests test-slow test-pages test-images test-terraform image serving-image lint bench bench-training bench-data bench-gpu compile docs site tutorials clean \
	check-tag check-workflows dist sbom release-compiled release-files test-wheel

run: $(VENV)/.steps
	$(BIN)/gpu-pipelines run train_evaluate_upload

# Lint has what the tests leave of two cores.
test: $(VENV)/.dev
	$(MAKE) --no-print-directory --jobs 2 lint tests

# Hundreds of processes of the tests import the packages; where PYTHONDONTWRITEBYTECODE is set, each would compile them,
# and each worker the tests.
tests: export PYTHONDONTWRITEBYTECODE =
tests: $(VENV)/.dev
	$(BIN)/python -m compileall -q gpu_pipelines components pipelines
	$(BIN)/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder -m "not slow"

test-slow: $(VENV)/.dev
	$(BIN)/python -m pytest -m "slow and not images and not terraform and not browser"

# The reports and the console at four widths, in Debian's chromium.
test-pages: $(VENV)/.dev
	$(BIN)/python -m pytest tests/reports tests/console -m browser

# The images of the steps and of the server for the CPU, and what runs in them; both need a Docker engine (DOCKER_HOST).
image:
	$(DOCKER_BUILD) --tag $(IMAGE) --file images/steps/Dockerfile $(BUILD_ARGUMENTS) .

serving-image:
	$(DOCKER_BUILD) --tag $(SERVING_IMAGE) --file images/serving/Dockerfile $(BUILD_ARGUMENTS) .

test-images: $(VENV)/.dev image serving-image
	IMAGE=$(IMAGE) SERVING_IMAGE=$(SERVING_IMAGE) $(BIN)/python -m pytest tests/images tests/compute_engine -m images

test-terraform: $(VENV)/.dev
	terraform fmt -check -recursive -diff terraform
	$(BIN)/python -m pytest tests/terraform tests/compute_engine -m terraform

# For macOS, where laptops are: what Linux alone has stands behind sys.platform.
# One run of mypy knows all that another would read again; the folders are those where the benchmarks' imports lie.
lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	MYPYPATH=benchmarks/training:tests:tests/fallback:tests/training $(BIN)/mypy --platform darwin gpu_pipelines components pipelines benchmarks/*.py benchmarks/*/*.py website/*.py
	rm -rf build/layers && mkdir -p build/layers && $(BIN)/python setup.py -q egg_info -e build/layers build -b build/layers --build-lib build/layers/lib && cd build/layers/lib && $(abspath $(BIN))/lint-imports --config $(CURDIR)/pyproject.toml

bench: $(VENV)/.bench bench-training bench-data
	$(BIN)/python benchmarks/local_pipeline.py
	$(BIN)/python benchmarks/accelerators_cli.py
	$(BIN)/python benchmarks/advice.py
	$(BIN)/python benchmarks/activations.py
	$(BIN)/python benchmarks/compile.py
	$(BIN)/python benchmarks/console.py
	$(BIN)/python benchmarks/evaluation.py
	$(BIN)/python benchmarks/benchmark_gates.py
	$(BIN)/python benchmarks/serving.py
	$(BIN)/python benchmarks/batch_prediction.py
	$(BIN)/python benchmarks/fallback_runs.py
	$(BIN)/python benchmarks/drift.py

# Hours on two cores; docs/benchmarks.md says how to run less of it.
bench-training: $(VENV)/.bench
	$(BIN)/python benchmarks/training/throughput.py
	$(BIN)/python benchmarks/training/checkpoint_cost.py
	$(BIN)/python benchmarks/training/tracking_overhead.py
	$(BIN)/python benchmarks/training/exact_resume.py --peer
	$(BIN)/python benchmarks/training/gpu_mfu.py
	$(BIN)/python benchmarks/training/language_model_memory.py
	$(BIN)/python benchmarks/training/tuning.py

# On a machine with NVIDIA GPUs: whether the engine trains right on them, then how fast; under 8 minutes on one.
bench-gpu: $(VENV)/.bench
	$(BIN)/python benchmarks/training/gpu.py

# Wants the machine for itself; docs/benchmarks.md says how to run less of it.
bench-data: $(VENV)/.bench
	$(BIN)/python benchmarks/data_prep/rates.py
	$(BIN)/python benchmarks/data_prep/memory.py
	$(BIN)/python benchmarks/data_prep/reading.py
	$(BIN)/python benchmarks/data_prep/compressed_images.py
	$(BIN)/python benchmarks/data_prep/streamed_images.py
	$(BIN)/python benchmarks/data_prep/duplicates.py
	$(BIN)/python benchmarks/data_prep/clusters.py

# The files of compiled/; make compile IMAGE=… writes those for an image of one's own to build/compiled.
compile: $(VENV)/.steps
	$(BIN)/gpu-pipelines compile --all $(if $(filter command,$(origin IMAGE)),--image $(IMAGE) --directory build/compiled)

# The READMEs of the components, from their interfaces, and the tables of accelerators, from the catalog.
docs: $(VENV)/.steps
	$(BIN)/python -m gpu_pipelines.component_interface.stubs
	$(BIN)/python -m gpu_pipelines.component_interface.readme
	$(BIN)/python -m gpu_pipelines.accelerators.document

# The documentation as pages in build/site. Its tutorials are run first, where they have changed since: minutes each.
site: $(VENV)/.dev build/mermaid.min.js $(patsubst docs/tutorials/%.ipynb,build/tutorials/%.ipynb,$(wildcard docs/tutorials/*.ipynb))
	$(BIN)/mkdocs build --strict
	$(BIN)/python website/check.py

# All of them once more, whatever has changed.
tutorials: $(VENV)/.dev
	$(BIN)/python website/tutorials.py

build/tutorials/%.ipynb: docs/tutorials/%.ipynb
	$(BIN)/python website/tutorials.py $*

# It draws the diagrams in the browser; a copy lies on the site, so that reading it asks nobody else.
build/mermaid.min.js:
	mkdir -p build
	cd build && npm pack --silent mermaid@11.16.0 && tar -xzOf mermaid-11.16.0.tgz package/dist/mermaid.min.js >mermaid.unchecked
	echo "74d7c46dabca328c2294733910a8aa1ed0c37451776e8d5295da38a2b758fb9b  build/mermaid.unchecked" | sha256sum --check --quiet
	mv build/mermaid.unchecked $@

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.steps: $(VENV)/bin/python setup.cfg setup.py $(CONSTRAINTS)
	@echo "installing into $(VENV), several GB: minutes in which pip prints nothing"
	$(PIP) --editable '.[steps]'
	touch $@

$(VENV)/.bench: $(VENV)/.steps
	$(PIP) --editable '.[steps,bench]'
	touch $@

# torchao lies apart: transformers would import it in every process that there is.
$(VENV)/.dev: $(VENV)/.steps
	$(PIP) --editable '.[steps,dev]'
	$(PIP) --no-deps --upgrade --target $(VENV)/torchao torchao
	touch $@

# What a release is made of; docs/releases.md explains it.
NOTES = awk '/^\#\# /{wanted=index($$0,"[$(VERSION)]"); next} wanted' CHANGELOG.md
check-tag:
	test "$(TAG)" = "v$(VERSION)" || { echo "The tag is $(TAG), but gpu_pipelines/__init__.py has $(VERSION)." >&2; exit 1; }
	$(NOTES) | grep -q . || { echo "CHANGELOG.md has no section [$(VERSION)]." >&2; exit 1; }

# From what is committed; the wheel is built from the sdist.
dist: $(VENV)/.dev
	rm -rf build/source dist && mkdir -p build/source && git archive HEAD | tar -x -C build/source
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(BIN)/python -m build --outdir dist build/source
	$(BIN)/python -m twine check --strict dist/*
	du -b dist/*

# The wheel in empty environments, on each Python that is here.
test-wheel: $(VENV)/.dev
	$(BIN)/python -m pytest tests/release -m slow

# What an installation of the wheel with [steps] consists of, as CycloneDX. Its program lies apart: a package that comes
# with it makes whatever imports jsonschema, as each process of Ray does, start a second later.
sbom:
	rm -rf build/sbom build/cyclonedx && $(PYTHON) -m venv build/sbom && $(PYTHON) -m venv build/cyclonedx
	build/cyclonedx/bin/python -m pip install --quiet --constraint constraints.txt cyclonedx-bom
	build/sbom/bin/python -m pip install --quiet --constraint constraints.txt "$$(echo dist/*.whl)[steps]"
	build/sbom/bin/python -m pip uninstall --quiet --yes pip setuptools
	mkdir -p build/release
	build/cyclonedx/bin/cyclonedx-py environment build/sbom/bin/python --mc-type application --output-reproducible \
		--output-format JSON --output-file build/release/gpu-pipelines-$(VERSION).cdx.json

# compiled/ for the images of the release; GPUs from B200 on need cu130, P4 to V100 cu126.
release-compiled: $(VENV)/.steps
	rm -rf build/compiled
	for variant in cu126 cu130; do \
		$(BIN)/gpu-pipelines compile --all --image $(IMAGE)-$$variant --directory build/compiled/$$variant || exit 1; done

release-files: release-compiled
	mkdir -p build/release
	tar -c --sort=name --owner=0 --group=0 --numeric-owner --mtime=@$$(git log -1 --format=%ct) -C build compiled \
		| gzip -n > build/release/gpu-pipelines-$(VERSION)-compiled.tar.gz
	cp constraints.txt build/release/gpu-pipelines-$(VERSION)-constraints.txt
	$(NOTES) > build/release/notes.md

# zizmor knows what is unsafe in a workflow; the schemas of the others come with check-jsonschema.
check-workflows: $(VENV)/.dev
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.github-issue-forms $(filter-out %/config.yml,$(wildcard .github/ISSUE_TEMPLATE/*.yml))
	$(BIN)/check-jsonschema --builtin-schema vendor.github-issue-config .github/ISSUE_TEMPLATE/config.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.dependabot .github/dependabot.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.cloudbuild cloudbuild.yaml
	$(BIN)/zizmor --offline .github

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache
