"""vLLM as the sampler beside the embedded trainer (``rollout.name: vllm``): two processes behind one backbone.

``backbone.py`` is the server's side, ``worker.py`` the sampler's process, ``engine.py`` what runs in it. What of vLLM is
used beyond its documented interface stands in ``private.py`` and ``docs/vllm.md``. Only the sampler's process imports vLLM.
"""
