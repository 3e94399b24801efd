"""What the judge says, typed. Written by `python/generate.py` from `warpsmith schema`; change that instead.

Fields are only added within a format, so unknown ones are left out, and one that an older command does not know is `None`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

T = TypeVar("T")


def _number(value: Any) -> float:
    """Numbers that are not finite travel as strings."""
    return float(value)


def _optional(read: Callable[[Any], T], value: Any) -> T | None:
    return None if value is None else read(value)


FailureKind = Literal["task", "config", "infrastructure"]

Precision = Literal["fp32", "tf32"]

Profile = Literal["full", "rl", "verify"]

Rule = Literal["state-dict", "memory-limit", "forbidden-import", "forbidden-language", "form", "forbidden-operator", "decoy-touched", "output-changed", "input-changed", "protocol", "background-work", "below-floor", "wrong-when-timed", "stale-weights", "shared-output", "output-type", "nothing-replaced"]

Rules = Literal["own", "mixed"]

Status = Literal["passed", "compile_failed", "crashed", "timed_out", "mismatch", "rejected", "cheating"]

Target = Literal["cuda", "cpu"]

TrustCheck = Literal["held", "failed", "not_reached"]


@dataclass(frozen=True, kw_only=True)
class AttemptProgress:
    """How far an attempt got; the graded part of the ladder reward."""

    compiled: bool
    loaded: bool
    parsed: bool
    ran: bool
    shape_ok: bool
    share_within_tolerance: float | None

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> AttemptProgress:
        return cls(
            compiled=found["compiled"],
            loaded=found["loaded"],
            parsed=found["parsed"],
            ran=found["ran"],
            shape_ok=found["shape_ok"],
            share_within_tolerance=_optional(float, found.get("share_within_tolerance")),
        )


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why there is no verdict. A failure is never a verdict and never a reward."""

    code: str
    """A stable word to branch on, such as `random` or `noisy_machine`."""
    hint: str | None
    """What the user can do about it."""
    kind: FailureKind
    message: str

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Failure:
        return cls(
            code=found["code"],
            hint=found.get("hint"),
            kind=found["kind"],
            message=found["message"],
        )


@dataclass(frozen=True, kw_only=True)
class FailureReport:
    """What `--json` prints when there is no verdict."""

    failure: Failure
    format: int

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> FailureReport:
        return cls(
            failure=Failure.from_json(found["failure"]),
            format=found["format"],
        )


@dataclass(frozen=True, kw_only=True)
class MatchedPrecision:
    compile_us: float | None
    eager_us: float
    mode: Precision
    speedup: Speedup

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> MatchedPrecision:
        return cls(
            compile_us=_optional(_number, found.get("compile_us")),
            eager_us=_number(found["eager_us"]),
            mode=found["mode"],
            speedup=Speedup.from_json(found["speedup"]),
        )


@dataclass(frozen=True, kw_only=True)
class Numerics:
    """Root-mean-square errors against float64, relative to the answer's magnitude."""

    candidate_vs_fp64: float
    eager_vs_fp64: float

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Numerics:
        return cls(
            candidate_vs_fp64=_number(found["candidate_vs_fp64"]),
            eager_vs_fp64=_number(found["eager_vs_fp64"]),
        )


@dataclass(frozen=True, kw_only=True)
class OperatorShare:
    """An operator of PyTorch that computed in a candidate's call."""

    calls: float
    """In one call of the module."""
    name: str
    share: float | None
    """Of the call's time. Null on a GPU, where the host sees only the launch."""

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> OperatorShare:
        return cls(
            calls=float(found["calls"]),
            name=found["name"],
            share=_optional(float, found.get("share")),
        )


@dataclass(frozen=True, kw_only=True)
class Reward:
    """Every reward of one verdict. A trainer chooses one of them without judging again."""

    composite: float
    """`alpha [compiled] + beta [correct] + gamma min(speed-up over eager, cap) [correct]`."""
    ladder: float
    """As `robust`, with -1 graded upward to -0.2 by how far a failed attempt got."""
    raw: float
    """Speed-up over `torch.compile` (eager where that is unknown); 0 when not correct."""
    robust: float
    """-1 wrong, 1 correct, 2 also 5 % faster than eager, 3 also than `torch.compile`."""

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Reward:
        return cls(
            composite=_number(found["composite"]),
            ladder=float(found["ladder"]),
            raw=_number(found["raw"]),
            robust=float(found["robust"]),
        )


@dataclass(frozen=True, kw_only=True)
class Speedup:
    compile: float | None
    eager: float

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Speedup:
        return cls(
            compile=_optional(_number, found.get("compile")),
            eager=_number(found["eager"]),
        )


@dataclass(frozen=True, kw_only=True)
class StageSeconds:
    compile: float
    time: float
    total: float
    verify: float

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> StageSeconds:
        return cls(
            compile=float(found["compile"]),
            time=float(found["time"]),
            total=float(found["total"]),
            verify=float(found["verify"]),
        )


@dataclass(frozen=True, kw_only=True)
class Times:
    """Medians in microseconds, measured from outside."""

    burst: float | None
    """Time per call in bursts, where bursts were run."""
    candidate: float
    compile: float | None
    constant: float
    """The judge's overhead per call: the time of a call that computes nothing."""
    eager: float
    samples: int
    """Timed calls behind `candidate`."""
    single: float
    """Median single call minus the constant."""
    spread: float
    """Half the interquartile range over the median, of the candidate."""

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Times:
        return cls(
            burst=_optional(_number, found.get("burst")),
            candidate=_number(found["candidate"]),
            compile=_optional(_number, found.get("compile")),
            constant=_number(found["constant"]),
            eager=_number(found["eager"]),
            samples=found["samples"],
            single=_number(found["single"]),
            spread=_number(found["spread"]),
        )


@dataclass(frozen=True, kw_only=True)
class Trust:
    """Each check by name."""

    checks: dict[str, TrustCheck]
    contained: bool
    """The candidate was contained by every required protection."""
    deferred_work: bool
    """Work was batched or deferred between calls: the time of single calls counts."""
    degenerate_inputs: bool
    """On the task's own inputs a trivial answer passes; only a transformed distribution rejects it."""
    draws: tuple[str, ...] | None
    """Distributions that the candidate was checked on, in order."""
    excluded_share: float
    """Share of elements excluded because the fp32 and fp64 references disagree at a discontinuity."""
    fp64: str | None
    """How much of the comparison had a float64 answer."""
    kill_rate: float | None
    """Share of wrong variants of this task that the checks before timing refuse, where that was measured."""
    moved: str | None
    """How much of the state dict was moved off its initial values: `state`, `parameters` or `nothing`."""

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Trust:
        return cls(
            checks=dict(found["checks"]),
            contained=found["contained"],
            deferred_work=found["deferred_work"],
            degenerate_inputs=found["degenerate_inputs"],
            draws=_optional(tuple, found.get("draws")),
            excluded_share=float(found["excluded_share"]),
            fp64=found.get("fp64"),
            kill_rate=_optional(float, found.get("kill_rate")),
            moved=found.get("moved"),
        )


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What the judge concluded about one submission."""

    compiled: bool
    correct: bool
    device: str
    evidence: str | None
    """The folder of the evidence, with which the verdict can be replayed."""
    format: int
    isolation: dict[str, str] | None
    matched_precision: MatchedPrecision | None
    """Against baselines in the candidate's own precision class."""
    notes: tuple[str, ...]
    """Sentences that a reader of the numbers should know."""
    numerics: Numerics | None
    profile: Profile
    progress: AttemptProgress
    reason: str | None
    """One sentence for a person."""
    reward: Reward
    rule: Rule | None
    """The rule that was broken, where there is one."""
    rules: Rules | None
    seconds: StageSeconds
    speedup: Speedup | None
    """Against baselines in strict fp32."""
    status: Status
    target: Target
    times_us: Times | None
    torch_operators: tuple[OperatorShare, ...] | None
    """What PyTorch computed in a call, where the rules allow that."""
    trust: Trust

    @property
    def passed(self) -> bool:
        """Compiled, correct in every check, and timed unless the profile times nothing."""
        return self.status == "passed"

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Verdict:
        return cls(
            compiled=found["compiled"],
            correct=found["correct"],
            device=found["device"],
            evidence=found.get("evidence"),
            format=found["format"],
            isolation=_optional(dict, found.get("isolation")),
            matched_precision=_optional(MatchedPrecision.from_json, found.get("matched_precision")),
            notes=tuple(found["notes"]),
            numerics=_optional(Numerics.from_json, found.get("numerics")),
            profile=found["profile"],
            progress=AttemptProgress.from_json(found["progress"]),
            reason=found.get("reason"),
            reward=Reward.from_json(found["reward"]),
            rule=found.get("rule"),
            rules=found.get("rules"),
            seconds=StageSeconds.from_json(found["seconds"]),
            speedup=_optional(Speedup.from_json, found.get("speedup")),
            status=found["status"],
            target=found["target"],
            times_us=_optional(Times.from_json, found.get("times_us")),
            torch_operators=_optional((lambda all: tuple(map(OperatorShare.from_json, all))), found.get("torch_operators")),
            trust=Trust.from_json(found["trust"]),
        )


__all__ = [
    "AttemptProgress",
    "Failure",
    "FailureKind",
    "FailureReport",
    "MatchedPrecision",
    "Numerics",
    "OperatorShare",
    "Precision",
    "Profile",
    "Reward",
    "Rule",
    "Rules",
    "Speedup",
    "StageSeconds",
    "Status",
    "Target",
    "Times",
    "Trust",
    "TrustCheck",
    "Verdict",
]
