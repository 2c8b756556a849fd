"""vLLM's routes on loopback, with the made-up model of the other stand-ins.

Shapes and words as documented: `prompt_logprobs` is aligned with the prompt, null first, keyed by
ids as text, with the actual token added to the top ones; -inf is written -9999.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from aiohttp import web
from harvest_standin import BOS, N_VOCAB, Json, logprobs, template

SPECIAL = ("<s>", "</s>", "<x>", "<y>")


def shown(token: int) -> str:
    """A byte as byte-level vocabularies write it: printable Latin-1 itself, others from 256 on."""
    if token >= 256:
        return SPECIAL[token - 256]
    printable = [b for b in range(256) if chr(b).isprintable() and not chr(b).isspace()]
    if token in printable:
        return chr(token)
    return chr(256 + [b for b in range(256) if b not in printable].index(token))


def refuse(status: int, message: str) -> web.Response:
    """An error as vLLM words it."""
    body = {"error": {"message": message, "type": "BadRequestError", "param": None, "code": status}}
    return web.json_response(body, status=status)


@dataclass
class VllmStandIn:
    """The server; its fields are the ways in which a real one may be started or broken."""

    bos: bool = True
    max_logprobs: int = 300
    max_model_len: int = 256
    token_strs: bool = True
    processed: bool = False
    stale: bool = False
    version: str = "0.11.0"
    spoil: Callable[[list[Any], list[int]], Any] | None = None
    seen: list[Json] = field(default_factory=list)

    def app(self) -> web.Application:
        """The routes."""
        app = web.Application(client_max_size=1 << 26)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/version", self._version)
        app.router.add_post("/tokenize", self._tokenize)
        app.router.add_post("/v1/completions", self._completions)
        return app

    async def _models(self, request: web.Request) -> web.Response:
        entry = {
            "id": "org/made-up",
            "object": "model",
            "owned_by": "vllm",
            "root": "org/made-up",
            "max_model_len": self.max_model_len,
        }
        return web.json_response({"object": "list", "data": [entry]})

    async def _version(self, request: web.Request) -> web.Response:
        return web.json_response({"version": self.version})

    async def _tokenize(self, request: web.Request) -> web.Response:
        body = await request.json()
        if "messages" in body:
            assert body["add_generation_prompt"]
            tokens = [BOS, *template(body["messages"]).encode()]
        else:
            tokens = list(body["prompt"].encode())
            if body.get("add_special_tokens", True) and self.bos:
                tokens = [BOS, *tokens]
        strings = [shown(token) for token in tokens] if self.token_strs else None
        return web.json_response(
            {
                "count": len(tokens),
                "max_model_len": self.max_model_len,
                "tokens": tokens,
                "token_strs": strings if body.get("return_token_strs") else None,
            }
        )

    async def _completions(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.seen.append(body)
        ids = body["prompt"]
        if len(ids) >= self.max_model_len:
            return refuse(400, f"This model's maximum context length is {self.max_model_len}")
        if max(ids) >= N_VOCAB:
            return refuse(400, f"Token id {max(ids)} is out of vocabulary")
        asked = N_VOCAB if body["prompt_logprobs"] == -1 else body["prompt_logprobs"]
        if asked > self.max_logprobs:
            return refuse(
                400,
                f"Requested prompt logprobs of {asked}, which is greater than max allowed: "
                f"{self.max_logprobs}",
            )
        # what is not sent comes from the model's generation_config
        temperature = body.get("temperature", 0.1)
        cached = self.stale and "cache_salt" not in body
        sharpened = temperature if self.processed else 0.5 if cached else 1.0
        listed = self._prompt_logprobs(ids, asked, sharpened)
        # short prompts are the harvester finding out what the server can do
        if self.spoil is not None and len(ids) > 12:
            changed = self.spoil(listed, ids)
            listed = listed if changed is None else changed
        choice: Json = {
            "index": 0,
            "text": "x",
            "logprobs": None,
            "finish_reason": "length",
            "stop_reason": None,
            "prompt_logprobs": listed,
        }
        reply = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": body["model"],
                 "choices": [choice], "usage": {"prompt_tokens": len(ids)}}  # fmt: skip
        return web.Response(body=json.dumps(reply).encode(), content_type="application/json")

    def _prompt_logprobs(self, ids: list[int], asked: int, temperature: float) -> list[Any]:
        listed: list[Any] = [None]
        for i in range(1, len(ids)):
            law = logprobs(ids[:i])
            if temperature != 1.0:
                law = law / temperature
                law = law - np.log(np.exp(law).sum())
            order = np.argsort(-law, kind="stable")
            rank = {int(token): place + 1 for place, token in enumerate(order)}
            # the actual token goes first, as in vLLM
            tokens = dict.fromkeys([ids[i], *(int(token) for token in order[:asked])])
            listed.append(
                {
                    str(token): {
                        "logprob": float(law[token]),
                        "rank": rank[token],
                        "decoded_token": shown(token),
                    }
                    for token in tokens
                }
            )
        return listed
