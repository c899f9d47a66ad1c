"""Import paths that users' scripts rely on; the real homes are :mod:`ajet.client` and :mod:`ajet.schema`."""
