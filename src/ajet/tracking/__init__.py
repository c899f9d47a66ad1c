"""Trackers: the steps of a run in TensorBoard, Weights & Biases, SwanLab, MLflow, Trackio or the server's log.

What is reported is read from ``metrics.jsonl``, the copy of what the journal holds: each step once, with the values on
record. A step that is trained again after a crash is on record already and is not reported again.

``names`` (which there are, and whether they are installed) → ``steps`` (the file, followed; what of a step is a number)
→ ``sinks`` (one tracker, opened through verl's own ``Tracking`` where that serves) → ``reporter`` (a process for each
tracker: file to sink) → ``process`` (the server's side: starts, wakes, watches and counts; never waits).
"""
