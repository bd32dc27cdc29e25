"""The project newproject, for runner."""

from runner_core import hookimpl


@hookimpl
def runner_project() -> type:
    from runner_newproject.project import NewTask

    return NewTask
