# Completion of `runner` and of `uv run … runner` in bash: eval "$(runner completion bash)"
_runner_complete() { # the number of words before runner's own, then the program with its first words
    local now="${COMP_WORDS[COMP_CWORD]}" kind="" line own="$1"
    shift
    COMPREPLY=()
    compopt -o nosort 2>/dev/null
    while IFS= read -r line; do
        if [[ -z "$kind" ]]; then
            kind="$line"
        else
            COMPREPLY+=("${line%%$'\t'*}")
        fi
    done < <("$@" completion words "${COMP_WORDS[@]:own:COMP_CWORD-own+1}" 2>/dev/null)
    [[ "$now" == "=" ]] && now=""
    case "$kind" in
        files) compopt -o filenames 2>/dev/null; while IFS= read -r line; do COMPREPLY+=("$line"); done < <(compgen -f -- "$now") ;;
        folders) compopt -o filenames 2>/dev/null; while IFS= read -r line; do COMPREPLY+=("$line"); done < <(compgen -d -- "$now") ;;
    esac
}
_runner() { _runner_complete 1 "${COMP_WORDS[0]}"; }
_runner_uv() { # without --no-sync, a Tab could install packages
    local at
    for ((at = 2; at < COMP_CWORD; at++)); do
        [[ "${COMP_WORDS[1]}" == run && "${COMP_WORDS[at]}" == runner ]] || continue
        compopt +o default +o bashdefault 2>/dev/null
        _runner_complete $((at + 1)) uv run --no-sync --no-python-downloads "${COMP_WORDS[@]:2:at-1}"
        return
    done
    [[ -z "$_runner_uv_before" ]] || "$_runner_uv_before" "$@"
}
complete -F _runner runner
if [[ "$(complete -p uv 2>/dev/null)" =~ -F\ ([^\ ]+) && "${BASH_REMATCH[1]}" != _runner_uv ]]; then
    _runner_uv_before="${BASH_REMATCH[1]}"
fi
complete -o bashdefault -o default -F _runner_uv uv
