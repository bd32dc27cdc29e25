"""Say in words what was found about the kernels of a training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from runner_core.contract import Finding, Json

RULE = "kernels"


@dataclass
class Verdict:
    """A finding about the kernels of a training.

    `status`: unused (plain float32, or not asked for), right, wrong, or unchecked (`note` says why).
    """

    status: str = "unused"
    options: list[str] = field(default_factory=list)
    blamed: list[str] = field(default_factory=list)
    """Options without which the step is right."""
    layer: str = ""
    wrong: list[str] = field(default_factory=list)
    """The largest disagreements."""
    off: dict[str, Json] = field(default_factory=dict)
    """Settings that do without what is wrong; {} if no setting can."""
    versions: dict[str, str] = field(default_factory=dict)
    note: str = ""
    compared: int = 0
    """Tensors that were compared."""
    margin: float = 0.0
    """Largest error, as a share of what rounding explains."""
    seconds: float = 0.0
    remembered: bool = False
    switched: bool = False
    """True if the training goes on with `off`."""

    @property
    def text(self) -> str:
        used = ", ".join(self.options) or "as it comes"
        if self.status == "right":
            once = "as found before" if self.remembered else f"{self.seconds:.0f} s"
            return f"kernels: the step's gradients agree with plain float32 ({used}; {once})"
        if self.status == "unchecked":
            return f"kernels: not compared with plain float32 ({used}): {self.note}"
        versions = ", ".join(f"{name} {found}" for name, found in self.versions.items() if "threads" not in name)
        culprit = " and ".join(self.blamed) or "a kernel of the framework"
        told = f"{culprit} computes {self.layer or 'the step'} wrongly ({'; '.join(self.wrong)}; {versions})"
        if self.switched:
            return f"{told}. Switched off for this run: {listed(self.off)}"
        if self.off:
            return f"{told}. Switch it off: {listed(self.off)}"
        return f"{told}. No setting does without it: install another version"

    def findings(self) -> Iterator[Finding]:
        """Yield what a run says of it."""
        if self.status == "wrong":
            yield Finding(RULE, "warning", self.text)


def listed(settings: Mapping[str, Json]) -> str:
    """Return settings in words."""
    return ", ".join(
        f"{name} {str(value).lower() if isinstance(value, bool) else value}" for name, value in settings.items()
    )
