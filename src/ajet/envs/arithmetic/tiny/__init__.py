"""The small model that calls tools: its weights in ``model/``, and :mod:`.build`, which makes them from nothing."""
