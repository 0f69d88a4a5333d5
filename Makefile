# The commands of this repository; `make` alone lists them.

SHELL := /bin/sh
GO ?= go
FUZZTIME ?= 5m
export CI FUZZTIME

.DEFAULT_GOAL := help
.PHONY: torture help demo build cross image test tools lint fmt fuzz vuln sbom bench bench-plots mutants clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: ## see it work: three phases, live swaps, in a little internet of its own (no root, no Docker)
	@CGO_ENABLED=0 $(GO) build -trimpath -o bin/ ./cmd/exeat
	@$(GO) build -trimpath -o bin/exeat-demo ./e2e/demo
	@bin/exeat-demo bin/exeat

# Without cgo: capabilities are given up on every thread, which Go can do without it only.
build: ## build bin/exeat and bin/exeatd for this machine
	CGO_ENABLED=0 $(GO) build -trimpath -o bin/ ./cmd/...

cross: ## build exeat for macOS, and everything for Linux, on both architectures
	for arch in amd64 arm64; do \
		CGO_ENABLED=0 GOOS=darwin GOARCH=$$arch $(GO) build -trimpath -o bin/darwin-$$arch/ ./cmd/exeat && \
		CGO_ENABLED=0 GOOS=linux GOARCH=$$arch $(GO) build -trimpath -o bin/linux-$$arch/ ./cmd/... || exit 1; \
	done

image: ## build localhost/exeat and localhost/exeat-harbor with Docker or Podman, pulling nothing (ARCH=arm64)
	scripts/image

test: FUZZTIME = 10s
test: tools lint ## vet, lint, every test under the race detector, each fuzz target for 10 s
	scripts/test
	scripts/fuzz

tools: ## install the Debian packages that the tests drive (root only)
	scripts/install-test-tools

lint: ## go vet, staticcheck, gofumpt
	scripts/lint

fmt: ## format with gofumpt
	$(GO) tool -modfile=tools/go.mod gofumpt -w .

fuzz: ## run every fuzz target, FUZZTIME (5m) each
	scripts/fuzz

mutants: ## break the product on purpose (mutants/), in a copy: each time the named test must fail (ONLY="29 B05")
	scripts/mutants $(ONLY)

vuln: ## look the dependencies up in the Go vulnerability database (needs the internet)
	$(GO) tool -modfile=tools/go.mod govulncheck ./...

sbom: ## write dist/*.cdx.json, what goes into each program (CycloneDX)
	scripts/sbom

# Of the peers, two are built from their modules, which are no part of the product; a quick
# run does without them.
bench: ## measure against the peers and write bench/RESULTS.md (root only); QUICK=1 takes minutes and checks ratios only
	[ "$(QUICK)" = 1 ] || (cd tools/peers && $(GO) build -trimpath -o ../../bin/peers/ ./coredns github.com/stripe/smokescreen)
	$(GO) build -trimpath -o bin/bench ./bench
	QUICK=$(QUICK) bin/bench run $(BENCHFLAGS)

torture: ## wear exeat out: the long variants of e2e/torture, EXEAT_TORTURE (1) of their full length, 40 minutes (root only)
	mkdir -p dist
	EXEAT_TORTURE=$${EXEAT_TORTURE:-1} EXEAT_TORTURE_TABLE=$(CURDIR)/dist/torture.md \
		$(GO) test -count=1 -timeout 2h -v $(TORTUREFLAGS) ./e2e/torture
	@echo 'the figures, as docs/torture.md has them, are in dist/torture.md'

bench-plots: ## draw how costs grow with flows, targets, names and agents into docs/plots (root only)
	$(GO) build -trimpath -o bin/bench ./bench
	bin/bench plots

clean: ## remove what was built
	rm -rf bin dist
