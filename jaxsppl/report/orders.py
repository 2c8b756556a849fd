"""One law in another order: a chain rewritten for a program whose order is fixed.

Two neighbouring stages are exchanged only where that changes no probability, if need be with other
values: min_p m before temperature T is min_p m^(1/T) after it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jaxsppl import parameters

# These leave the likeliest token the likeliest, so nothing is left of them at temperature 0.
_KEEP_THE_TOP = frozenset(
    {"top_n_sigma", "top_k", "top_p", "min_p", "top_h", "top_a", "epsilon_cutoff", "eta_cutoff"}
    | {"p_less", "p_less_norm", "min_k", "tfs", "smoothing"}
)


@dataclass(frozen=True)
class Step:
    """One active stage with the values of its parameters."""

    stage: str
    values: Mapping[str, float]


def active_steps(chain: Sequence[str], settings: Mapping[str, float]) -> list[Step]:
    """Return the stages that change something, in order.

    Parameters
    ----------
    chain : sequence of str
        Stages, first applied first.
    settings : mapping of str to float
        Parameters; the others are neutral.

    Returns
    -------
    list of Step
        With the values that matter. A stage that is not known here counts as active.
    """
    steps: list[Step] = []
    for stage in chain:
        values = _acting(parameters.base_name(stage), settings)
        if values or stage not in parameters.stage_names():
            steps.append(Step(stage, values))
    greedy = any(step.values == {"temperature": 0.0} for step in steps)
    if greedy and all(step.stage in {*_KEEP_THE_TOP, "temperature"} for step in steps):
        return [Step("temperature", {"temperature": 0.0})]
    return steps


def _acting(stage: str, settings: Mapping[str, float]) -> dict[str, float]:
    """Return the values of a stage's parameters that change something."""
    on = {
        name: settings[name]
        for name, known in parameters.PARAMETERS.items()
        if known.stage == stage and name in settings and not is_off(name, settings[name])
    }
    return {
        name: value
        for name, value in on.items()
        if not parameters.PARAMETERS[name].switch or parameters.PARAMETERS[name].switch in on
    }


def is_off(name: str, value: float) -> bool:
    """Return whether a value of a parameter changes nothing.

    Parameters
    ----------
    name : str
        The parameter.
    value : float

    Returns
    -------
    bool
    """
    known = parameters.PARAMETERS[name]
    return value == known.neutral or (name == "top_n_sigma" and value <= 0)


def rearranged(steps: Sequence[Step], order: Sequence[str]) -> tuple[list[Step], list[str]]:
    """Bring stages into an order without changing the law.

    Parameters
    ----------
    steps : sequence of Step
        Active stages.
    order : sequence of str
        All stages that the program has, first applied first.

    Returns
    -------
    list of Step
        In that order, each stage once; to be used only when nothing stands in the way.
    list of str
        What stands in the way, for example ``["top_p before temperature"]``.
    """
    steps, blocked = list(steps), list[str]()
    place = {stage: at for at, stage in enumerate(order)}
    for end in range(len(steps), 1, -1):
        for at in range(end - 1):
            first, second = steps[at], steps[at + 1]
            if first.stage not in place or second.stage not in place:
                continue
            if place[first.stage] > place[second.stage]:
                swapped = _exchanged(first, second)
                if swapped is None:
                    blocked.append(f"{first.stage} before {second.stage}")
                    return steps, blocked
                steps[at : at + 2] = swapped
    merged: list[Step] = []
    for step in steps:
        if merged and merged[-1].stage == step.stage:
            one = _merged(merged[-1], step)
            if one is None:
                blocked.append(f"{step.stage} twice")
            else:
                merged[-1] = one
        else:
            merged.append(step)
    return merged, blocked


def _exchanged(first: Step, second: Step) -> list[Step] | None:
    """Return two neighbours the other way round with the same law, None where there is none."""
    stages = {first.stage, second.stage}
    heat = next((s for s in (first, second) if s.stage == "temperature"), None)
    if heat is not None and set(heat.values) - {"temperature"}:
        return None  # a dynamic temperature depends on what is left
    if stages == {"top_k", "min_p"} or stages in (
        {"top_k", "temperature"},
        {"top_n_sigma", "temperature"},
    ):
        return [second, first]
    if heat is not None and stages == {"min_p", "temperature"}:
        temperature = heat.values["temperature"]
        if temperature == 0:
            return None
        if first is heat:
            return [Step("min_p", {"min_p": second.values["min_p"] ** temperature}), heat]
        return [heat, Step("min_p", {"min_p": first.values["min_p"] ** (1 / temperature)})]
    return None


def _merged(first: Step, second: Step) -> Step | None:
    """Return one stage that does what two of a kind do, one after the other."""
    if first.stage == "temperature" and set(first.values) == {"temperature"}:
        return Step("temperature", {
            "temperature": first.values["temperature"] * second.values["temperature"]
        })  # fmt: skip
    return first if first.stage in ("top_k", "min_p") else None
