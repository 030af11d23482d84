#!/usr/bin/env bash
# The first hour of a newcomer, from a fresh clone in a fresh folder: scripts/newcomer.sh [FOLDER]
#
# Clones the commit that is checked out here (changes that are not committed are left out, and
# named), then does what the README and the tutorial name: the demo, the tests, the site, each
# notebook, a wheel in a clean environment, and the commands and the code of the tutorial. Every step
# is timed. A step that fails does not stop the others; the exit status is 1 if one failed. What is
# not run is printed with the reason. FOLDER must not exist; the default is a temporary one, which
# is removed unless a step failed.
set -euo pipefail

root="$(cd "$(dirname "$0")/.." && pwd)"
given="${1:-}"
folder="${given:-$(mktemp -d)/outvote}"
if [ -e "$folder" ]; then
    echo "newcomer.sh: $folder exists; name a folder that does not, or remove it" >&2
    exit 2
fi
mkdir -p "$(dirname "$folder")"
folder="$(cd "$(dirname "$folder")" && pwd)/$(basename "$folder")"
logs="$folder.logs"
mkdir -p "$logs"
# A program of the caller's environment must not stand in for what a step forgot to install.
unset PYTHONPATH VIRTUAL_ENV OUTVOTE_DATA OUTVOTE_ALLOW_CODE

names=() seconds=() states=()
failed=0

step() { # NAME COMMAND...: run it in the clone, with a log of its own
    local name="$1" start state=passed log status
    shift
    log="$logs/${#names[@]}-${name//[^a-z0-9-]/-}.log"
    start=$(date +%s)
    printf '%-44s ' "$name"
    # As a condition ("if ! ..."), a function would go on after a command that fails.
    set +e
    (
        set -e
        cd "$folder"
        "$@"
    ) >"$log" 2>&1
    status=$?
    set -e
    if [ "$status" -ne 0 ]; then
        state=FAILED
        failed=1
    fi
    names+=("$name") seconds+=($(($(date +%s) - start))) states+=("$state")
    printf '%5d s  %s\n' "${seconds[-1]}" "$state"
    if [ "$state" = FAILED ]; then
        tail -n 15 "$log" | sed 's/^/    /'
        echo "    all of it: $log"
    fi
}

not_run() { # WHAT WHY
    printf '%-44s   not run: %s\n' "$1" "$2"
}

wheel() { # build, install outside of the clone, and use it there
    local away="$logs/wheel"
    mkdir -p "$away"
    python3 -m venv "$away/venv"
    "$away/venv/bin/python" -m pip install --quiet hatchling
    "$away/venv/bin/python" -m hatchling build -d "$away/dist"
    python3 -m venv --clear "$away/venv"
    "$away/venv/bin/python" -m pip install --quiet -c constraints-dev.txt "$away"/dist/*.whl
    cd "$away"
    venv/bin/outvote list rules
    venv/bin/outvote demo --set rounds=2 -o runs
    venv/bin/python -c 'import outvote as ov; print(ov.make_rule("median")([[1.0], [2.0], [9.0]]))'
}

code_of() { # PAGE: its Python as one program, as the tests of the docs read it
    PYTHONPATH=tests .venv/bin/python - "$1" <<'END'
import sys

from doc_pages import python_blocks

exec(compile("\n".join(python_blocks(sys.argv[1])), sys.argv[1], "exec"), {"__name__": "page"})
END
}

commands_of() { # PAGE: its commands, one per line
    (cd "$folder" && PYTHONPATH=tests .venv/bin/python -c \
        'import sys; from doc_pages import shown_commands; print(*shown_commands(sys.argv[1]), sep="\n")' "$1")
}

command_line() { # WORDS: an outvote command as it is printed
    PATH="$PWD/.venv/bin:$PATH" bash -c "outvote $1" </dev/null
}

watch_line() { # WORDS: a server, which must still run after ten seconds
    local status=0
    PATH="$PWD/.venv/bin:$PATH" timeout 10 bash -c "exec outvote $1" </dev/null || status=$?
    [ "$status" -eq 124 ]
}

begin=$(date +%s)
echo "commit $(git -C "$root" rev-parse --short HEAD), $(nproc) cores, load $(cut -d' ' -f1 /proc/loadavg)"
if [ -n "$(git -C "$root" status --porcelain)" ]; then
    echo "left out, as they are not committed:"
    git -C "$root" status --short | sed 's/^/    /'
fi
git clone --quiet "$root" "$folder"

step "make demo" make demo
step "make test" make test
step "make docs" make docs
shopt -s nullglob
notebooks=("$folder"/docs/notebooks/*.ipynb)
pages=("$folder"/docs/tutorial/*.md)
if [ ${#notebooks[@]} -eq 0 ] || [ ${#pages[@]} -eq 0 ]; then
    echo "newcomer.sh: there is no notebook in docs/notebooks or no page in docs/tutorial" >&2
    failed=1
fi
for path in "${notebooks[@]}"; do
    name="$(basename "$path" .ipynb)"
    step "notebook $name" .venv/bin/python tools/run_notebooks.py "$name"
done
step "wheel, installed elsewhere" wheel
for path in "${pages[@]}"; do
    page="docs/tutorial/$(basename "$path")"
    step "code of $page" code_of "$page"
    if ! lines="$(commands_of "$page")"; then
        echo "newcomer.sh: the commands of $page cannot be read" >&2
        failed=1
    fi
    while IFS= read -r line; do
        case "$line" in
        "") ;;
        demo) not_run "outvote demo" "make demo did" ;;
        "audit audit "*) not_run "outvote $line" "needs a Flower server; test_flower_how_to.py has one" ;;
        watch*) step "outvote $line" watch_line "$line" ;;
        *) step "outvote $line" command_line "$line" ;;
        esac
    done <<<"$lines"
done
not_run "commands of docs/how-to/flower.md" "ports must be free; test_flower_how_to.py has a network of its own"

total=$(($(date +%s) - begin))
printf '%d steps, %d min %02d s\n' "${#names[@]}" $((total / 60)) $((total % 60))
if [ "$failed" -ne 0 ]; then
    echo "a step failed; the clone is $folder, the logs are in $logs" >&2
    exit 1
fi
if [ -z "$given" ]; then
    rm -rf "$(dirname "$folder")"
fi
