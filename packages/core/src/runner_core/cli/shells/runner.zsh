#compdef runner
# Completion of `runner` in zsh: eval "$(runner completion zsh)"
_runner() {
    local kind="" line
    local -a found shown
    while IFS= read -r line; do
        if [[ -z "$kind" ]]; then
            kind="$line"
            continue
        fi
        found+=("${line%%$'\t'*}")
        shown+=("${${line/$'\t'/  }%%  }")
    done < <("${(Q)words[1]}" completion words "${(@Q)words[2,CURRENT]}" 2>/dev/null)
    (( $#found )) && compadd -l -V runner -d shown -a found
    case "$kind" in
        files) _files ;;
        folders) _files -/ ;;
    esac
}
compdef _runner runner
