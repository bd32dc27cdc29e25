# Completion of `runner` and of `uv run … runner` in fish: runner completion fish | source
function __runner_complete
    set -l words (commandline --tokenize --cut-at-cursor --current-process)
    set -l now (commandline --current-token --cut-at-cursor)
    set -l program $words[1]
    set --erase words[1]
    if set -l at (__runner_within_uv)
        set program uv run --no-sync --no-python-downloads $words[2..$at] # else a Tab could install packages
        set --erase words[1..$at]
    end
    set -l found ($program completion words $words "$now" 2>/dev/null)
    test (count $found) -gt 1; and printf '%s\n' $found[2..]
    switch "$found[1]"
        case files
            __fish_complete_path "$now"
        case folders
            __fish_complete_directories "$now" ""
    end
end
function __runner_within_uv # print how many words after `uv` lead to `runner`
    set -l words (commandline --tokenize --cut-at-cursor --current-process)
    test "$words[1..2]" = "uv run"; and set -l at (contains --index runner $words[3..]); and math $at + 1
end
complete --command runner --no-files --keep-order --arguments '(__runner_complete)'
complete --command uv --condition '__runner_within_uv >/dev/null' --no-files --keep-order --arguments '(__runner_complete)'
