"""The typed configuration tree (:mod:`.schema`), and how YAML and keywords become one (:mod:`.load`)."""
