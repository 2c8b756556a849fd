"""A server that echoes a prompt with log-probabilities, as llama-cpp-python's does, on loopback.

Tokens are known by their text only; the first one's values are null; the actual token is added to
the top ones. Bytes that are no characters are dropped, so that such tokens collapse into one key.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from aiohttp import web
from harvest_standin import BOS, EOS, N_VOCAB, Json, logprobs


@dataclass
class EchoStandIn:
    """The server; its fields are the ways in which a real one may be started or broken."""

    bos: bool = True
    logits_all: bool = True
    collapse: bool = False
    shifted: bool = False
    processed: bool = False
    strict: bool = False
    chat_style: bool = False
    ignores_echo: bool = False
    most: int = 1000
    owner: str = "me"
    spoil: Callable[[Json], Any] | None = None
    seen: list[Json] = field(default_factory=list)

    def app(self) -> web.Application:
        """The routes."""
        app = web.Application()
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/openapi.json", self._openapi)
        app.router.add_post("/v1/completions", self._completions)
        return app

    def text(self, token: int) -> str:
        """The text of a token; ids from 128 on are characters too, unless they collapse."""
        if token in {BOS, EOS}:
            return ""
        if token < 128:
            return chr(token)
        return "" if self.collapse else chr(0x400 + token)

    async def _models(self, request: web.Request) -> web.Response:
        entry = {"id": "made-up", "object": "model", "owned_by": self.owner, "permissions": []}
        return web.json_response({"object": "list", "data": [entry]})

    async def _openapi(self, request: web.Request) -> web.Response:
        return web.json_response({"info": {"title": "llama.cpp Python API", "version": "0.3.16"}})

    async def _completions(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.seen.append(body)
        if self.strict and "repeat_penalty" in body:
            return web.json_response({"detail": "extra inputs are not permitted"}, status=422)
        if not self.logits_all:
            message = "logprobs is not supported for models created with logits_all=False"
            return web.json_response({"error": {"message": message}}, status=500)
        ids = list(body["prompt"].encode("ascii"))
        lead = [BOS] if self.bos else []
        drawn = int(np.argmax(logprobs([*lead, *ids])))
        sequence = [*ids, drawn] if body["echo"] and not self.ignores_echo else [drawn]
        asked = min(body["logprobs"], self.most)
        temperature = body.get("temperature", 0.8) if self.processed else 1.0
        tokens: list[str] = []
        own: list[float | None] = []
        top: list[dict[str, float] | None] = []
        for place, token in enumerate(sequence, len(ids) + 1 - len(sequence)):
            # without a begin-of-text token the real one reads the row after the token
            seen = [*lead, *ids[: place + self.shifted]]
            law = logprobs(seen) / temperature if seen else np.full(N_VOCAB, -np.log(N_VOCAB))
            law = law - np.log(np.exp(law).sum()) if temperature != 1.0 else law
            order = np.argsort(-law, kind="stable")[:asked]
            entry = {self.text(int(t)): float(law[t]) for t in order}
            entry[self.text(token)] = float(law[token])
            tokens.append(self.text(token))
            own.append(float(law[token]))
            top.append(entry)
        if body["echo"] and not self.ignores_echo:
            own[0] = top[0] = None
        arrays: Json = {
            "tokens": tokens,
            "text_offset": list(range(len(tokens))),
            "token_logprobs": own,
            "top_logprobs": top,
        }
        if self.chat_style:
            arrays = {"content": [{"token": "x", "logprob": -1.0, "top_logprobs": []}]}
        if self.spoil is not None and len(ids) > 60:
            self.spoil(arrays)
        choice = {
            "text": "".join(tokens),
            "index": 0,
            "logprobs": arrays,
            "finish_reason": "length",
        }
        reply = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": body["model"],
                 "choices": [choice]}  # fmt: skip
        return web.Response(body=json.dumps(reply).encode(), content_type="application/json")
