# Completion of `runner` in fish: runner completion fish | source
function __runner_complete
    set -l words (commandline --tokenize --cut-at-cursor --current-process)
    set -l now (commandline --current-token --cut-at-cursor)
    set -l program $words[1]
    set --erase words[1]
    set -l found ($program completion words $words "$now" 2>/dev/null)
    test (count $found) -gt 1; and printf '%s\n' $found[2..]
    switch "$found[1]"
        case files
            __fish_complete_path "$now"
        case folders
            __fish_complete_directories "$now" ""
    end
end
complete --command runner --no-files --keep-order --arguments '(__runner_complete)'
