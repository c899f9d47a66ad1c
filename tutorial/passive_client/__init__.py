"""An application that knows nothing of training, and what stands between it and the model."""
