# The one door: people and CI call the same recipes. `just` alone lists them.

set shell := ["bash", "-euo", "pipefail", "-c"]

# recipes see their arguments as "$@", quoted as they were given
set positional-arguments := true

root := justfile_directory()
bin := root / ".venv/bin"

# which Python makes .venv, where there is none yet
base_python := env("DDL_PYTHON", "python3")

# versions to install: a pip constraint file, or "none"; see constraints.txt
constraints := env("DDL_CONSTRAINTS", root / "constraints.txt")

# list the recipes
@default:
    just --justfile "{{ justfile() }}" --list --unsorted

# make .venv and install the project and its tools into it; does nothing if nothing changed
setup:
    #!/usr/bin/env bash
    set -euo pipefail
    cd "{{ root }}"
    if [[ ! -x .venv/bin/python ]]; then
        "{{ base_python }}" -m venv .venv
    fi
    constraint=()
    files=(pyproject.toml)
    if [[ "{{ constraints }}" != none ]]; then
        constraint=(-c "{{ constraints }}")
        files+=("{{ constraints }}")
    fi
    # the stamp stands for all that the installation depends on; it is written after success only
    stamp=.venv/.ddl-setup
    state=$(.venv/bin/python - "${files[@]}" <<'PYTHON'
    import hashlib, pathlib, sys
    if sys.version_info < (3, 11):
        sys.exit(
            f"ddl needs Python 3.11 or newer, and .venv has {sys.version.split()[0]}. "
            "Remove .venv and try again with DDL_PYTHON=python3.12, or any newer one."
        )
    parts = [sys.version, sys.prefix, *(pathlib.Path(file).read_text() for file in sys.argv[1:])]
    print(hashlib.sha256(repr(parts).encode()).hexdigest())
    PYTHON
    )
    if [[ "$(cat "$stamp" 2>/dev/null || true)" == "$state" ]]; then
        exit 0
    fi
    echo "setup: installing into .venv (the first time this takes a minute or two)" >&2
    .venv/bin/python -m pip install -qq --disable-pip-version-check ${constraint[@]+"${constraint[@]}"} --editable '.[dev]'
    echo "$state" > "$stamp.new"
    mv "$stamp.new" "$stamp"

# format the code
fmt: setup
    cd "{{ root }}" && "{{ bin }}/ruff" check --fix --quiet && "{{ bin }}/ruff" format

# check style and formatting
lint: setup
    cd "{{ root }}" && "{{ bin }}/ruff" check && "{{ bin }}/ruff" format --check

# check types
types: setup
    cd "{{ root }}" && "{{ bin }}/mypy"

# check that imports go downward only
floors: setup
    cd "{{ root }}" && PYTHONPATH=.:cli "{{ bin }}/lint-imports"

# run the tests, or some of them: just test tests/unit -k grace
test *ARGS: setup
    cd "{{ root }}" && "{{ bin }}/python" -m pytest -m "not slow" "$@"

# run all tests, the slow ones too
test-all *ARGS: setup
    cd "{{ root }}" && "{{ bin }}/python" -m pytest "$@"

# run the tests of what ddl promises: --json for programs, --broken to see each fail without its promise
promises *ARGS: setup
    cd "{{ root }}" && PYTHONPATH=".:cli" "{{ bin }}/python" -m tests.promises.report "$@"

# how good a model ddl makes, beside data-parallel training: `just quality --help`
quality *ARGS: setup
    cd "{{ root }}" && PYTHONPATH=".:cli" "{{ bin }}/python" -m examples.quality "$@"

# draw README's pictures anew, from a demo that is played for them
pictures: setup
    cd "{{ root }}" && PYTHONPATH=".:cli" "{{ bin }}/python" -m examples.pictures

# train one model with three learner processes, one of which is killed
demo *ARGS: setup
    "{{ bin }}/ddl" demo "$@"

# the same with an S3 server in place of the directory
demo-s3 *ARGS: setup
    "{{ bin }}/ddl" demo --s3 "$@"

# let real processes die, and see what it costs: just chaos --json
chaos *ARGS: setup
    "{{ bin }}/ddl" chaos "$@"

# simulate many runs under attack, each from its seed: just swarm --seeds 10000 --json
swarm *ARGS: setup
    cd "{{ root }}" && "{{ bin }}/python" -m ddl.sim swarm "$@"

# replay the simulated run of one seed, with its trace: just sim 42
sim SEED: setup
    cd "{{ root }}" && "{{ bin }}/python" -m ddl.sim replay "$1"

# build the wheel, and use it from an empty environment
wheel: setup
    #!/usr/bin/env bash
    set -euo pipefail
    cd "{{ root }}"
    rm -rf dist
    .venv/bin/python -m build --wheel --no-isolation >/dev/null
    .venv/bin/check-wheel-contents --toplevel ddl,ddl_cli dist/*.whl
    empty=$(mktemp -d)
    trap 'rm -rf "$empty"' EXIT
    .venv/bin/python -m venv "$empty/venv"
    # torch alone is borrowed: it is large, and whether it installs is not the question here
    .venv/bin/python - "$empty/venv" <<'PYTHON'
    import importlib.metadata, pathlib, sys
    torch = importlib.metadata.distribution("torch")
    site = next(pathlib.Path(sys.argv[1]).glob("lib/python*/site-packages"))
    for name in {path.parts[0] for path in torch.files if path.parts[0] != ".."}:
        (site / name).symlink_to(torch.locate_file(name))
    PYTHON
    constraint=()
    if [[ "{{ constraints }}" != none ]]; then constraint=(-c "{{ constraints }}"); fi
    "$empty/venv/bin/python" -m pip install -qq --no-compile --disable-pip-version-check ${constraint[@]+"${constraint[@]}"} dist/*.whl
    cd "$empty"
    venv/bin/ddl --version
    venv/bin/python -c 'import ddl, ddl_cli, sys; assert "site-packages" in ddl.__file__ and "site-packages" in ddl_cli.__file__, ddl.__file__'

# run a benchmark of tests/bench: just bench core
bench NAME *ARGS: setup
    cd "{{ root }}" && "{{ bin }}/python" "tests/bench/$1.py" "${@:2}"

# all that must hold before a change lands; CI runs the same
check: lint types floors test wheel

# remove what the recipes made, but .venv
clean:
    cd "{{ root }}" && rm -rf dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache demo-* chaos-*
