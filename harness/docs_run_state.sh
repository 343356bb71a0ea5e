# Runs one statement of a page (file $2) by the state that those above it left in folder $1, and keeps there what it leaves:
# the folder, variables and functions. Nothing is kept of one that fails.
__docs_run_state=$1 __docs_run_statement=$2
set --
__docs_run_exported=$(compgen -e)
# Some of bash's own variables can't be set: it says so, and nothing is lost.
if [[ -e $__docs_run_state/variables ]]; then . "$__docs_run_state/variables" 2>/dev/null; fi
cd -- "$(<"$__docs_run_state/folder")" || exit 97
set -euo pipefail
. "$__docs_run_statement"
set +euo pipefail
pwd >"$__docs_run_state/folder"
{
    while IFS= read -r __docs_run_name; do
        [[ -v $__docs_run_name ]] || printf 'unset -v %s\n' "$__docs_run_name"
    done <<<"$__docs_run_exported"
    compgen -v | while IFS= read -r __docs_run_name; do
        case $__docs_run_name in
            __docs_run_* | NPU_MATRIX_* | BASH* | COMP_* | EPOCH* | DIRSTACK | EUID | FUNCNAME | GROUPS | HISTCMD | LINENO) ;;
            OPT* | PIPESTATUS | PPID | PWD | OLDPWD | RANDOM | SECONDS | SHELLOPTS | SHLVL | SRANDOM | UID | _) ;;
            *) declare -p "$__docs_run_name" 2>/dev/null ;;
        esac
    done
    declare -f
} >"$__docs_run_state/variables.new"
mv -- "$__docs_run_state/variables.new" "$__docs_run_state/variables"
