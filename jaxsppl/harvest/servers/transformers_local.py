"""Hugging Face transformers in this process: no server, and the whole vocabulary at each place.

The address of this protocol is a model: a folder, or its name on the Hugging Face Hub. It runs in
float32, and code that comes with a model is never run.
"""

import asyncio
import hashlib
import importlib
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxsppl.errors import ConfigError, ServerError
from jaxsppl.harvest.alignment import lead_tokens
from jaxsppl.harvest.pieces import from_vocabulary
from jaxsppl.harvest.protocol import How, Identity, Offer, Options, PassageError, Server
from jaxsppl.harvest.scoring import Token, TokenScorer
from jaxsppl.harvest.statistics import NAMES, Statistics, statistics
from jaxsppl.harvest.validate import Position

if TYPE_CHECKING:
    import aiohttp

NAME = "transformers"
METHODS = ("forward",)
# Passages in one forward pass: on a processor a batch is no faster, and without one results repeat
# bit for bit.
BATCH_ON_GPU = 8
# Turns of the event loop in which a worker has come back with its next passage.
TURNS = 20
# Places whose whole distributions are held in float64 at once.
BLOCK = 16


def recognise(entry: Mapping[str, Any]) -> bool:
    """Return False: no server lists a model of this process.

    Parameters
    ----------
    entry : mapping

    Returns
    -------
    bool
    """
    del entry
    return False


def connect(session: "aiohttp.ClientSession", url: str, *, patience_s: float) -> "Transformers":
    """Return the model as a server; nothing is loaded yet.

    Parameters
    ----------
    session : aiohttp.ClientSession
        Not used.
    url : str
        Folder or Hub name.
    patience_s : float
        Not used.

    Returns
    -------
    Transformers
    """
    del session, patience_s
    return Transformers(url)


def model_name(model: str) -> str:
    """Return the name of a model as files carry it.

    Parameters
    ----------
    model : str
        Folder or Hub name.

    Returns
    -------
    str
    """
    path = Path(model).expanduser()
    return path.resolve().name if path.is_dir() else model


class Transformers(Server):
    """One model, which is loaded when it is opened."""

    def __init__(self, model: str) -> None:
        name = model_name(model)
        self._offer = Offer(id=model, name=name, aliases=(name.rpartition("/")[2],))
        self.label = f"transformers:{model}"

    async def offers(self) -> list[Offer]:
        """Return the one model that there is.

        Returns
        -------
        list of Offer
        """
        return [self._offer]

    async def open(self, offer: Offer, options: Options) -> "TransformersScorer":
        """Load the model.

        Parameters
        ----------
        offer : Offer
        options : Options

        Returns
        -------
        TransformersScorer

        Raises
        ------
        ConfigError
            When transformers or torch are not installed.
        ServerError
            When the model cannot be loaded.
        """
        loaded = await asyncio.to_thread(_load, offer.id)
        scorer = TransformersScorer(self.label, loaded, options)
        scorer.identity = await scorer.identify()
        return scorer


@dataclass(frozen=True)
class _Loaded:
    """A model, its tokeniser, and what tells it from others."""

    model: Any
    tokenizer: Any
    details: dict[str, str | int | float]


def _libraries() -> tuple[Any, Any]:
    """Return torch and transformers, which are installed with the extra `hf` only."""
    try:
        return importlib.import_module("torch"), importlib.import_module("transformers")
    except ImportError as error:
        raise ConfigError(
            f"the protocol '{NAME}' needs {error.name}; pip install 'jaxsppl[hf]'"
        ) from error


def _load(name: str) -> _Loaded:
    """Load a model and its tokeniser."""
    torch, transformers = _libraries()
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    place = str(Path(name).expanduser()) if Path(name).expanduser().is_dir() else name
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(place)
        model = transformers.AutoModelForCausalLM.from_pretrained(place, dtype=torch.float32)
    except Exception as error:
        # the libraries below raise what they like for a model that is missing, odd or damaged
        why = " ".join(str(error).split())[:300]
        raise ServerError(f"the model '{name}' cannot be loaded: {why}") from error
    device = "cuda" if torch.cuda.is_available() else "cpu"
    weights = hashlib.sha256()
    for key, values in model.state_dict().items():
        weights.update(f"{key} {tuple(values.shape)} {values.double().sum().item()!r}\n".encode())
    details: dict[str, str | int | float] = {
        "device": device,
        "dtype": "float32",
        "revision": getattr(model.config, "_commit_hash", None) or "",
        "weights": weights.hexdigest()[:16],
        "n_params": sum(values.numel() for values in model.parameters()),
    }
    return _Loaded(model.to(device).eval(), tokenizer, details)


class TransformersScorer(TokenScorer):
    """One loaded model; passages that wait at the same time are scored in one batch."""

    abilities = TokenScorer.abilities | {"chat", "statistics"}

    def __init__(self, label: str, loaded: _Loaded, options: Options) -> None:
        super().__init__(options)
        self.label = label
        self._loaded = loaded
        self._waiting: list[tuple[Sequence[int], int, asyncio.Future[list[Position]]]] = []
        self._running: asyncio.Task[None] | None = None
        self.slots = BATCH_ON_GPU if loaded.details["device"] == "cuda" else 1

    async def _identify(self) -> Identity:
        torch, transformers = _libraries()
        config = self._loaded.model.config.get_text_config()
        bare = self._encode("a b c", special=False)
        self.lead = lead_tokens(bare, self._encode("a b c", special=True))
        logits = await asyncio.to_thread(self._logits, [[*self.lead, *bare]], 1)
        n_vocab = int(logits[0].shape[-1])
        self.alternatives = min(self._options.alternatives, n_vocab)
        longest = getattr(config, "max_position_embeddings", None)
        return Identity(
            protocol=NAME,
            build=f"transformers {transformers.__version__}, torch {torch.__version__}",
            n_vocab=n_vocab,
            n_context=int(longest or self._loaded.tokenizer.model_max_length),
            method=METHODS[0],
            details={**self._loaded.details, "lead_tokens": " ".join(map(str, self.lead))},
        )

    def _encode(self, text: str, *, special: bool) -> list[int]:
        """Return the ids of a text; special tokens in it stay text."""
        found = self._loaded.tokenizer(
            text, add_special_tokens=special, split_special_tokens=True, verbose=False
        )
        return [int(token) for token in found["input_ids"]]

    async def tokenize(self, text: str) -> list[Token]:
        """Return the tokens of a text; see `TokenScorer.tokenize`.

        Parameters
        ----------
        text : str

        Returns
        -------
        list of Token
        """
        ids = self._encode(text, special=False)
        strings = self._loaded.tokenizer.convert_ids_to_tokens(ids)
        pieces = from_vocabulary(strings, text.encode())
        return [Token(token, piece) for token, piece in zip(ids, pieces, strict=True)]

    async def chat(self, message: str) -> list[int]:
        """Return the ids of a user's message in the model's template; see `TokenScorer.chat`.

        Parameters
        ----------
        message : str

        Returns
        -------
        list of int
        """
        try:
            prompt = self._loaded.tokenizer.apply_chat_template(
                [{"role": "user", "content": message}], add_generation_prompt=True, tokenize=False
            )
        except Exception as error:
            # whatever the template's own code raises
            why = " ".join(str(error).split())[:300]
            raise ServerError(f"{self.label}: the chat template does not work: {why}") from error
        found = self._loaded.tokenizer(prompt, add_special_tokens=False, verbose=False)
        return [int(token) for token in found["input_ids"]]

    async def positions(
        self, ids: Sequence[int], whole: Sequence[bool], start: int, slot: int, how: How
    ) -> list[Position]:
        """Score the tokens from `start` on; see `TokenScorer.positions`.

        Parameters
        ----------
        ids : sequence of int
        whole : sequence of bool
        start, slot : int
        how : How

        Returns
        -------
        list of Position
        """
        del whole, slot, how
        future: asyncio.Future[list[Position]] = asyncio.get_running_loop().create_future()
        self._waiting.append((ids, start, future))
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._run())
        return await future

    async def _run(self) -> None:
        """Score what waits, batch by batch."""
        while self._waiting:
            # workers that were just answered put down their passage and bring the next one
            for _ in range(TURNS):
                await asyncio.sleep(0)
            batch, self._waiting = self._waiting, []
            given = [(ids, start) for ids, start, _ in batch]
            try:
                found = await asyncio.to_thread(self._score, given)
            except Exception as error:
                for _, _, future in batch:
                    if not future.done():
                        future.set_exception(error)
                continue
            for (_, _, future), positions in zip(batch, found, strict=True):
                if not future.done():
                    future.set_result(positions)

    def _score(self, given: Sequence[tuple[Sequence[int], int]]) -> list[list[Position]]:
        """Score a batch of passages."""
        first = min(start for _, start in given)
        try:
            logits = self._logits([ids[:-1] for ids, _ in given], first)
        except (RuntimeError, MemoryError) as error:
            if "memory" not in str(error).lower():
                raise
            raise ServerError(
                f"{self.label}: out of memory with {len(given)} texts of up to "
                f"{max(len(ids) for ids, _ in given)} tokens; take --parallel 1 or a --window"
            ) from error
        return [
            self._positions(rows[start - first :], ids[start:])
            for rows, (ids, start) in zip(logits, given, strict=True)
        ]

    def _logits(self, inputs: Sequence[Sequence[int]], first: int) -> list[Any]:
        """Return the logits of each text, for its tokens from `first` on and the one after it."""
        torch, _ = _libraries()
        longest = max(len(ids) for ids in inputs)
        # Padding goes to the right, where no earlier token sees it.
        padded = torch.zeros((len(inputs), longest), dtype=torch.long)
        mask = torch.zeros_like(padded)
        for i, ids in enumerate(inputs):
            padded[i, : len(ids)] = torch.as_tensor(ids)
            mask[i, : len(ids)] = 1
        model, n_kept = self._loaded.model, longest - first + 1
        known = inspect.signature(model.forward).parameters
        # where a model knows how, it leaves out what is not scored
        kept = {"logits_to_keep": n_kept} if "logits_to_keep" in known else {}
        with torch.inference_mode():
            logits = model(
                input_ids=padded.to(model.device),
                attention_mask=mask.to(model.device),
                use_cache=False,
                **kept,
            ).logits[:, -n_kept:]
        return [logits[i, : len(ids) - first + 1] for i, ids in enumerate(inputs)]

    def _positions(self, logits: Any, targets: Sequence[int]) -> list[Position]:
        """Return the positions of one passage from the logits of its scored tokens."""
        torch, _ = _libraries()
        found: list[Position] = []
        for at in range(0, len(targets), BLOCK):
            rows = logits[at : at + BLOCK].double()
            if not bool(torch.isfinite(rows.amax(-1)).all()) or bool(rows.isnan().any()):
                raise PassageError(f"from token {at} on the model's logits are not finite")
            logprob = torch.log_softmax(rows, -1)
            top = torch.topk(logprob, self.alternatives, dim=-1)
            here = torch.as_tensor(targets[at : at + BLOCK], device=rows.device)
            actual = logprob.gather(-1, here[:, None])[:, 0].cpu().numpy()
            ids, values = top.indices.cpu().numpy(), top.values.cpu().numpy()
            whole = statistics(logprob, torch)
            for i, target in enumerate(targets[at : at + BLOCK]):
                one = Statistics(*(getattr(whole, name)[i : i + 1] for name in NAMES))
                found.append(Position(target, float(actual[i]), ids[i], values[i], statistics=one))
        return found
