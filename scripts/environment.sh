#!/usr/bin/env bash
# Makes .venv with this package and one of its extras; sourced by demo.sh and test.sh.
# Does nothing when the environment is already what pyproject.toml asks for.

export PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONUTF8=1

say() { printf '%s\n' "$*" >&2; }

# Prints the first Python >= 3.11 that can make environments. Each candidate is tried, since a
# launcher of a version manager may stand on PATH for a version that is not installed.
find_python() {
    local name
    for name in "${PYTHON:-python3}" python3.13 python3.12 python3.11 python3.14 python3 python; do
        if "$name" -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))' \
            >/dev/null 2>&1; then
            printf '%s\n' "$name"
            return 0
        fi
    done
    say "no Python >= 3.11 with its venv module was found; install one (Debian, Ubuntu: apt install python3-venv)" \
        "or name it: PYTHON=/path/to/python3 $0"
    return 1
}

# install LOG REQUIREMENT: pip's output goes to LOG, on the terminal only the names, in one line.
install() {
    local log=$1 line status=0
    .venv/bin/python -m pip install --progress-bar off --editable "$2" 2>&1 | while IFS= read -r line; do
        printf '%s\n' "$line" >>"$log"
        case $line in
        Collecting*)
            line=${line#Collecting }
            printf ' %s' "${line%%[ <>=!~;[(]*}" >&2
            ;;
        Installing\ collected*) printf '\n  unpacking' >&2 ;;
        esac
    done || status=$?
    printf '\n' >&2
    return "$status"
}

# environment EXTRA [FALLBACK]: FALLBACK is the requirement to take when EXTRA has no wheel here.
environment() {
    local stamp=.venv/.installed-$1 wanted log=.venv/install.log
    if ! .venv/bin/python -c 'import pip' >/dev/null 2>&1; then
        local python
        python=$(find_python)
        say "making .venv with $("$python" --version)"
        "$python" -m venv --clear .venv
    fi
    wanted=$(cksum <pyproject.toml)
    if [ "$(cat "$stamp" 2>/dev/null || true)" = "$wanted" ] &&
        .venv/bin/python -c 'import jaxsppl' >/dev/null 2>&1; then
        return 0
    fi
    : >"$log"
    say "installing jaxsppl[$1] and what it needs into .venv (a minute or two the first time):"
    if ! install "$log" ".[$1]"; then
        if [ $# -gt 1 ] && install "$log" "$2"; then
            say "the extra '$1' cannot be installed on this platform; going on without it"
        else
            tail -n 20 "$log" >&2
            say "pip failed; the whole output is in $log"
            return 1
        fi
    fi
    printf '%s\n' "$wanted" >"$stamp"
}
