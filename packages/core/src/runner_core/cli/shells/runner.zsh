#compdef runner
# Completion of `runner` and of `uv run … runner` in zsh: eval "$(runner completion zsh)"
_runner_complete() { # the place of runner's first word, then the program with its first words
    local kind="" line own="$1"
    local -a found shown
    shift
    while IFS= read -r line; do
        if [[ -z "$kind" ]]; then
            kind="$line"
            continue
        fi
        found+=("${line%%$'\t'*}")
        shown+=("${${line/$'\t'/  }%%  }")
    done < <("${(@Q)@}" completion words "${(@Q)words[own,CURRENT]}" 2>/dev/null)
    (( $#found )) && compadd -l -V runner -d shown -a found
    case "$kind" in
        files) _files ;;
        folders) _files -/ ;;
    esac
}
_runner() { _runner_complete 2 "$words[1]" }
_runner_uv() { # without --no-sync, a Tab could install packages
    local at=${words[(ie)runner]}
    if [[ "$words[2]" == run ]] && (( at > 2 && at < CURRENT )); then
        _runner_complete $((at + 1)) uv run --no-sync --no-python-downloads "${(@)words[3,at]}"
    elif [[ -n "$_runner_uv_before" ]]; then
        "$_runner_uv_before" "$@"
    else
        _default
    fi
}
compdef _runner runner
[[ "${_comps[uv]:-_runner_uv}" == _runner_uv ]] || _runner_uv_before="$_comps[uv]"
compdef _runner_uv uv
