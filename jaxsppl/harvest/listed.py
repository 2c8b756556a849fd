"""A server that tells its models by OpenAI's list: what vLLM, SGLang and others share."""

from collections.abc import Callable

import msgspec

from jaxsppl.errors import ServerError
from jaxsppl.harvest.client import BadReplyError, Client, RefusedError
from jaxsppl.harvest.protocol import Offer, Options, Scorer, Server


class Model(msgspec.Struct):
    """One entry of the list; where no context is told, it is 0."""

    id: str
    max_model_len: int = 0


class _Models(msgspec.Struct):
    data: list[Model]


class ListedServer(Server):
    """One server with a list of models.

    Parameters
    ----------
    client : Client
    scorer : callable (client, offer, options)
        Makes what scores with one of the models.
    """

    def __init__(self, client: Client, scorer: Callable[[Client, Offer, Options], Scorer]) -> None:
        self._client = client
        self._scorer = scorer
        self.label = client.label

    async def offers(self) -> list[Offer]:
        """Return the models that it offers.

        Returns
        -------
        list of Offer
        """
        try:
            found = await self._client.ask("/v1/models", _Models)
        except (RefusedError, BadReplyError) as error:
            raise ServerError(
                f"{self.label} has no model list: {error}; check the address and --protocol"
            ) from error
        return [Offer(model.id, model.id) for model in found.data]

    async def open(self, offer: Offer, options: Options) -> Scorer:
        """Find out what a model is and can do.

        Parameters
        ----------
        offer : Offer
        options : Options

        Returns
        -------
        Scorer
        """
        scorer = self._scorer(self._client, offer, options)
        scorer.identity = await scorer.identify()
        return scorer


async def listed_model(client: Client, offer: Offer) -> Model:
    """Return the entry of a model as it is now.

    Parameters
    ----------
    client : Client
    offer : Offer

    Returns
    -------
    Model

    Raises
    ------
    ServerError
        When it is no longer offered.
    """
    models = (await client.ask("/v1/models", _Models)).data
    model = next((model for model in models if model.id == offer.id), None)
    if model is None:
        raise ServerError(f"{client.label} no longer offers the model '{offer.name}'")
    return model
