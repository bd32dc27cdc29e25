# Completion of `runner` in bash: eval "$(runner completion bash)"
_runner() {
    local now="${COMP_WORDS[COMP_CWORD]}" kind="" line
    COMPREPLY=()
    compopt -o nosort 2>/dev/null
    while IFS= read -r line; do
        if [[ -z "$kind" ]]; then
            kind="$line"
        else
            COMPREPLY+=("${line%%$'\t'*}")
        fi
    done < <("${COMP_WORDS[0]}" completion words "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
    [[ "$now" == "=" ]] && now=""
    case "$kind" in
        files) compopt -o filenames 2>/dev/null; while IFS= read -r line; do COMPREPLY+=("$line"); done < <(compgen -f -- "$now") ;;
        folders) compopt -o filenames 2>/dev/null; while IFS= read -r line; do COMPREPLY+=("$line"); done < <(compgen -d -- "$now") ;;
    esac
}
complete -F _runner runner
