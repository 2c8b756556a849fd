"""A small llama-server on loopback with a made-up model, so that faults can be put into it.

The tokens are the 256 bytes, then a begin-of-text, an end-of-text and two more. The law of the next
token depends on the last two ids. Shapes and words follow what the real server was seen to answer;
`test_llamacpp.py` compares them with the real one.
"""

import asyncio
import hashlib
import json
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from aiohttp import web

N_VOCAB = 260
BOS, EOS = 256, 257

Json = dict[str, Any]
Fault = Callable[["StandIn", Json, Json], Awaitable[web.StreamResponse | None]]


def logprobs(prompt: list[int]) -> np.ndarray:
    """The made-up model: a sharp law over the vocabulary that depends on the last two ids."""
    seed = hashlib.sha256(bytes(str(prompt[-2:]), "ascii")).digest()
    logits = np.random.default_rng(int.from_bytes(seed[:8], "little")).normal(0, 4, N_VOCAB)
    return (logits - np.log(np.exp(logits).sum())).astype(np.float32).astype(float)


def piece(token: int) -> bytes:
    """Bytes of a token."""
    return bytes([token]) if token < 256 else b""


def template(messages: list[Json]) -> str:
    """The made-up model's chat template, up to the answer."""
    return "".join(f"[{m['role']}] {m['content']}\n" for m in messages) + "[assistant] "


def error(status: int, message: str, kind: str = "invalid_request_error") -> web.Response:
    """An error as llama-server words it."""
    body = {"error": {"code": status, "message": message, "type": kind}}
    return web.json_response(body, status=status)


@dataclass(frozen=True)
class Text:
    """A passage as the harvest wants it."""

    document: str
    prefix: str
    continuation: str


@dataclass
class StandIn:
    """The server; its fields are what a test may change while it runs."""

    build: str = "b1-standin"
    name: str = "/models/Stand In.Q4.gguf"
    n_ctx: int = 256
    slots: int = 2
    bos: bool = True
    grammars: bool = True
    meta: bool = True
    speculative: bool = False
    key: str = ""
    loading: int = 0
    delay_s: float = 0.0
    router: dict[str, str] = field(default_factory=dict)
    fault: Fault | None = None
    fault_times: int = 1_000_000
    completions: int = 0
    seen: list[Json] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)

    def app(self) -> web.Application:
        """The routes."""
        app = web.Application(middlewares=[self._guard], client_max_size=1 << 26)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/props", self._props)
        app.router.add_get("/slots", self._slots)
        app.router.add_post("/models/load", self._load)
        app.router.add_post("/apply-template", self._apply_template)
        app.router.add_post("/tokenize", self._tokenize)
        app.router.add_post("/completion", self._completion)
        return app

    @property
    def _guard(self) -> Any:
        @web.middleware
        async def guard(request: web.Request, handler: Any) -> web.StreamResponse:
            self.paths.append(request.path)
            self.request = request
            wanted = f"Bearer {self.key}"
            if self.key and request.headers.get("Authorization") != wanted:
                return error(401, "Invalid API Key", "authentication_error")
            if self.loading:
                self.loading -= 1
                return error(503, "Loading model", "unavailable_error")
            return await handler(request)

        return guard

    async def _models(self, request: web.Request) -> web.Response:
        if self.router:
            data = [
                {
                    "id": name,
                    "aliases": [],
                    "object": "model",
                    "status": {"value": "unloaded", "failed": True, "exit_code": 1}
                    if state == "failed"
                    else {"value": state},
                }
                for name, state in self.router.items()
            ]
            return web.json_response({"data": data, "object": "list"})
        entry: Json = {"id": self.name, "aliases": [self.name], "object": "model"}
        entry["owned_by"] = "llamacpp"
        if self.meta:
            entry["meta"] = {"n_vocab": N_VOCAB, "n_ctx": self.n_ctx, "size": 7, "ftype": "Q4"}
        return web.json_response({"object": "list", "data": [entry]})

    async def _load(self, request: web.Request) -> web.Response:
        name = (await request.json())["model"]
        if name not in self.router:
            return error(404, "model is not found", "not_found_error")
        # the real one starts a child that reports later
        self.router[name] = "failed" if "broken" in name else "loading"

        async def ready() -> None:
            await asyncio.sleep(0.2)
            self.router[name] = "loaded"

        if self.router[name] == "loading":
            self._task = asyncio.create_task(ready())
        return web.json_response({"success": True})

    def _unrouted(self, name: str | None) -> web.Response | None:
        if not self.router:
            return None
        if not name:
            return error(400, "model name is missing from the request")
        if name not in self.router:
            return error(400, f"model '{name}' not found")
        return None

    async def _props(self, request: web.Request) -> web.Response:
        return self._unrouted(request.query.get("model")) or web.json_response(
            {
                "default_generation_settings": {"params": {}, "n_ctx": self.n_ctx},
                "total_slots": self.slots,
                "model_path": self.name,
                "build_info": self.build,
            }
        )

    async def _slots(self, request: web.Request) -> web.Response:
        slots = [{"id": i, "n_ctx": self.n_ctx, "speculative": self.speculative,
                  "is_processing": False} for i in range(self.slots)]  # fmt: skip
        return self._unrouted(request.query.get("model")) or web.json_response(slots)

    async def _apply_template(self, request: web.Request) -> web.Response:
        return web.json_response({"prompt": template((await request.json())["messages"])})

    async def _tokenize(self, request: web.Request) -> web.Response:
        body = await request.json()
        if (refusal := self._unrouted(body.get("model"))) is not None:
            return refusal
        ids = list(body.get("content", "").encode())
        if body.get("add_special") and self.bos:
            ids = [BOS, *ids, EOS]
        if not body.get("with_pieces"):
            return web.json_response({"tokens": ids})
        tokens = [{"id": i, "piece": chr(i) if i < 128 else [i] if i < 256 else ""} for i in ids]
        return web.json_response({"tokens": tokens})

    async def _completion(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if (refusal := self._unrouted(body.get("model"))) is not None:
            return refusal
        self.completions += 1
        self.seen.append(body)
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        answer = self._complete(body)
        if isinstance(answer, web.Response):
            return answer
        # short prompts are the harvester finding out what the server can do
        if self.fault is not None and len(body["prompt"]) > 8 and self.fault_times > 0:
            self.fault_times -= 1
            spoiled = await self.fault(self, body, answer)
            if spoiled is not None:
                return spoiled
        return web.Response(body=json.dumps(answer).encode(), content_type="application/json")

    def _complete(self, body: Json) -> Json | web.Response:
        prompt = list(body["prompt"])
        if not prompt or max(prompt) >= N_VOCAB:
            return error(400, "Prompt contains invalid tokens")
        if len(prompt) >= self.n_ctx:
            return error(400, "request exceeds the available context size")
        forced = self._forced(body)
        if isinstance(forced, web.Response):
            return forced
        entries: list[Json] = []
        n = min(int(body.get("n_probs", 0)), N_VOCAB)
        for token in forced[: body["n_predict"]]:
            law = logprobs(prompt)
            order = np.argsort(-law, kind="stable")[:n]
            prompt.append(token)
            if token >= 0xC0 and token < 256:
                continue  # an unfinished character is not reported
            entries.append(
                {
                    "id": token,
                    "token": piece(token).decode("utf-8", "replace"),
                    "bytes": list(piece(token)),
                    "logprob": law[token],
                    "top_logprobs": [
                        {
                            "id": int(i),
                            "token": piece(int(i)).decode("utf-8", "replace"),
                            "bytes": list(piece(int(i))),
                            "logprob": law[i],
                        }
                        for i in order
                    ],
                }
            )
        answer: Json = {
            "stop_type": "limit",
            "truncated": False,
            "tokens_evaluated": len(body["prompt"]),
            "model": body.get("model", self.name),
        }
        if entries:
            answer["completion_probabilities"] = entries
        wanted = body.get("response_fields") or answer
        return {name: value for name, value in answer.items() if name in wanted}

    def _forced(self, body: Json) -> list[int] | web.Response:
        if "grammar" in body:
            if not self.grammars or not re.fullmatch(r"root ::= (<\[\d+\]> ?)+", body["grammar"]):
                return error(400, "Failed to initialize samplers: failed to parse grammar")
            tokens = [int(i) for i in re.findall(r"<\[(\d+)\]>", body["grammar"])]
            if any(token >= 128 or token == 0 for token in tokens):
                return error(
                    500,
                    "got exception: Unexpected empty grammar stack after accepting piece: x (259)",
                    "server_error",
                )
            return tokens
        if body.get("logit_bias"):
            return [int(body["logit_bias"][0][0])]
        return [int(np.argmax(logprobs(list(body["prompt"]))))]
