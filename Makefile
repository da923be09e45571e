# Two commands do everything on a fresh Debian 12 machine: `make run` and `make test`.
# The build itself is plain CMake: cmake --preset dev && cmake --build --preset dev && ctest --preset dev

PROMPT ?= What is the capital of France?
MODEL ?= models/k3-mini
JOBS ?= $(shell nproc)
PREFIX ?= /usr/local
FUZZ_SECONDS ?= 60
BROWSER ?= 1

.PHONY: help run train-demo test test-slow bench-micro fuzz build release setup setup-web setup-fuzz venv install clean

help:
	@echo "make run [PROMPT='...']   install packages, build, answer a prompt with the model in the repository"
	@echo "make test                 install packages (with a browser, unless BROWSER=0), build, run the whole test suite"
	@echo "make train-demo           train a small model from the texts in data/demo and ask it (about 10 minutes on two cores)"
	@echo "make test-slow            the tests that take long"
	@echo "make bench-micro          the speed of each op, a JSON line a case (BENCH_ARGS='--filter mxfp4')"
	@echo "make fuzz                 fuzz every parser for $(FUZZ_SECONDS) s each (FUZZ_SECONDS=...)"
	@echo "make install              put k3 into $(PREFIX)/bin (PREFIX=...)"
	@echo "make release, make build  the optimised program; the one with checks and tests"

setup:
	@tools/install_packages.sh build

# On a bare machine 205 MB to download, 703 MB installed; without a browser the test of the page is skipped.
setup-web: setup
	@[ $(BROWSER) = 0 ] || tools/install_packages.sh web || echo "no browser: the test of the built-in page will be skipped" >&2

setup-fuzz:
	@tools/install_packages.sh build fuzz

venv: setup
	@tools/make_venv.sh .venv

release: setup
	@cmake --preset release $(CMAKE_FLAGS) > build-release.log 2>&1 || (cat build-release.log; rm -f build-release.log; exit 1)
	@rm -f build-release.log
	@cmake --build --preset release -- -j$(JOBS)

build: venv
	@cmake --preset dev -DK3_PYTHON=$(CURDIR)/.venv/bin/python3 $(CMAKE_FLAGS)
	@cmake --build --preset dev -- -j$(JOBS)

run: release
	@build/release/k3 run $(MODEL) -p "$(PROMPT)" --temperature 0

# Raw text to a model that answers, in about ten minutes on two cores; build/demo keeps everything, a second call goes on.
train-demo: release
	@tools/train_demo.sh build/release/k3 build/demo

test: setup-web build
	@ctest --preset dev -j$(JOBS)

test-slow: build
	@ctest --test-dir build/dev --output-on-failure -L slow

bench-micro: setup
	@cmake --preset bench $(CMAKE_FLAGS) > /dev/null
	@cmake --build --preset bench --target k3 k3_ops_bench -- -j$(JOBS) >&2
	@bench/micro/run_micro.py build/bench $(BENCH_ARGS)

fuzz: setup-fuzz
	@cmake --preset fuzz && cmake --build --preset fuzz --target fuzzers -- -j$(JOBS)
	@tools/fuzz.sh build/fuzz $(FUZZ_SECONDS)

install: release
	@cmake --install build/release --prefix $(PREFIX)

clean:
	rm -rf build
