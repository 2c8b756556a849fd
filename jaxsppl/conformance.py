"""Our law of a chain beside the one that a real llama-server reports, for random chains."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import Array

from jaxsppl.errors import ServerError
from jaxsppl.harvest.client import run_to_end
from jaxsppl.harvest.sampled import Oracle, Row, open_oracle
from jaxsppl.parameters import base_name
from jaxsppl.report.programs import LLAMA_STAGES
from jaxsppl.sampling.candidates import Candidates
from jaxsppl.sampling.kept import Kept, everything, is_listed, total_sum, weights
from jaxsppl.sampling.law import positions
from jaxsppl.sampling.precision import float64
from jaxsppl.sampling.stages import STAGES, Branch, given, run_branches
from jaxsppl.sweep.baselines import Baseline
from jaxsppl.sweep.needs import is_on
from jaxsppl.texts.builtin import builtin_rows

Floats = npt.NDArray[np.float64]

# Largest difference of a probability: where few tokens are summed, and where thousands are, which
# the server does one after another in float32.
NARROW, WIDE = 2e-6, 5e-5
_FEW = 2000
# A limit that is hit closer than the last of these, relative to it, is decided by the rounding of
# the server: of its sums over few tokens, and over thousands.
_TIES = (1e-6,)
_WIDE_TIES = (1e-6, 1e-5, 3e-5, 6e-5, 1e-4, 1.5e-4, 2e-4, 3e-4)
# So many tokens of a law are compared at most, and more of them at the first position.
_LISTED, _LISTED_FIRST = 300, 5000
# What identical requests may differ by: a float32 less another offset [nat].
_SAME = 5e-6
# At lower temperatures float32 probabilities underflow, and 0 log 0 makes typ_p undefined; below
# the second one the float32 logits, divided by it, are no longer good to `NARROW`.
_COLDEST, _TOO_COLD = 0.4, 0.3
# The stages whose cut is decided by a sum.
_SUMMING = ("top_p", "typical_p", "xtc")


@dataclass(frozen=True)
class Disagreement:
    """A law that is not ours.

    Attributes
    ----------
    setting : Baseline
        Chain and parameters.
    position : int
        Tokens before it.
    difference : float
        Largest difference of a probability [1].
    allowed : float
    """

    setting: Baseline
    position: int
    difference: float
    allowed: float

    def text(self) -> str:
        """Return it in one line."""
        values = ", ".join(f"{name} {value!r}" for name, value in self.setting.settings.items())
        return (
            f"{' > '.join(self.setting.chain)} ({values}) after {self.position} tokens: "
            f"{self.difference:.2g}, allowed {self.allowed:g}"
        )


@dataclass
class Conformance:
    """What a comparison found.

    Attributes
    ----------
    build : str
        Of the server.
    compared, ties, silent : int
        Laws that were compared; of these, decided by float32 rounding of a limit; laws that the
        server did not tell, as all it drew were parts of characters.
    narrow, wide : float
        Largest difference where few tokens and where thousands are summed [1].
    disagreements : list of Disagreement
    """

    build: str
    compared: int = 0
    ties: int = 0
    silent: int = 0
    narrow: float = 0.0
    wide: float = 0.0
    disagreements: list[Disagreement] = field(default_factory=list[Disagreement])


def random_settings(number: int, n_vocab: int, seed: int = 0) -> list[Baseline]:
    """Return random chains of llama.cpp's samplers with random parameters.

    Parameters
    ----------
    number : int
        How many.
    n_vocab : int
        Size of the vocabulary.
    seed : int

    Returns
    -------
    list of Baseline
        In any order, a sampler now and then twice; a fifth of the values neutral, a fifth extreme.
        Left out is what llama.cpp itself does not define.
    """
    rng = np.random.default_rng(seed)
    found: list[Baseline] = []
    while len(found) < number:
        names = list(rng.permutation([*LLAMA_STAGES])[: rng.integers(1, len(LLAMA_STAGES) + 1)])
        if rng.random() < 0.2:
            names.insert(int(rng.integers(len(names) + 1)), str(rng.choice(names)))
        chain = tuple(str(name) for name in names)
        values = {
            name: float(value) for stage in chain for name, value in _values(stage, n_vocab, rng)
        }
        if _is_defined(chain, values):
            found.append(Baseline(chain, values))
    return found


def _values(stage: str, n_vocab: int, rng: np.random.Generator) -> list[tuple[str, float]]:
    """Return values of a stage's parameters."""
    usual = {
        "top_k": np.round(np.exp(rng.uniform(1, 7))),
        "top_p": rng.uniform(0.05, 0.95),
        "min_p": np.exp(rng.uniform(-9, -0.7)),
        "typical_p": rng.uniform(0.05, 0.95),
        "top_n_sigma": rng.uniform(0.1, 4),
        "temperature": rng.uniform(0.4, 2.5),
    }
    extreme = {
        "top_k": (1, 2, n_vocab - 1, n_vocab, 2**31 - 1),
        "top_p": (0, 1e-6),
        "min_p": (1e-7, 0.999, 1),
        "typical_p": (0, 1e-6),
        "top_n_sigma": (0.001, 50),
        "temperature": (0, 0.4, 10),
    }
    neutral = {"top_k": 0, "top_p": 1, "min_p": 0, "typical_p": 1, "top_n_sigma": -1}
    turn = rng.random()
    if stage == "xtc":
        usual_threshold, extremes = rng.uniform(0.01, 0.5), (0, 1e-4, 0.5, 0.6)
        threshold = usual_threshold if turn < 0.7 else rng.choice(extremes)
        # The coin is tossed in the server; only a certain one can be told.
        return [("xtc_probability", float(turn < 0.8)), ("xtc_threshold", threshold)]
    value = usual[stage] if turn < 0.6 else rng.choice(extreme[stage])
    if turn > 0.8:
        value = neutral.get(stage, 1.0)
    if stage != "temperature" or rng.random() < 0.5:
        return [(stage, value)]
    exponent = rng.choice([0.5, 1.0, 2.0, rng.uniform(0.1, 2)])
    dynamic = [("dynatemp_range", rng.choice([0.0, 0.3, 5.0, rng.uniform(0, 2)]))]
    return [(stage, value), *dynamic, ("dynatemp_exponent", exponent)]


def _is_defined(chain: Sequence[str], values: Mapping[str, float]) -> bool:
    """Return whether llama.cpp defines the law, and well enough in float32."""
    fragile = {"typical_p": values.get("typical_p", 1) < 1, "xtc": values.get("xtc_threshold") == 0}
    masked, heat = False, 1.0
    for name in chain:
        if name == "top_n_sigma":
            masked |= values[name] > 0
        elif name == "temperature":
            heat *= max(values[name] - values.get("dynatemp_range", 0.0), 0.0)
        elif fragile.get(name) and (masked or heat < _COLDEST):
            return False
    return heat == 0 or heat >= _TOO_COLD or "dynatemp_range" in values


def conformance(
    url: str,
    settings: Sequence[Baseline] | None = None,
    *,
    chains: int = 40,
    places: int = 25,
    seed: int = 0,
    model: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Conformance:
    """Compare laws of chains with those of a llama-server.

    Parameters
    ----------
    url : str
        Its address.
    settings : sequence of Baseline, optional
        Chains and parameters; random ones by default.
    chains, places : int
        Random chains, and positions in a text that each is compared at.
    seed : int
        Decides the chains and the text.
    model : str, optional
        Which of its models; needed where it offers several.
    progress : callable, optional
        Called with the positions done and in all.

    Returns
    -------
    Conformance

    Raises
    ------
    ServerError
        When the server cannot be reached, its numbers differ between identical requests, or it
        offers several models and none is named.
    """
    return run_to_end(_compare(url, settings, chains, places, seed, model, progress or _quiet))


def _quiet(done: int, total: int) -> None:
    """Say nothing."""


async def _compare(
    url: str,
    settings: Sequence[Baseline] | None,
    chains: int,
    places: int,
    seed: int,
    model: str | None,
    progress: Callable[[int, int], None],
) -> Conformance:
    """Compare position by position, so that the server keeps the text before it."""
    async with open_oracle(url, model) as oracle:
        drawn = random_settings(chains, oracle.identity.n_vocab, seed)
        laws = [_Ours(one) for one in (drawn if settings is None else settings)]
        found = Conformance(oracle.identity.build)
        text = next(t for r in builtin_rows("python:prose", seed) if len(t := str(r.value)) > 4000)
        ids = (await oracle.tokens(text))[: min(12 * places, oracle.identity.n_context - 2)]
        for at in range(places):
            prompt = ids[: len(ids) * (at + 1) // places]
            row = await oracle.model_law(prompt, oracle.identity.n_vocab)
            for one in laws:
                await _at(oracle, prompt, row, one, _LISTED if at else _LISTED_FIRST, found)
            ids_now, now = await oracle.model_law(prompt, 20)
            before = row[1][[int(np.flatnonzero(row[0] == one)[0]) for one in ids_now]]
            if np.ptp(now - before) > _SAME:
                raise ServerError(
                    f"{url}: the same request gives other log-probabilities; compare with one that "
                    "does nothing else meanwhile (llama-server --parallel 1)"
                )
            progress(at + 1, places)
    return found


async def _at(
    oracle: Oracle,
    prompt: Sequence[int],
    row: Row,
    ours: "_Ours",
    most: int,
    found: Conformance,
) -> None:
    """Compare one law at one position."""
    ids, logprob = row
    expected, summed, decided = ours(logprob)
    number = int((expected > 0).sum())
    names = [LLAMA_STAGES[base_name(name)] for name in ours.setting.chain]
    told = await oracle.drawn_law(
        prompt, names, ours.setting.settings, min(number + 16, most, len(ids))
    )
    if told is None:
        found.silent += 1
        return
    is_whole = len(told[0]) < min(number + 16, most, len(ids))
    place = np.empty(int(ids.max()) + 1, np.int64)
    place[ids] = np.arange(len(ids))
    allowed = NARROW if summed <= _FEW else WIDE

    def difference(expected: Floats) -> float:
        """Return the largest difference from what the server told."""
        listed = place[told[0]]
        rest = np.delete(expected, listed)
        hidden = 0.0 if is_whole else float(told[1].min())
        return max(
            float(np.abs(expected[listed] - told[1]).max()), float(rest.max(initial=0.0)) - hidden
        )

    off = difference(expected)
    found.compared += 1
    if off > allowed:
        steps = _TIES if max(summed, decided) <= _FEW else _WIDE_TIES
        if any(difference(other) <= allowed for other in ours.neighbours(logprob, steps)):
            found.ties += 1
            return
        found.disagreements.append(Disagreement(ours.setting, len(prompt), off, allowed))
    if allowed == NARROW:
        found.narrow = max(found.narrow, off)
    else:
        found.wide = max(found.wide, off)


class _Ours:
    """Our law of one setting over a whole vocabulary."""

    def __init__(self, setting: Baseline) -> None:
        self.setting = setting

    def __call__(self, logprob: Floats, **moved: float) -> tuple[Floats, int, int]:
        """Return (rank,) probabilities, and the longest sums that enter them and decide cuts."""
        with float64():
            values = {k: jnp.asarray(v) for k, v in {**self.setting.settings, **moved}.items()}
            block = positions(jnp.asarray(logprob[None]))
            branches = [Branch(jnp.ones(()), everything(block))]
            summed, decided = 1, 1
            for name in self.setting.chain:
                taken = given(name, values)
                if "dynatemp_range" in taken:  # the entropy is a sum too
                    summed = max(summed, _longest(branches))
                elif name in _SUMMING and is_on(
                    one := STAGES[name].parameters[0], float(taken[one])
                ):
                    decided = max(decided, _longest(branches))
                branches = [
                    Branch(one.weight * weight, left)
                    for one in branches
                    for weight, left in _stage(block, name, taken, one.kept)
                    if float(weight) > 0
                ]
            parts = [one.weight * _shares(block, one.kept)[0] for one in branches]
            law = np.asarray(sum(parts[1:], start=parts[0]))
            return law, max(summed, _longest(branches)), decided

    def neighbours(self, logprob: Floats, steps: Sequence[float]) -> Iterator[Floats]:
        """Yield the laws a rounding away."""
        for factor in (1 + sign * step for step in steps for sign in (-1, 1)):
            yield self(logprob * factor)[0]
            for name, value in self.setting.settings.items():
                if name not in ("top_k", "xtc_probability"):
                    yield self(logprob, **{name: value * factor})[0]


def _longest(branches: Sequence[Branch]) -> int:
    """Return how many tokens are left at most."""
    return max(int(one.kept.stop[0] - one.kept.start[0]) for one in branches)


# Stage by stage, so that a few compiled programs serve every order.
@partial(jax.jit, static_argnames="name")
def _stage(block: Candidates, name: str, values: Mapping[str, Array], kept: Kept) -> list[Branch]:
    """Apply one stage."""
    return run_branches(block, (name,), values, kept)


@jax.jit
def _shares(block: Candidates, kept: Kept) -> Array:
    """Return (token, rank) what plain sampling gives each token."""
    weight = jnp.where(is_listed(kept, block), weights(kept, block), 0.0)
    return weight / total_sum(kept, block)[:, None]
