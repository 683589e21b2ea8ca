# make help lists what there is.
# PG=15|16|17|18|19 or PG_CONFIG=/path/to/pg_config chooses the server; by default it is this Debian's.
export PG PG_CONFIG MINUTES SEED DURATION BENCH PEER_SNOWFLAKE BROKEN ONLY

.PHONY: help demo demo-servers psql stop clean-demo named all install installcheck test clients matrix matrix-differences torture broken planted lint deny \
	bench bench-compare dist tle deb packages images rpm

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 20
demo: ## the tour, on a throw-away server under target/; installs what is missing
	@scripts/demo
demo-servers: ## four servers, six clients: a rebalance, a failover, a drain; a minute, or DURATION=seconds, SEED=n
	@scripts/demo-servers
psql: ## a shell on the demo's server
	@scripts/demo psql
stop: ## stop the demo's server
	@scripts/demo stop
clean-demo: ## remove the demo's server and its data
	@scripts/demo clean
named:
	@test -n "$(PG_CONFIG)" || { echo 'say which server: PG_CONFIG=/path/to/pg_config' >&2; exit 2; }
all: named ## build for the server of PG_CONFIG
	@scripts/setup >/dev/null && scripts/build
install: named ## build, and install into the server of PG_CONFIG, or below DESTDIR
	@scripts/setup >/dev/null && scripts/install $(if $(DESTDIR),"$(DESTDIR)")
installcheck: named ## try what is installed, on the server that runs
	@scripts/installcheck
test: ## all the tests; installs what they need
	@scripts/test
matrix: ## the tests of an installed extension, on PostgreSQL 15 to 19, or on those of MATRIX='15 18'
	@scripts/matrix $(MATRIX)
matrix-differences: ## those of them that can differ between versions, on MATRIX='16 17'
	@ONLY=differences scripts/matrix $(MATRIX)
clients: ## drivers and ORMs on a real server, directly and with PgBouncer: NAMES='django psycopg' chooses
	@scripts/clients $(NAMES)
torture: ## crashes, clocks that are set, promotions: MINUTES=10 or as many as you like, SEED=n
	@scripts/torture
broken: ## the tests that must fail when a mechanism is switched off: NAMES='lease guard' chooses
	@scripts/broken $(NAMES)
planted: ## the tests of servers, with a search path on which the extension must find nothing: NAMES='moves:: fleet::' chooses
	@scripts/planted $(NAMES)
lint: ## format, lints, documentation and boundaries, all with warnings denied
	@scripts/lint
deny: ## licences and sources of dependencies
	@scripts/deny
bench: ## speed, beside what else makes ids and DDL by hand; PARTS='calls inserts' chooses, BENCH=quick is short
	@scripts/bench $(PARTS)
bench-compare: ## the same of another revision's library beside this one's: BASE=revision
	@test -n "$(BASE)" || { echo 'usage: make bench-compare BASE=revision' >&2; exit 2; }
	@BENCH_BASE=$(BASE) scripts/bench $(PARTS)
dist: ## the archive for PGXN, of the last commit
	@scripts/dist
tle: ## the script by which pg_tle makes an extension of sql/portable.sql
	@scripts/tle
deb: ## the package of Debian for the server of PG
	@scripts/deb
packages: ## the packages for all servers and the archive, or MATRIX='15 17 pgxn', tried in Debians that nothing was installed in
	@scripts/packages $(MATRIX)
images: ## images of PostgreSQL with insta_ids, tried with podman: the server, the extension for CloudNativePG, the tour
	@scripts/images
rpm: ## the package for RPM, for a server in Debian's places: tells whether packaging/insta_ids.spec is sound
	@scripts/rpm
