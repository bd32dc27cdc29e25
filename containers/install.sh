#!/bin/sh
# Install one project into the environment /opt/runner: `install.sh PROJECT cpu|cuda`, in a copy of this repository.
# Both recipes beside this file call it; it needs uv, and a network.
set -eu
project=$1 device=$2 target=${3:-/opt/runner}
[ -d "packages/$project/src" ] || { echo "there is no project $project in packages/"; exit 2; }
export UV_LINK_MODE=copy UV_COMPILE_BYTECODE=1
case $device in
cuda) # the lock's versions
    UV_PROJECT_ENVIRONMENT=$target uv sync -q --locked --no-default-groups --no-editable --package "runner-$project"
    ;;
cpu) # the newest versions that the package allows
    uv venv -q --no-project "$target"
    if [ "$project" = openkbp ]; then
        set -- --overrides packages/openkbp/cpu.txt tensorflow-cpu
    else
        set -- --torch-backend cpu
    fi
    uv pip install -q --python "$target" ./packages/core "./packages/$project" "$@"
    ;;
*)
    echo "the second word is cpu or cuda, not $device"
    exit 2
    ;;
esac
# what no training needs: tests of other packages, and headers
find "$target" -depth -type d -name tests -path '*/site-packages/*' ! -path '*/tensorflow/*' -exec rm -rf {} +
rm -rf "$target"/lib/python3.*/site-packages/torch/include "$target"/lib/python3.*/site-packages/tensorflow/include
