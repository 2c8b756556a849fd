"""SGLang's native routes on loopback, with the made-up model of the other stand-ins.

Shapes and words as documented: triples of log-probability, id and text for the input from a start
on, the first null; lists of such triples for the likeliest tokens; -inf is written -3.4e38.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from aiohttp import web
from harvest_standin import BOS, N_VOCAB, Json, logprobs, piece


def refuse(status: int, message: str) -> web.Response:
    """An error as SGLang words it."""
    return web.json_response({"error": {"message": message}}, status=status)


@dataclass
class SglangStandIn:
    """The server; its fields are the ways in which a real one may be started or broken."""

    bos: bool = True
    max_model_len: int = 256
    tokenizer: bool = True
    processed: bool = False
    version: str = "0.5.23"
    spoil: Callable[[Json, list[int]], Any] | None = None
    seen: list[Json] = field(default_factory=list)

    def app(self) -> web.Application:
        """The routes."""
        app = web.Application(client_max_size=1 << 26)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/get_server_info", self._info)
        if self.tokenizer:
            app.router.add_post("/tokenize", self._tokenize)
            app.router.add_post("/detokenize", self._detokenize)
        app.router.add_post("/generate", self._generate)
        return app

    async def _models(self, request: web.Request) -> web.Response:
        entry = {"id": "org/made-up", "object": "model", "owned_by": "sglang",
                 "max_model_len": self.max_model_len}  # fmt: skip
        return web.json_response({"object": "list", "data": [entry]})

    async def _info(self, request: web.Request) -> web.Response:
        return web.json_response({"version": self.version, "speculative_algorithm": None})

    async def _tokenize(self, request: web.Request) -> web.Response:
        body = await request.json()
        tokens = list(body["prompt"].encode())
        if body.get("add_special_tokens", True) and self.bos:
            tokens = [BOS, *tokens]
        return web.json_response(
            {"tokens": tokens, "count": len(tokens), "max_model_len": self.max_model_len}
        )

    async def _detokenize(self, request: web.Request) -> web.Response:
        body = await request.json()
        texts = [bytes(t for t in row if t < 256).decode("utf-8", "replace")
                 for row in body["tokens"]]  # fmt: skip
        return web.json_response({"text": texts})

    async def _generate(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.seen.append(body)
        ids = body["input_ids"]
        if max(ids) >= N_VOCAB:
            return refuse(
                400, f"The input_ids {ids} contains values greater than the vocab size ({N_VOCAB})."
            )
        if len(ids) >= self.max_model_len:
            return refuse(400, f"The input ({len(ids)} tokens) is longer than the context length")
        temperature = body["sampling_params"].get("temperature", 0.1) if self.processed else 1.0
        start = body.get("logprob_start_len", -1)
        meta = self._meta(ids, body["top_logprobs_num"], temperature) if start == 0 else {}
        if self.spoil is not None and len(ids) > 12:
            self.spoil(meta, ids)
        reply = {"text": "", "output_ids": [], "meta_info": {"id": "1", "prompt_tokens": len(ids),
                 "cached_tokens": 0, **meta}}  # fmt: skip
        return web.Response(body=json.dumps(reply).encode(), content_type="application/json")

    def _meta(self, ids: list[int], asked: int, temperature: float) -> Json:
        own: list[Any] = [[None, ids[0], None]]
        top: list[Any] = [None]
        for i in range(1, len(ids)):
            law = logprobs(ids[:i]) / temperature
            law = law - np.log(np.exp(law).sum()) if temperature != 1.0 else law
            order = np.argsort(-law, kind="stable")[:asked]
            own.append([float(law[ids[i]]), ids[i], None])
            top.append([[float(law[t]), int(t), None] for t in order])
        assert piece(65) == b"A"
        return {"input_token_logprobs": own, "input_top_logprobs": top}
