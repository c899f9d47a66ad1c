"""Holds one import path that users' scripts rely on: :mod:`ajet.utils.thread_executors`."""
