#!/usr/bin/env bash
# Runs every check of the project: style, types, import rules, and the tests, which start a real
# llama.cpp server. Arguments go to pytest. Ends with a failure when any check fails.
# With --with-transformers as the first one, torch and transformers are installed too (large), and
# the tests that compare with them run; else they are skipped.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/environment.sh

with_transformers=""
if [ "${1-}" = --with-transformers ]; then
    with_transformers=yes
    shift
fi
environment test
if [ -n "$with_transformers" ] && ! .venv/bin/python -c 'import torch, transformers' 2>/dev/null; then
    say "installing torch and transformers into .venv:"
    if ! .venv/bin/python -m pip install torch==2.13.0 "transformers>=4.56" >>.venv/install.log 2>&1; then
        say "it failed; see .venv/install.log"
        exit 1
    fi
fi

failed=""
check() { # check NAME COMMAND...
    local name=$1
    shift
    printf '\n== %s\n' "$name"
    "$@" || failed="$failed $name"
}

bin=.venv/bin
check "ruff-check" "$bin/ruff" check .
check "ruff-format" "$bin/ruff" format --check .
check "types" "$bin/basedpyright" --pythonpath "$bin/python"
check "import-rules" "$bin/lint-imports"
check "pytest" "$bin/python" -m pytest -n 2 ${1+"$@"}

if [ -n "$failed" ]; then
    printf '\nfailed:%s\n' "$failed" >&2
    exit 1
fi
