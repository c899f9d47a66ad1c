"""One file per resource. Each names its paths, methods and wire models in ``ROUTES``; the app and the OpenAPI
document are built from these tables."""
