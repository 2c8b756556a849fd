#!/usr/bin/env bash
# Runs every check of the project: style, types, import rules, and the tests, which start a real
# llama.cpp server. Arguments go to pytest. Ends with a failure when any check fails.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/environment.sh

environment test

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
