"""The embedded default model: its weights in ``model/``, and :mod:`.build`, which makes them from nothing."""
