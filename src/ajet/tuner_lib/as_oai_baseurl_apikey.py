"""Import path that users' scripts rely on."""

from ajet.schema.endpoint import OpenaiBaseUrlAndApiKey

__all__ = ["OpenaiBaseUrlAndApiKey"]
