"""x"""
from pathlib import Path
from runner_core.runfolder import RunFolder
def write_report(run: RunFolder) -> Path:
    return run.report_file
